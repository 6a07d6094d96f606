"""Training as a GPU does it, on a CPU: mixed precision, batches gathered on the device, losses looked at now and then."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch

from reference_impls.core.algorithm import Algorithm, Bucket
from reference_impls.core.errors import UnsupportedError
from suite.analysis.statistics import mean_interval
from suite.runs.spec import RunSpec
from suite.runs.store import Outcome
from suite.training.checkpoint import Checkpoint, Hooks, Interrupted, Start
from suite.training.train import LOSSES_EVERY, Group, train_group
from suite.workloads import get
from suite.workloads.base import SHAPES, _mixed, skeleton
from suite.workloads.code import SIZES
from tests.suite.runs.project import After, lasting, one_spec, register

STEPS = LOSSES_EVERY + 3


def train(specs: list[RunSpec], mixed: bool) -> dict[str, Outcome]:
    return {outcome.run_id: outcome for outcome in train_group(specs, mixed=mixed)}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A model of bytes of one layer, judged on few windows."""
    monkeypatch.setitem(SIZES, "0.14m", (1, 32))
    monkeypatch.setattr("suite.workloads.code.TEST_WINDOWS", 64)
    monkeypatch.setattr("suite.workloads.code.GPTTask.watched", 8)
    monkeypatch.setattr("suite.runs.plan.EVALUATIONS", 1)
    skeleton.cache_clear()
    yield
    skeleton.cache_clear()


@pytest.mark.usefixtures("small")
def test_the_mean_of_seeds_is_that_of_float32_within_its_interval() -> None:
    specs = [
        one_spec("allreduce-adamw", None, "code-gpt", steps=8, batch_size=1, peak=0.01, seed=seed)
        for seed in range(6)
    ]
    exact, mixed = train(specs, mixed=False), train(specs, mixed=True)
    ways = [{own.result["path"].get("gradients") for own in found.values()} for found in (exact, mixed)]
    assert ways == [{None}, {"eager"}]
    before, after = (
        [found[spec.run_id].result["final"]["bits_per_byte"] for spec in specs] for found in (exact, mixed)
    )
    difference = mean_interval([own - other for own, other in zip(after, before, strict=True)])
    assert before != after, "nothing was computed in bfloat16"
    assert difference.low <= 0 <= difference.high
    assert difference.high - difference.low < get("code-gpt").margin
    assert max(before) < 7.5, "nothing was learnt"


@dataclass(frozen=True)
class Picky(Algorithm):
    """Plain SGD that refuses numbers which are not finite."""

    def update(self, bucket: Bucket, reduced: torch.Tensor) -> None:
        if not bool(reduced.isfinite().all()):
            raise UnsupportedError("the gradient is not finite")
        bucket.params.sub_(reduced, alpha=bucket.train_state.lr)


def test_a_run_that_diverges_is_found_later_and_its_reason_names_the_same_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("suite.runs.plan.EVALUATIONS", 1)
    good, bad = one_spec(steps=STEPS), one_spec(peak=1e4, steps=STEPS)
    at_once, later = (train([good, bad], mixed) for mixed in (False, True))
    assert lasting(at_once[good.run_id]) == lasting(later[good.run_id])
    assert at_once[bad.run_id].status == later[bad.run_id].status
    assert later[bad.run_id].status.state == "diverged"
    assert at_once[bad.run_id].result["steps"] < later[bad.run_id].result["steps"] < LOSSES_EVERY


def test_a_method_that_refuses_what_has_diverged_is_not_to_blame(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("suite.runs.plan.EVALUATIONS", 1)
    spec = one_spec(register(monkeypatch, Picky), peak=1e30, steps=STEPS)
    at_once, later = (train([spec], mixed)[spec.run_id].status for mixed in (False, True))
    assert at_once == later
    assert later.state == "diverged"


@pytest.mark.parametrize(
    ("algorithm", "looks"), [("allreduce-sgd", [LOSSES_EVERY, STEPS]), ("adacomm", [*range(1, STEPS + 1)])]
)
def test_losses_are_looked_at_now_and_then_and_at_once_where_a_method_plans_by_them(
    algorithm: str, looks: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[int] = []

    def look(group: Group, before=Group.look) -> None:  # type: ignore[no-untyped-def]
        found.extend(step + 1 for step, _ in group._unread[-1:])
        before(group)

    monkeypatch.setattr(Group, "look", look)
    monkeypatch.setattr("suite.runs.plan.EVALUATIONS", 1)
    spec = one_spec(algorithm, steps=STEPS)
    (later,) = train([spec], mixed=True).values()
    assert found == looks
    assert lasting(later) == lasting(*train([spec], mixed=False).values())


def test_a_checkpoint_has_the_losses_of_all_steps_before_it() -> None:
    spec, held = one_spec(steps=STEPS), dict[str, Checkpoint]()
    with pytest.raises(Interrupted):
        list(
            train_group(
                [spec], None, Hooks(interruption=After(5)), keep=lambda own: held.update(one=own), mixed=True
            )
        )
    starts = {spec.run_id: Start(checkpoint=held["one"], step=5)}
    (resumed,) = train_group([spec], starts, mixed=True)
    (whole,) = train_group([spec])
    assert held["one"].recorder["last_loss"] is not None
    assert lasting(resumed) == lasting(whole)


@pytest.mark.usefixtures("small")
def test_a_step_is_computed_without_waiting_for_the_device() -> None:
    """On the device without values, where whatever waits for one is refused."""
    group = Group(
        [one_spec(workload="code-gpt"), one_spec(workload="code-gpt", seed=1)], {}, "meta", mixed=False
    )
    group.compute(0)
    with pytest.raises(NotImplementedError):
        group.look()


@pytest.mark.usefixtures("small")
def test_the_losses_of_stacked_rows_compile_as_a_whole() -> None:
    """Where the graph breaks, a GPU refuses."""
    task = get("code-gpt").task(0, 2, batch_size=1)
    params = {name: torch.stack([value] * 2) for name, value in task.initial().items()}
    given = (skeleton(task.workload), torch.bfloat16, params, *task.batch(0))
    with torch._dynamo.config.patch(recompile_limit=SHAPES):
        found = torch.compile(_mixed, fullgraph=True, dynamic=False, backend="eager")(*given)
    torch.testing.assert_close(found, _mixed(*given))
