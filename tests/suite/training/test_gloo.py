"""Runs on real gloo processes: the bits of the simulated run, and faults with their reason."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from suite.runs.spec import RunSpec
from suite.runs.store import Outcome, Store
from suite.training.checkpoint import Hooks, Start
from suite.training.execute import execute
from suite.training.processes import exit_text, launch
from suite.training.train import train_group
from tests.suite.runs.project import one_spec

ROOT = Path(__file__).resolve().parents[3]
UNEQUAL = {"run_id", "spec", "train_s", "lost_s", "provenance", "attempt", "sources"}


def facts(outcome: Outcome) -> dict[str, object]:
    return {key: value for key, value in outcome.result.items() if key not in UNEQUAL}


@pytest.mark.gloo
def test_real_processes_give_the_bits_and_bytes_of_the_simulation(tmp_path: Path) -> None:
    """Lion Cub's sums are votes, so nothing may differ: curve, final metric, ledger, kinds."""
    spec = one_spec(
        "lion-cub-1bit",
        {"momentum_sync": "never"},
        "digits-mlp",
        sharding="by-class",
        steps=4,
        peak=1e-3,
        backend="gloo",
    )
    store = Store(tmp_path)
    (real,) = execute([spec], store)
    (simulated,) = train_group([replace(spec, backend="simulated")])
    assert real.status.state == "done", real.status.reason
    assert facts(real) == facts(simulated)
    assert real.metrics == simulated.metrics
    assert store.result(spec.run_id) == real.result
    assert real.run_id != simulated.run_id


@pytest.mark.gloo
@pytest.mark.full
def test_a_rank_that_dies_is_named_and_the_others_are_stopped(tmp_path: Path) -> None:
    spec = one_spec("allreduce-sgd", workload="quadratic", steps=4000, backend="gloo")
    others = set(multiprocessing.active_children())  # what other tests keep
    killed: list[int] = []

    def kill_one(step: int) -> None:
        if not killed:
            ranks = set(multiprocessing.active_children()) - others
            killed.append(max(process.pid or 0 for process in ranks))
            os.kill(killed[0], signal.SIGKILL)

    outcome = launch(spec, Start(), tmp_path, Hooks(kill_one))
    assert outcome.status.state == "error"
    assert "signal SIGKILL" in outcome.status.reason
    assert outcome.status.reason.startswith("rank 1 died")
    assert set(multiprocessing.active_children()) == others


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        outcome = launch(one_spec(backend="gloo"), Start(), tmp_path, Hooks(), port)
    assert outcome.status.state == "error"
    assert f"no rendezvous at 127.0.0.1:{port}" in outcome.status.reason
    assert "choose a free port" in outcome.status.reason


@pytest.mark.gloo
@pytest.mark.full
def test_ranks_started_by_a_launcher_meet_and_one_of_them_saves(tmp_path: Path) -> None:
    spec = one_spec(steps=3, backend="gloo")
    (tmp_path / "spec.json").write_text(spec.to_json())
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [
        sys.executable,
        "-m",
        "bandwise",
        "run",
        str(tmp_path / "spec.json"),
        "--results",
        str(tmp_path),
    ]
    where = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": "2",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    ranks = [
        subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, **where, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    assert [rank.communicate(timeout=120)[1] for rank in ranks] == [None, None]
    assert [rank.returncode for rank in ranks] == [0, 0]
    result = Store(tmp_path).result(spec.run_id)
    assert result is not None
    assert (result["status"], result["steps"]) == ("done", 3)


def test_a_launch_of_another_size_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in (("RANK", "1"), ("WORLD_SIZE", "3")):
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match="launched with 3 ranks, but the run has world_size 2"):
        list(execute([one_spec(backend="gloo")], Store(tmp_path)))


def test_a_simulated_run_does_not_mind_a_launcher(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in (("RANK", "1"), ("WORLD_SIZE", "3")):
        monkeypatch.setenv(name, value)
    (outcome,) = execute([one_spec()], Store(tmp_path))
    assert outcome.status.state == "done"


def test_exit_codes_in_words() -> None:
    assert exit_text(3) == "exit code 3"
    assert exit_text(-9) == "signal SIGKILL (out of memory, or killed by hand)"
    assert exit_text(-6) == "signal SIGABRT"


def test_only_known_backends_are_specs() -> None:
    with pytest.raises(ValueError, match="'nccl' is none of simulated, gloo"):
        RunSpec.from_dict({**one_spec().as_dict(), "backend": "nccl"})
