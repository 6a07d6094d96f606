"""Real ranks: they find each other, have the bits of the simulation, and go on after a stop, a kill, a full disk."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from slurm.job import meeting_point
from suite.runs.spec import RunSpec
from suite.runs.store import Status, Store, failed
from suite.training import checkpoint as files
from suite.training import gloo, processes
from suite.training.checkpoint import Child, Hooks, Interrupted, Interruption, Start
from suite.training.execute import execute
from suite.training.processes import (
    PART_S,
    PeersLostError,
    Place,
    Rendezvous,
    RendezvousError,
    cause,
    first_cause,
    join_launch,
    own_address,
    place_in_launch,
    send_end,
)
from suite.training.train import train_group
from tests.suite.runs.project import kept, one_spec

UNEQUAL = {"run_id", "spec", "train_s", "provenance", "attempt", "sources"}


def meeting() -> dict[str, str]:
    """Where ranks meet: a port that is free now."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}


# ---- ranks of this machine -------------------------------------------------------------------------------------------------


@pytest.mark.gloo
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("lion-cub-1bit", {"momentum_sync": "never"}),
        pytest.param("root-sgd", {"burn_in": 3, "weight_decay": 0.01}, marks=pytest.mark.full),
    ],
)
def test_real_processes_give_the_bits_and_bytes_of_the_simulation(
    name: str, options: dict[str, Any], tmp_path: Path
) -> None:
    """Sums of votes and of two ranks have one order, so nothing may differ: curve, final metric, ledger, kinds."""
    spec = one_spec(name, options, "digits-mlp", sharding="by-class", steps=5, peak=1e-3, backend="gloo")
    (real,) = execute([spec], store := Store(tmp_path))
    (simulated,) = train_group([replace(spec, backend="simulated")])
    assert real.status.state == "done", real.status.reason
    facts = [{k: v for k, v in o.result.items() if k not in UNEQUAL} for o in (real, simulated)]
    assert facts[0] == facts[1]
    assert real.metrics == simulated.metrics
    assert store.result(spec.run_id) == real.result
    assert real.run_id != simulated.run_id


