"""Steps that all ranks give up: the training goes on as if it never had the batch; and who skips alone is named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from bandwise import attach
from reference_impls import DataParallelOptimizer
from tests.reference_impls.gloo import Ranks, outcome
from tests.reference_impls.problem import LR, Net, loss, observed, train
from tests.reference_impls.states import equal
from tests.reference_impls.table import SOME, Row
from tests.support import each

pytestmark = pytest.mark.gloo
SIZE, TAKEN = 2, 6
BAD = (0, 1, 4, 7)
"""Batches of a training of ten that are given up."""


def _saved(model: nn.Module, state: Any) -> Any:
    return [p.detach().clone() for p in model.parameters()], state


def _bad_backward(model: Net, rank: int, step: int) -> None:
    """It gives a gradient to a parameter that no other batch uses."""
    (loss(model, rank, step) * float("nan") + model.unused.sum()).backward()


def _with_and_without(rank: int, size: int, row: Row) -> list[Any]:
    """Parameters and state after six steps, between which four batches were given up; and after the six alone."""
    trained = []
    for skips in (True, False):
        model = Net()
        optimizer = DataParallelOptimizer(
            model,
            row.algorithm,
            lr=LR,
            seed=3,
            bucket_bytes=256,
            timeout_s=20,
            skippable=skips,
            **row.options,
        )
        step = 0
        for number in range(TAKEN + len(BAD)):
            if number not in BAD:
                train(model, optimizer, rank, step, step + 1)
                step += 1
            elif skips:
                optimizer.zero_grad()
                optimizer.observe(**observed(step))
                # others' gradients come out of the step's closure
                if not optimizer.method.algorithm.reference_points:
                    _bad_backward(model, rank, step)
                optimizer.skip_step()
                assert all(p.grad is None for p in model.parameters())
        trained.append(_saved(model, optimizer.state_dict()))
        optimizer.release()
    return trained


FEW = [row for row in SOME if row.id in ("allreduce-adamw", "powersgd", "apmsqueeze", "diloco", "root-sgd")]


@each("row", FEW)
def test_the_training_goes_on_as_if_it_never_had_the_batch(row: Row, ranks: Callable[[int], Ranks]) -> None:
    for answer in ranks(SIZE).run(_with_and_without, row):
        assert equal(*answer)


def _attached(rank: int, size: int) -> dict[str, Any]:
    """Around an own optimizer, and with buffers, with a batch that is given up and without it."""
    found = {}
    for skips in (True, False):
        model = Net()
        own = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        with attach(own, model, "qsgd", error_feedback=True, skippable=True) as attached:
            for number in range(4):
                if number == 1 and not skips:
                    continue
                loss(model, rank, number).backward()
                attached.skip_step() if number == 1 else own.step()
                own.zero_grad()
            found[f"attached, {skips}"] = _saved(model, own.state_dict())
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    optimizer = DataParallelOptimizer(model, "allreduce-sgd", lr=0.1, skippable=True, bucket_bytes=16)
    model(torch.arange(12.0).reshape(4, 3).pow(1 + rank)).square().mean().backward()
    optimizer.skip_step()
    return {**found, "buffers": [b.clone() for b in model.buffers()]}


def test_around_an_own_optimizer_and_with_buffers(ranks: Callable[[int], Ranks]) -> None:
    answers = ranks(SIZE).run(_attached)
    for answer in answers:
        assert equal(answer["attached, True"], answer["attached, False"])
        assert equal(answer["buffers"], answers[0]["buffers"])


def _alone(rank: int, size: int) -> Any:
    """In the fourth step, whose collectives are no longer compared, one rank skips."""
    model = Net()
    optimizer = DataParallelOptimizer(model, "allreduce-sgd", lr=0.1, skippable=True, timeout_s=20)
    for step in range(4):
        loss(model, rank, step).backward()
        if step < 3:
            optimizer.step()
            optimizer.zero_grad()
    held = [p.detach().clone() for p in model.parameters()]
    error = outcome(optimizer.skip_step if rank == 1 else optimizer.step)
    return error, all(map(torch.equal, model.parameters(), held))


def test_a_rank_that_skips_alone_is_named_and_no_rank_has_stepped(ranks: Callable[[int], Ranks]) -> None:
    for answer in ranks(SIZE).run(_alone):
        (kind, message), untouched = answer
        assert (kind, untouched) == ("MismatchError", True), message
        assert "rank 0 has as the end of this step = step(), but rank 1 has" in message
        assert "step 3" in message
        assert "end of this step = skip_step()" in message
