"""``bandwise cluster up --slurm``: up, env, exec, status, down, with wires and without."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from bandwise.cli import main
from slurm.devcluster.cluster import client_script
from slurm.devcluster.config import ACCOUNTING, SLURM, findings
from tests.slurm.test_linked_cluster import require_links

ROOT = Path(__file__).resolve().parents[2]


class Shell:
    """``bandwise cluster ...`` in a folder for temporary files of its own."""

    def __init__(self, folder: str) -> None:
        self.environment = {**os.environ, "TMPDIR": folder}

    def __call__(self, *arguments: str, code: int = 0) -> str:
        return self.run(sys.executable, "-m", "bandwise", "cluster", *arguments, code=code)

    def run(self, *command: str, code: int = 0) -> str:
        done = subprocess.run(
            command, cwd=ROOT, env=self.environment, capture_output=True, text=True, check=False, timeout=120
        )
        assert done.returncode == code, done.stderr
        return done.stdout if code == 0 else done.stdout + done.stderr


@pytest.fixture
def shell() -> Iterator[Shell]:
    """Everything is gone afterwards, also where the test fails on the way."""
    with tempfile.TemporaryDirectory(prefix="bandwise-test-") as folder:
        Path(folder).chmod(0o755)  # munge insists
        made = Shell(folder)
        try:
            yield made
        finally:
            made("down")
        assert list(Path(folder).iterdir()) == []


@pytest.mark.slurm
def test_behind_wires(shell: Shell) -> None:
    require_links()
    told = shell("up", "--slurm", "--workers", "2", "--rate", "1gbit", "--cpus", "3", "--max-array-size", "5")
    assert told.startswith("cluster default is up: 2 workers, 1 Gbit/s, Slurm\n")
    assert "node-1  idle" in told
    assert 'eval "$(bandwise cluster env)"' in told
    assert "is not empty" in shell("up", "--slurm", code=3)

    with_env = 'eval "$("$0" -m bandwise cluster env)" && exec "$@"'
    typed = ("sh", "-c", with_env, sys.executable)
    assert shell.run(*typed, "sinfo", "--noheader", "--Node", "--format=%N %c", "--partition=debug") == (
        "node-0 3\nnode-1 3\n"
    )
    assert "MaxArraySize            = 5" in shell.run(*typed, "scontrol", "show", "config")
    assert shell.run(
        *typed, "srun", "--nodes=2", "--ntasks=2", "--label", "printenv", "SLURMD_NODENAME"
    ).split() in (
        ["0:", "node-0", "1:", "node-1"],
        ["1:", "node-1", "0:", "node-0"],
    )
    assert "10.77.0.2/24" in shell("exec", "1", "--", "ip", "-br", "address")
    assert "10.77.0.254/24" in shell("exec", "switch", "--", "ip", "-br", "address", "show", "br0")
    assert shell("exec", "1", "--", "squeue", "--noheader") == ""

    found = json.loads(shell("status", "--json"))
    assert found["state"] == "up"
    assert found["link"]["rate_bps"] == 1e9
    assert found["slurm"]["accounting"] is False
    assert [(worker["address"], worker["slurm"]) for worker in found["workers"]] == [
        ("10.77.0.1", "idle"),
        ("10.77.0.2", "idle"),
    ]
    assert shell("down") == "cluster default is down\n"
    assert shell("status", code=3) == "no cluster default\n"


@pytest.mark.slurm
def test_without_wires(shell: Shell) -> None:
    assert shell("up", "--slurm", "--workers", "1").startswith("cluster default is up: 1 workers, Slurm\n")
    (line,) = shell("env").splitlines()
    assert line.startswith("export SLURM_CONF=")
    assert shell("exec", "switch", "--", "sinfo", "--noheader", "--format=%D", "--partition=debug") == "1\n"
    assert "share this machine's network" in shell("exec", "0", "--", "true", code=2)
    assert "no Slurm cluster is up" in shell("env", "--name", "other", code=3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--cpus", "2"], "add --slurm"),
        (["--accounting"], "add --slurm"),
        (["--slurm", "--delay", "5ms"], "add --rate"),
        (["--slurm", "--rate", "5mbit"], "choose 10mbit to 10gbit"),
    ],
)
def test_the_shell_refuses_what_does_not_go_together(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["cluster", "up", *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.slurm
def test_preemption_by_qos_needs_accounting(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cluster", "up", "--slurm", "--name", "refused", "--preempt", "qos"]) == 2
    assert "needs accounting" in capsys.readouterr().err
    assert main(["cluster", "status", "--name", "refused"]) == 3


def test_the_doctor_names_what_slurm_lacks() -> None:
    assert all(finding.ok for finding in findings(lambda name: f"/bin/{name}"))
    slurm, accounting = findings(lambda name: f"/bin/{name}" if name in SLURM else None)
    assert slurm.ok
    assert not accounting.ok
    assert not accounting.needed
    assert set(accounting.detail.split(": ")[1].removesuffix(" not found").split(", ")) == set(ACCOUNTING)
    assert accounting.fix == "sudo apt-get install slurmdbd mariadb-server-core"


@pytest.mark.parametrize(("outside", "said"), [("net:[1]", "inside a b\n"), ("", "outside inside a b\n")])
def test_a_client_is_led_to_the_switch_only_from_outside(outside: str, said: str, tmp_path: Path) -> None:
    client, leads = tmp_path / "client", tmp_path / "leads there"
    client.write_text('#!/bin/sh\necho inside "$@"\n')
    leads.write_text('#!/bin/sh\nprintf "outside "\nexec "$@"\n')
    script = tmp_path / "script"
    script.write_text(client_script(str(client), (str(leads),), outside or os.readlink("/proc/self/ns/net")))
    for path in (client, leads, script):
        path.chmod(0o755)
    done = subprocess.run([str(script), "a", "b"], capture_output=True, text=True, check=True)
    assert done.stdout == said