@pytest.mark.parametrize("place", [0, 1])
def test_ranks_wait_for_the_one_that_evaluates_as_long_as_it_takes(
    place: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other collectives give up after two minutes."""
    events: list[str] = []
    monkeypatch.setattr(gloo.dist, "get_rank", lambda: place)
    monkeypatch.setattr(gloo, "_gathered", lambda row: torch.stack([row, row]))
    monkeypatch.setattr(gloo.dist, "monitored_barrier", lambda timeout: events.append(f"waits {timeout}"))
    rank = object.__new__(gloo._Rank)
    rank.spec, rank.params, rank._rate = SimpleNamespace(world_size=2, steps=9), {}, lambda step: 0.1
    rank.task = SimpleNamespace(watch=lambda values: events.append("evaluates"))
    sent = SimpleNamespace(wire_bytes=lambda: {0: 1.0, 1: 1.0})
    rank.recorder = SimpleNamespace(evaluation=lambda *of: None, bytes=sent)
    rank._evaluate(3)
    assert events == [*(["evaluates"] if place == 0 else []), "waits 6:00:00"]


# ---- interrupted, killed, out of space -------------------------------------------------------------------------------------


def stop_after(spec: RunSpec, store: Store, step: int) -> int:
    """Interrupt a run once it has come that far; returns the step of its checkpoint."""
    asked = Interruption()

    def look(done: int) -> None:
        if done >= step:
            asked.request("a test")

    with pytest.raises(Interrupted):
        list(execute([spec], store, look, interruption=asked))
    note = store.note(spec.run_id)
    assert (note.state, note.reason) == ("interrupted", "a test")
    assert spec.steps > note.step >= step
    return note.step


class LateRank(Child):
    """A rank that had not looked at its own pipe when another one had, and stops with it."""

    exitcode = 0

    def __init__(self, *arguments: Any) -> None:
        self.pipe, theirs = multiprocessing.Pipe()
        theirs.send(("interrupted", Hooks().reason))
        theirs.close()

    def close(self) -> None:
        self.pipe.close()

    kill = close


def test_a_run_is_interrupted_for_the_reason_that_was_given_whichever_rank_looked_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "Child", LateRank)
    asked = Interruption()
    asked.request("a test")
    with pytest.raises(Interrupted, match=r"^a test$"):
        processes.launch(LOCAL, Start(), tmp_path, Hooks(interruption=asked))


@pytest.mark.gloo
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("lion-cub-1bit", {"momentum_sync": "never"}),
        ("one-bit-adam", {"total_steps": 800, "warmup_fraction": 0.5}),
    ],
)
@pytest.mark.full
def test_ranks_stop_at_the_same_step_and_go_on_to_the_bit(
    name: str, options: dict[str, Any], tmp_path: Path
) -> None:
    spec = one_spec(name, options, steps=800, peak=0.01, backend="gloo")
    store, whole = Store(tmp_path / "stopped"), Store(tmp_path / "whole")
    step = stop_after(spec, store, 100)
    names = sorted(path.name for path in store.folder(spec.run_id).glob("checkpoint*"))
    assert names == [f"checkpoint-{step}-0.pt", f"checkpoint-{step}-1.pt", "checkpoint.json"]
    (outcome,) = execute([spec], store)
    assert outcome.status.state == "done", outcome.status.reason
    list(execute([spec], whole))
    assert kept(store, spec.run_id) == kept(whole, spec.run_id)
    assert not list(store.folder(spec.run_id).glob("checkpoint*"))


LOCAL = one_spec("local-adamw", {"period": 3}, steps=400, peak=0.01, backend="gloo")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A store with one run of local rounds that was never interrupted."""
    store = Store(tmp_path_factory.mktemp("whole"))
    list(execute([LOCAL], store))
    return store


@pytest.mark.gloo
@pytest.mark.full
def test_a_kill_of_one_rank_is_gone_on_from_the_last_checkpoint(tmp_path: Path, whole: Store) -> None:
    store = Store(tmp_path)
    others = set(multiprocessing.active_children())
    steps: list[int] = []

    def kill_one(step: int) -> None:
        note = store.note(LOCAL.run_id)
        if note is not None and note.step >= 100 and not steps:
            steps.append(note.step)
            os.kill(max(p.pid or 0 for p in set(multiprocessing.active_children()) - others), signal.SIGKILL)

    (outcome,) = execute([LOCAL], store, kill_one, checkpoint_s=0.0)
    assert outcome.status.reason.startswith("rank 1 died: signal SIGKILL")
    assert set(multiprocessing.active_children()) == others, "the other rank is stopped"
    begun: list[int] = []

    def look(step: int) -> None:
        note = store.note(LOCAL.run_id)
        begun.append(note.step if note else 0)

    (outcome,) = execute([LOCAL], store, look)
    assert begun[0] >= steps[0], "it did not begin anew"
    assert kept(store, LOCAL.run_id) == kept(whole, LOCAL.run_id)


@pytest.mark.gloo
@pytest.mark.full
def test_a_rank_file_that_cannot_be_read_makes_all_ranks_begin_anew(tmp_path: Path, whole: Store) -> None:
    store = Store(tmp_path)
    step = stop_after(LOCAL, store, 100)
    files.rank_path(store.folder(LOCAL.run_id), step, 1).write_bytes(b"nonsense")
    (outcome,) = execute([LOCAL], store)
    assert outcome.result["steps"] == LOCAL.steps
    assert kept(store, LOCAL.run_id) == kept(whole, LOCAL.run_id)


def test_a_checkpoint_of_ranks_takes_the_place_of_the_old_one_and_is_whole_or_refused(tmp_path: Path) -> None:
    """That the old one stands until then: `test_kill`."""
    for step in (5, 9):
        for rank in range(2):
            files.rank_path(tmp_path, step, rank).write_bytes(b"a checkpoint")
        files.publish(tmp_path, LOCAL, "code", step)
    assert files.published(tmp_path, LOCAL, "code") == 9
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["checkpoint-9-0.pt", "checkpoint-9-1.pt", "checkpoint.json"]
    with pytest.raises(files.CheckpointError, match="begun by other code"):
        files.published(tmp_path, LOCAL, "newer code")
    files.rank_path(tmp_path, 9, 1).unlink()
    with pytest.raises(files.CheckpointError, match=r"at step 9 lacks the files of ranks \[1\]"):
        files.published(tmp_path, LOCAL, "code")
    files.set_aside(tmp_path)
    files.clean(tmp_path, 0)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["refused-checkpoint-9-0.pt", "refused-checkpoint.json"]
    files.remove(tmp_path)
    assert not list(tmp_path.iterdir())


# ---- ranks of a launcher find each other -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environment", "place"),
    [
        ({}, None),
        ({"RANK": "1", "WORLD_SIZE": "4"}, Place(1, 4)),
        (meeting_point({"SLURM_PROCID": "2", "SLURM_NTASKS": "3", "SLURM_JOB_ID": "17"}), Place(2, 3)),
    ],
)
def test_the_place_in_a_launch_is_read_from_the_environment(
    environment: dict[str, str], place: Place | None
) -> None:
    assert place_in_launch(environment) == place


