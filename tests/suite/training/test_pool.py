"""The local pool: dead workers, interruption and resumption, with the results of an undisturbed sweep."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from suite.runs.plan import make_plan, open_specs
from suite.runs.spec import RunSpec
from suite.runs.store import Store, counts
from suite.runs.sweep import load_sweep
from suite.training.checkpoint import Interrupted
from suite.training.execute import SlotError, Tally, _Worker, execute, run_local, slots
from tests.suite.runs.project import SWEEP, After, beats, kept, one_spec, write_sweep
from tests.support import ROOT, eventually


def states(store: Store, specs: list[RunSpec]) -> dict[str, int]:
    return counts(store.status(spec.run_id) for spec in specs)


def test_a_worker_that_died_while_it_had_nothing_to_do_takes_only_what_it_is_given_along(
    tmp_path: Path,
) -> None:
    spec, tally = one_spec(), Tally(1)
    worker = _Worker(Store(tmp_path), None, {spec.run_id: (0, 1.0)})
    assert worker._child.pid is not None
    os.kill(worker._child.pid, signal.SIGKILL)
    worker._child._process.join()
    worker.give([spec])
    worker.receive(tally)
    assert (worker.dead, tally.states) == (True, {"error": 1})


@pytest.mark.full
def test_a_worker_that_dies_takes_only_its_runs_along(tmp_path: Path) -> None:
    specs = [one_spec(seed=seed, steps=400) for seed in range(6)]
    store = Store(tmp_path / "disturbed")
    others = set(multiprocessing.active_children())  # what other tests keep
    killed: list[int] = []
    seen: list[tuple[int, float]] = []

    def kill_one(tally: Tally) -> None:
        seen.append((tally.runs, tally.share))
        if tally.share and not killed:
            workers = set(multiprocessing.active_children()) - others
            killed.append(workers.pop().pid or 0)
            os.kill(killed[0], signal.SIGKILL)

    tally = run_local(specs, store, jobs=2, report=kill_one)
    assert tally.runs == 6
    assert tally.share == pytest.approx(1.0)
    assert seen == sorted(seen), "progress never goes back"
    assert tally.states == {"done": 5, "error": 1}
    assert states(store, specs) == {"done": 5, "error": 1}
    ((run_id, state, reason),) = tally.failures
    assert state == "error"
    assert reason == "the worker process died: signal SIGKILL (out of memory, or killed by hand)"
    again = open_specs(specs, store)
    assert [spec.run_id for spec in again] == [run_id], "only what failed is done again"
    assert run_local(again, store, jobs=1).states == {"done": 1}
    undisturbed = Store(tmp_path / "undisturbed")
    list(execute(specs, undisturbed))
    for spec in specs:
        assert kept(store, spec.run_id) == kept(undisturbed, spec.run_id)


LONG = SWEEP.replace("steps: 12", "steps: 600").replace("seeds: 3", "seeds: 8")


def test_an_interrupt_lets_the_group_finish_that_is_under_way(tmp_path: Path) -> None:
    """Of three groups with one worker; the first group has a checkpoint, whose steps are no work that is left."""
    specs, store, shares = [one_spec(seed=seed) for seed in range(3)], Store(tmp_path), []
    with pytest.raises(Interrupted):
        list(execute(specs[:1], store, interruption=After(4)))
    note = store.note(specs[0].run_id)
    assert note.step == 4

    def interrupt(tally: Tally) -> None:
        if tally.runs and not shares:
            shares.append(tally.share)
            signal.raise_signal(signal.SIGINT)

    tally = run_local(specs, store, jobs=1, report=interrupt)
    assert shares == [pytest.approx(2 / (2 + 6 + 6))]
    assert (tally.interrupted, tally.failures) == (True, [])
    found = states(store, specs)
    assert set(found) == {"done", "missing"}, "no run is left half-way, and none is begun"


@pytest.mark.full
def test_a_termination_stops_at_a_checkpoint_and_leaves_no_process(tmp_path: Path) -> None:
    sweep, results = write_sweep(tmp_path, LONG.replace("steps: 600", "steps: 20000")), tmp_path / "results"
    process = subprocess.Popen(
        [sys.executable, "-m", "bandwise", "sweep", sweep, "--results", str(results), "--jobs", "1"],
        cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    specs = make_plan(load_sweep(sweep)).specs
    store = Store(results)
    assert eventually(lambda: process.poll() is not None or any(beats(store, spec) for spec in specs), 60)
    process.terminate()
    assert process.wait(timeout=60) == 130
    found = states(store, specs)
    assert set(found) <= {"interrupted", "missing"}
    assert found["interrupted"] >= 1, "what was under way has a checkpoint"
    assert not list(results.glob("runs/??/*/lease*"))
    # multiprocessing's own helper process needs a moment to notice
    assert eventually(lambda: subprocess.run(["ps", "-s", str(process.pid)], check=False).returncode != 0)


@pytest.fixture
def six_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {1, 2, 3, 5, 7, 9})


@pytest.mark.usefixtures("six_cores")
def test_how_they_are_dealt() -> None:
    assert slots() == (None,) * 6
    assert slots(2) == (None, None)
    assert slots(gpus=["0", "3"]) == ("0", "3")
    assert slots(3, ["0", "3"]) == ("0", "3", "0")


@pytest.mark.usefixtures("six_cores")
@pytest.mark.parametrize(
    ("jobs", "gpus", "what"),
    [
        (1, ["0", "1"], "1 workers for 2 GPUs: a worker sees one"),
        (None, ["0", "0"], "GPUs 0,0: name each once"),
    ],
)
def test_what_cannot_be_had(jobs: int | None, gpus: list[str], what: str) -> None:
    with pytest.raises(SlotError, match=what):
        slots(jobs, gpus)


@pytest.mark.full
def test_workers_stay_in_their_slots(tmp_path: Path) -> None:
    """By what the runs record of the process that trained them."""
    store, specs = Store(tmp_path), [one_spec(seed=seed) for seed in range(2)]
    before = os.environ.get("CUDA_VISIBLE_DEVICES")
    assert run_local(specs[:1], store, ["none"]).states == {"error": 1}
    assert "finds no GPU here: leave --gpus out" in store.status(specs[0].run_id).reason
    assert run_local(specs[1:], store, [None]).states == {"done": 1}
    bound, free = (store.result(spec.run_id)["provenance"] for spec in specs)  # type: ignore[index]
    assert bound["variables"]["CUDA_VISIBLE_DEVICES"] == "none"
    assert free["variables"].get("CUDA_VISIBLE_DEVICES") == before
    assert os.environ.get("CUDA_VISIBLE_DEVICES") == before
