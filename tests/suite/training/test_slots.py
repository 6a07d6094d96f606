"""Slots: how they are dealt, what is refused, and that workers stay in theirs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from suite.runs.store import Store
from suite.training.pool import Slot, SlotError, run_local, slots
from tests.suite.runs.project import one_spec


@pytest.fixture
def six_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {1, 2, 3, 5, 7, 9})


@pytest.mark.usefixtures("six_cores")
def test_how_they_are_dealt() -> None:
    assert slots() == (Slot(),) * 6
    assert slots(2) == (Slot(), Slot())
    assert slots(gpus=["0", "3"]) == (Slot("0"), Slot("3"))
    assert slots(3, ["0", "3"]) == (Slot("0"), Slot("3"), Slot("0"))
    assert slots(cores=4) == (Slot(None, (1, 2, 3, 5)),)
    assert slots(2, ["0"], 3) == (Slot("0", (1, 2, 3)), Slot("0", (5, 7, 9)))


@pytest.mark.usefixtures("six_cores")
@pytest.mark.parametrize(
    ("jobs", "gpus", "cores", "what"),
    [
        (4, [], 2, "4 workers of 2 cores need 8, and this process may use 6"),
        (None, [], 7, "1 workers of 7 cores need 7"),
        (1, ["0", "1"], 0, "1 workers for 2 GPUs: a worker sees one"),
        (None, ["0", "0"], 0, "GPUs 0,0: name each once"),
    ],
)
def test_what_cannot_be_had(jobs: int | None, gpus: list[str], cores: int, what: str) -> None:
    with pytest.raises(SlotError, match=what):
        slots(jobs, gpus, cores)


@pytest.mark.full
def test_workers_stay_in_their_slots(tmp_path: Path) -> None:
    """By what the runs record of the process that trained them."""
    core = max(os.sched_getaffinity(0))
    store, specs = Store(tmp_path), [one_spec(seed=seed) for seed in range(2)]
    before = os.environ.get("CUDA_VISIBLE_DEVICES"), os.sched_getaffinity(0)
    assert run_local(specs[:1], store, [Slot("none", (core,))]).states == {"error": 1}
    assert "finds no GPU here: leave --gpus out" in store.status(specs[0].run_id).reason
    assert run_local(specs[1:], store, [Slot()]).states == {"done": 1}
    bound, free = (store.result(spec.run_id)["provenance"] for spec in specs)  # type: ignore[index]
    assert (bound["variables"]["CUDA_VISIBLE_DEVICES"], bound["cores"]) == ("none", 1)
    assert (free["variables"].get("CUDA_VISIBLE_DEVICES"), free["cores"]) == (before[0], len(before[1]))
    assert (os.environ.get("CUDA_VISIBLE_DEVICES"), os.sched_getaffinity(0)) == before
