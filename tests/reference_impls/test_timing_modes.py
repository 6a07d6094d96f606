"""Steps that are traced or send nothing, in the midst of a training on real gloo processes that must not notice."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import Mock, patch

import pytest
import torch.distributed as dist

from reference_impls import DataParallelOptimizer, create
from reference_impls.core.errors import UsageError
from reference_impls.core.registry import Method
from tests.reference_impls.frontends import values
from tests.reference_impls.problem import LR, Net, loss, train
from tests.reference_impls.states import equal
from tests.reference_impls.table import ROWS, STEPS
from tests.reference_impls.test_engine import Delayed

pytestmark = pytest.mark.gloo
SIZE = 2
NAMES = (
    "allreduce-adamw",
    "lion-cub-1bit-doubling",
    "apmsqueeze",
    "lag",
    "global-qsgd-halving",
    "noloco-sgd",
)
METHODS: dict[str, Method] = {row.id: create(row.algorithm, **row.options) for row in ROWS if row.id in NAMES}
METHODS["in-the-background"] = Method("in-the-background", Delayed(2), {})  # exchanges over several steps


def _optimizer(model: Net, method: Method) -> DataParallelOptimizer:
    return DataParallelOptimizer(
        model.named_parameters(), method, lr=LR, seed=3, bucket_bytes=256, unused="zeros"
    )


COLLECTIVES = ("all_reduce", "all_gather_into_tensor", "all_gather_single", "all_to_all_single", "isend", "irecv",
               "batch_isend_irecv")  # fmt: skip


@contextmanager
def _forbidden(optimizer: DataParallelOptimizer) -> Iterator[None]:
    """No collective of torch and no word to the store inside."""
    refuse = Mock(side_effect=AssertionError("something was sent"))
    with ExitStack() as stack:
        for name in COLLECTIVES:
            if hasattr(dist, name):
                stack.enter_context(patch.object(dist, name, refuse))
        stack.enter_context(patch.object(optimizer._agreement, "before", refuse))
        yield


def _bytes(optimizer: DataParallelOptimizer, name: str) -> Any:
    frame = optimizer.ledger.frame(optimizer._worker.train_state.world.rank)
    if name != "in-the-background":
        return frame
    # entering completes what is pending, so some bytes leave a step earlier
    return frame.drop(columns="step").groupby(["stage", "collective"]).sum(numeric_only=True)


def _trained_twice(rank: int, size: int) -> dict[str, list[str]]:
    """Each method twice: plainly, and with a silent block in the middle and the second half traced. What does not hold."""
    found = {}
    for name, method in METHODS.items():
        plain = Net()
        optimizer = _optimizer(plain, method)
        kinds = train(plain, optimizer, rank, 0, STEPS)
        ledger = _bytes(optimizer, name)
        optimizer.release()

        model = Net()
        optimizer = _optimizer(model, method)
        again = train(model, optimizer, rank, 0, 3)
        before = values(model)
        with optimizer.without_communication():
            inside = values(model)
            with _forbidden(optimizer):
                silent = train(model, optimizer, rank, 3, 8)
            moved = not equal(before, values(model))
        after, step = values(model), optimizer._worker.train_state.step
        again += train(model, optimizer, rank, 3, 6)
        with optimizer.traced() as trace:
            again += train(model, optimizer, rank, 6, 11)
        measured = dict(trace.seconds)
        again += train(model, optimizer, rank, 11, STEPS)
        holds = {
            "the same bits": equal(values(plain), values(model)),
            "the same bytes": len(ledger) > 0 and ledger.equals(_bytes(optimizer, name)),
            "the same kinds of steps": again == kinds,
            # of which there is none in silence where data decide
            "silent ones go on where the training stands": method.algorithm.plans_from_data
            or silent == kinds[3:8],
            "untouched at entry": equal(before, inside),
            "moved in silence, of which nothing is left": moved and equal(before, after) and step == 3,
            "steps after the block are not measured": measured == trace.seconds,
        }
        found[name] = [what for what, held in holds.items() if not held]
        optimizer.release()
    return found


def test_a_training_with_silent_and_traced_steps_in_it_has_the_same_bits_and_bytes(ranks):
    assert ranks(SIZE).run(_trained_twice) == [{name: [] for name in METHODS}] * SIZE


# ---- one rank: what happens around the blocks --------------------------------------------------------------------------


def _started(name: str = "allreduce-adamw") -> tuple[Net, DataParallelOptimizer]:
    model = Net()
    optimizer = _optimizer(model, METHODS[name])
    train(model, optimizer, 0, 0, 2)
    return model, optimizer


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize("mode", ["traced", "without_communication"])
def test_a_block_cannot_begin_within_a_step(mode: str) -> None:
    model, optimizer = _started()
    loss(model, 0, 2).backward()
    with pytest.raises(UsageError, match="a step is under way"), getattr(optimizer, mode)():
        raise AssertionError("the block was entered")
    optimizer.step()
    with getattr(optimizer, mode)():
        pass


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize("name", ["allreduce-adamw", "apmsqueeze"])
@pytest.mark.parametrize("ending", ["in the midst of a step", "by an exception"])
def test_training_goes_on_after_a_silent_block_that_broke_off(name: str, ending: str) -> None:
    model, optimizer = _started(name)
    plain, other = _started(name)
    try:
        with optimizer.without_communication():
            train(model, optimizer, 0, 2, 4)
            loss(model, 0, 4).backward()
            if ending == "by an exception":
                raise InterruptedError
    except InterruptedError:
        pass
    assert train(model, optimizer, 0, 2, 9) == train(plain, other, 0, 2, 9)
    assert equal(values(model), values(plain))


@pytest.mark.usefixtures("one_rank")
def test_learning_rates_and_what_was_observed_are_as_before() -> None:
    model, optimizer = _started()
    optimizer.observe(loss=1.0)
    before = [dict(group, params=None) for group in optimizer.param_groups]
    with optimizer.without_communication():
        optimizer.observe(loss=9.0)
        train(model, optimizer, 0, 2, 4)
        assert optimizer.param_groups[0]["lr"] != before[0]["lr"]
    assert [dict(group, params=None) for group in optimizer.param_groups] == before
    assert optimizer._worker.train_state.observed["loss"] == 1.0
    # schedulers still reach the method
    assert optimizer.param_groups is optimizer._worker.optimizer.param_groups


@pytest.mark.usefixtures("one_rank")
def test_the_first_step_after_a_silent_block_is_still_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Silent steps do not use up the first, before which ranks compare their settings."""
    model = Net()
    optimizer = _optimizer(model, METHODS["allreduce-adamw"])
    with optimizer.without_communication():
        train(model, optimizer, 0, 0, 3)
    compared: list[Any] = []
    monkeypatch.setattr(optimizer._agreement, "compare_settings", compared.append)
    for step in range(3):
        train(model, optimizer, 0, step, step + 1)
        assert len(compared) == 1
