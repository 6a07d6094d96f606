"""A run that was interrupted and goes on from its checkpoint has the bits of one that was not."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from suite.runs.spec import RunSpec
from suite.runs.store import Outcome, Store
from suite.training.checkpoint import Checkpoint, Hooks, Interrupted, Start, read, write
from suite.training.execute import execute
from suite.training.train import train_group
from tests.reference_impls.table import ROWS, SOME, STEPS
from tests.suite.runs.project import After, kept, lasting, one_spec


def trained(specs: list[RunSpec]) -> dict[str, Outcome]:
    """All runs from end to end, grouped by their number of workers."""
    found = {}
    for n in {spec.world_size for spec in specs}:
        for outcome in train_group([spec for spec in specs if spec.world_size == n]):
            found[outcome.run_id] = outcome
    return found


@pytest.fixture(scope="module", params=["some", pytest.param("all", marks=pytest.mark.full)])
def table(request: pytest.FixtureRequest) -> list[RunSpec]:
    """The table of methods: a row of every family, or all rows."""
    return [
        one_spec(
            row.algorithm, row.options, world_size=min(3, row.largest), steps=STEPS, batch_size=2, peak=0.01
        )
        for row in (SOME if request.param == "some" else ROWS)
    ]


@pytest.fixture(scope="module")
def whole(table: list[RunSpec]) -> dict[str, Outcome]:
    """Each trained without a stop."""
    return trained(table)


def stopped(specs: list[RunSpec], step: int) -> tuple[dict[str, Checkpoint], list[Outcome]]:
    """The checkpoints of runs that were stopped after so many steps, and the outcomes of those that had ended."""
    held: dict[str, Checkpoint] = {}
    ended = []
    with pytest.raises(Interrupted) as caught:
        for outcome in train_group(
            specs, hooks=Hooks(interruption=After(step)), keep=lambda c: held.__setitem__(c.run_id, c)
        ):
            ended.append(outcome)
    assert set(caught.value.run_ids) == set(held)
    assert {checkpoint.step for checkpoint in held.values()} == {step}
    return held, ended


@pytest.mark.parametrize("step", [pytest.param(4, marks=pytest.mark.full), 11])
def test_every_method_goes_on_to_the_bit(
    step: int, table: list[RunSpec], whole: dict[str, Outcome], tmp_path: Path
) -> None:
    """Error feedback, owned state, local rounds, warm-up, schedules, sketches: whatever the table holds."""
    again: dict[str, Outcome] = {}
    for n in {spec.world_size for spec in table}:
        specs = [spec for spec in table if spec.world_size == n]
        held, ended = stopped(specs, step)
        starts, left = {}, [spec for spec in specs if spec.run_id in held]
        for spec in left:
            path = tmp_path / f"{spec.run_id}.pt"
            write(path, held[spec.run_id])
            found = read(path, spec, held[spec.run_id].source)
            starts[spec.run_id] = Start(attempt=2, step=step, checkpoint=found)
        again.update({o.run_id: o for o in [*ended, *train_group(left, starts)]})
    differ = [
        spec.algorithm.name for spec in table if lasting(again[spec.run_id]) != lasting(whole[spec.run_id])
    ]
    assert not differ
    assert {outcome.result["steps"] for outcome in again.values()} == {STEPS}


MEMBERS = [
    one_spec(name, options, steps=12, peak=0.01, seed=seed)
    for seed in range(2)
    for name, options in (
        ("one-bit-adam", {"total_steps": 12, "warmup_fraction": 0.4}),
        ("local-adamw", {"period": 5}),
        ("allreduce-sgd", {"momentum": 0.9}),
    )
]


def test_runs_of_different_progress_meet_in_one_group(tmp_path: Path) -> None:
    store, whole = Store(tmp_path / "stopped"), Store(tmp_path / "whole")
    assert len(list(execute(MEMBERS, whole))) == len(MEMBERS)
    steps = random.Random(7).sample(range(1, 12), 2)
    for spec, step in zip(MEMBERS, [*steps, steps[0]], strict=False):
        with pytest.raises(Interrupted):
            list(execute([spec], store, interruption=After(step)))
        assert store.status(spec.run_id).state == "interrupted"
        assert store.status(spec.run_id).reason == "a test"
    assert len(list(execute(MEMBERS, store))) == len(MEMBERS)
    for spec in MEMBERS:
        assert kept(store, spec.run_id) == kept(whole, spec.run_id)
        assert not list(store.folder(spec.run_id).glob("checkpoint*"))
        assert not list(store.folder(spec.run_id).glob("lease*"))
    result = store.result(MEMBERS[0].run_id)
    assert result["attempt"] == 2


def test_an_interrupted_group_keeps_the_run_that_had_ended(tmp_path: Path) -> None:
    good, bad = one_spec(peak=0.05, steps=60), one_spec(peak=1e4, steps=60)
    store = Store(tmp_path)
    with pytest.raises(Interrupted, match="a test") as caught:
        list(execute([bad, good], store, interruption=After(50)))
    assert caught.value.run_ids == (good.run_id,)
    assert store.status(bad.run_id).state == "diverged"
    assert store.status(good.run_id).state == "interrupted"
