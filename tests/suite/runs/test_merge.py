"""Two results folders into one, and old results rewritten: nothing good is replaced, conflicts are named."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from suite.runs.files import StoreError
from suite.runs.merge import merge
from suite.runs.spec import RunSpec
from suite.runs.store import Outcome, Owner, Store, take_lease
from suite.timing.store import put
from tests.suite.runs.hostile import DAMAGES
from tests.suite.runs.project import ended, one_spec


def keep(root: Path, spec: RunSpec, outcome: Outcome | None = None) -> Store:
    store = Store(root)
    store.begin(spec)
    (outcome or ended(spec)).save(store)
    return store


def files(root: Path) -> dict[str, bytes]:
    """Everything under a folder."""
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_the_union_of_two_folders(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    specs = [one_spec(seed=seed) for seed in range(5)]
    keep(here, specs[0])
    keep(there, specs[1])
    keep(here, specs[2], ended(specs[2], "oom", "step 2: out of memory"))
    keep(there, specs[2])
    keep(here, specs[3])
    keep(there, specs[3], ended(specs[3], "timeout", "too long"))
    Store(there).begin(specs[4])
    put(there, {"name": "quick", "session_id": "20261120T183000Z-ab12cd34"})
    before = files(there)

    merged = merge(here, there)
    assert sorted(merged.taken) == sorted(
        [specs[1].run_id, specs[2].run_id, "quick/20261120T183000Z-ab12cd34"]
    )
    assert (merged.kept, merged.conflicts, merged.refused) == ([specs[3].run_id], [], [])
    assert [Store(here).status(spec.run_id).state for spec in specs] == ["done"] * 4 + ["missing"]
    assert files(there) == before, "the other folder is only read"
    taken = Store(here).folder(specs[1].run_id)
    assert files(taken) == files(Store(there).folder(specs[1].run_id))
    again = files(here)
    assert merge(here, there).taken == []
    assert files(here) == again


def test_two_results_of_one_run_that_differ_are_a_conflict(tmp_path: Path) -> None:
    spec = one_spec()
    outcome = ended(spec)
    keep(tmp_path / "a", spec, outcome)
    other = {**outcome.result, "final": {"excess_loss": 7.0}, "train_s": 9.0}
    keep(tmp_path / "b", spec, replace(outcome, result=other))
    (conflict,) = merge(tmp_path / "a", tmp_path / "b").conflicts
    assert f"run {spec.run_id} differs in final" in conflict
    assert Store(tmp_path / "a").result(spec.run_id) == outcome.result
    keep(tmp_path / "c", spec, replace(outcome, result={**outcome.result, "train_s": 9.0}))
    assert merge(tmp_path / "a", tmp_path / "c").conflicts == [], "seconds may differ"


@pytest.mark.parametrize("name", DAMAGES)
def test_nothing_hostile_is_taken_over(name: str, tmp_path: Path) -> None:
    good, bad = one_spec(seed=0), one_spec(seed=1)
    keep(tmp_path / "there", good)
    store = keep(tmp_path / "there", bad)
    path = store.folder(bad.run_id) / "result.json"
    DAMAGES[name][0](path, dict(store.result(bad.run_id) or {}))
    merged = merge(tmp_path / "here", tmp_path / "there")
    assert merged.taken == [good.run_id]
    (refused,) = merged.refused
    assert str(path) in refused
    assert Store(tmp_path / "here").run_ids() == [good.run_id]


def test_what_is_worked_on_here_is_left_alone(tmp_path: Path) -> None:
    spec = one_spec()
    keep(tmp_path / "there", spec)
    here = Store(tmp_path / "here")
    here.begin(spec)
    lease = take_lease(here.folder(spec.run_id), Owner.here(os.getppid()))
    assert lease is not None
    (conflict,) = merge(tmp_path / "here", tmp_path / "there").conflicts
    assert "is being worked on here" in conflict
    assert here.status(spec.run_id).state == "running"


def test_what_is_no_results_folder(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    with pytest.raises(StoreError, match="is this results folder itself"):
        merge(tmp_path, tmp_path / "runs" / "..")
    with pytest.raises(StoreError, match="is no results folder"):
        merge(tmp_path, tmp_path / "elsewhere")
