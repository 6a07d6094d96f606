"""``bandwise cluster``: up, exec, status, down, and what it refuses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from suite.links.cluster import default_state_dir
from suite.links.link import LinkError

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".hidden", "-x", "a b", "x" * 65])
def test_a_name_is_no_path(name: str) -> None:
    with pytest.raises(LinkError, match="cluster name"):
        default_state_dir(name)


@pytest.mark.usefixtures("possible")
def test_the_shell_can_bring_it_up_use_it_and_take_it_down(tmp_path: Path) -> None:
    def shell(*arguments: str, code: int = 0) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "bandwise", "cluster", *arguments],
            cwd=ROOT,
            env={**os.environ, "TMPDIR": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == code, done.stderr
        return done.stdout if code == 0 else done.stdout + done.stderr

    try:
        told = shell("up", "--workers", "3", "--rate", "50mbit", "--straggler", "1=20mbit")
        assert told.startswith("cluster default is up: 3 workers, 50 Mbit/s, rank 1 at 20 Mbit/s\n")
        assert "bandwise cluster exec 0 -- ip address" in told
        assert "is not empty" in shell("up", code=3)
        assert "10.77.0.2/24" in shell("exec", "1", "--", "ip", "-br", "address")
        assert shell("exec", "2", "sh", "-c", "exit 7", code=7) == ""
        assert "nothing to run" in shell("exec", "2", code=2)
        assert "no worker 3" in shell("exec", "3", "--", "true", code=3)
        found = json.loads(shell("status", "--json"))
        assert found["state"] == "up"
        assert found["link"]["stragglers"] == {"1": 2e7}
        assert shell("status", "--name", "other", code=3) == "no cluster other\n"
    finally:
        assert shell("down") == "cluster default is down\n"
    assert json.loads(shell("--json", "down"))["was"] == "down"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rate", "5mbit"], "choose 10mbit to 10gbit"),
        (["--rate", "fast"], "such as 100mbit"),
        (["--down-rate", "20gbit"], "down rate"),
        (["--delay", "5"], "such as 5ms"),
        (["--straggler", "2"], "RANK=RATE"),
        (["--straggler", "x=10mbit"], "RANK=RATE"),
        (["--straggler", "4=10mbit"], "ranks 0 to 3"),
        (["--straggler", "1=100mbit"], "no slower"),
        (["--workers", "0"], "0 workers"),
        (["--name", "../x"], "cluster name"),
    ],
)
def test_the_shell_refuses_what_cannot_be(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from bandwise.cli import main

    assert main(["cluster", "up", *arguments]) == 2
    assert message in capsys.readouterr().err