def test_a_launch_of_another_size_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in (("RANK", "1"), ("WORLD_SIZE", "3")):
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match="launched with 3 ranks, but the run has world_size 2"):
        list(execute([one_spec(backend="gloo")], Store(tmp_path)))


def test_the_address_is_that_of_the_interface() -> None:
    assert own_address({"GLOO_SOCKET_IFNAME": "lo", "MASTER_ADDR": "10.0.0.7"}) == "127.0.0.1"
    assert own_address({"MASTER_ADDR": "127.0.0.1"}) == "127.0.0.1"
    with pytest.raises(RendezvousError, match=r"interface 'eth77' .* there are .*lo"):
        own_address({"GLOO_SOCKET_IFNAME": "eth77"})


def come_together(places: list[Place], timeout_s: float = 20.0) -> list[Any]:
    """What becomes of ranks that come one after the other: a `Rendezvous`, or the error."""
    there = meeting()

    def come(turn: int, place: Place) -> Any:
        time.sleep(0.2 * turn)
        try:
            return join_launch(place, there, timeout_s)
        except RendezvousError as error:
            return error

    with ThreadPoolExecutor(len(places)) as ranks:
        return list(ranks.map(come, range(len(places)), places))


def test_ranks_find_each_other_and_who_does_not_come_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = come_together([Place(1, 2), Place(0, 2)])
    one.send("key", {"step": 3})
    assert other.recv("key") == {"step": 3}
    with pytest.raises(RendezvousError, match=r"waited 0\.2 s for 'nothing' in vain"):
        other.recv("nothing", 0.2)
    del one, other
    monkeypatch.setattr(processes, "PART_S", 1.0)  # rank 0 waits so long that the absent one may leave
    said = {str(error) for error in come_together([Place(0, 3), Place(2, 3)], 1.0)}
    assert said == {
        "ranks [1] did not come within 1 s; those who came: [0, 2]. Look at the logs of the absent"
    }
    (error,) = come_together([Place(1, 2)], 0.5)
    assert "see whether rank 0 lives" in str(error)
    with pytest.raises(RendezvousError, match="set MASTER_ADDR and MASTER_PORT"):
        join_launch(Place(0, 2), {})


# ---- rank 0 asks around before it says why a run failed --------------------------------------------------------------------

LOST = Status("error", "step 3: RuntimeError: [gloo/transport/tcp/pair.cc:537] Connection reset by peer")


@pytest.fixture
def rendezvous() -> Rendezvous:
    """A store that three ranks share, as rank 0 has it."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
    return Rendezvous(store, Place(0, 3))


def ended(rendezvous: Rendezvous, rank: int, status: Status) -> None:
    send_end(rendezvous, "run/0", Place(rank, 3), failed(one_spec(world_size=3), status))


def test_the_fault_that_came_first_is_told_with_its_rank(rendezvous: Rendezvous) -> None:
    ended(rendezvous, 1, LOST)
    ended(rendezvous, 2, Status("oom", "step 3: MemoryError: 8 GiB"))
    found = cause(rendezvous, "run/0", Place(0, 3), LOST)
    assert found == Status("oom", "rank 2, step 3: MemoryError: 8 GiB")
    killed, other = (Status("error", f"rank 1 died: signal {name}") for name in ("SIGKILL", "SIGABRT"))
    lost = Status("error", f"rank 0 {LOST.reason}")
    assert first_cause([lost, killed, other]) is killed
    assert first_cause([lost, lost]) is lost


def test_who_says_nothing_is_named(rendezvous: Rendezvous) -> None:
    ended(rendezvous, 2, LOST)
    with pytest.raises(PeersLostError, match=r"^step 3: rank 1 ended without a word"):
        cause(rendezvous, "run/0", Place(0, 3), LOST, grace_s=0.5)
    rendezvous.store.set("left/2", "")
    began = time.monotonic()
    rendezvous.leave()
    assert time.monotonic() - began < PART_S / 2, "it waits for nobody who is gone"
