"""Two trainings side by side, each on a group of its own: what one asks for is no business of the other."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from reference_impls import DataParallelOptimizer
from tests.reference_impls.gloo import run_ranks
from tests.reference_impls.problem import Net, batch

pytestmark = pytest.mark.gloo
ALGORITHMS = ("allreduce-sgd", "lion-cub-pbit")


def _train(rank: int, size: int) -> list[Tensor]:
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    model = Net()
    optimizer = DataParallelOptimizer(
        model.named_parameters(),
        ALGORITHMS[rank // 2],
        lr=0.01,
        group=groups[rank // 2],
        check="each",
        timeout_s=20,
    )
    for step in range(4):
        optimizer.zero_grad()
        x, y = batch(rank, step)
        (model(x) - y).square().mean().backward()
        optimizer.step()
    return [p.detach().clone() for p in model.parameters()]


def test_groups_compare_their_requests_among_themselves_only() -> None:
    results = run_ranks(_train, 4)
    for result in results:
        assert isinstance(result, list), result
    for i in range(len(results[0])):
        assert torch.equal(results[0][i], results[1][i])
        assert torch.equal(results[2][i], results[3][i])
    assert not torch.equal(results[0][0], results[2][0])
