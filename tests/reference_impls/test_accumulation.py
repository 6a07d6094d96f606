"""On real processes: accumulated gradients, parameters that backward passes by, and tied weights, overlapped with backward.

Every case is compared with the same training in one process on the mean loss of all ranks, and with DDP's rule that
what is unused counts as zeros. Several buckets, so that some have left before backward is over.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reference_impls import DataParallelOptimizer
from tests.reference_impls.gloo import Ranks

pytestmark = pytest.mark.gloo
SIZE, STEPS, WIDTH = 3, 4, 12


class Model(nn.Module):
    """An embedding that is the output layer too, a branch taken in some steps and by some ranks only, a dead parameter."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(6)
        self.table = nn.Parameter(0.3 * torch.randn(10, WIDTH))
        self.first = nn.Linear(WIDTH, WIDTH)
        self.branch = nn.Linear(WIDTH, WIDTH)
        self.dead = nn.Parameter(torch.ones(5))
        self.last = nn.Linear(WIDTH, WIDTH)

    def forward(self, tokens: Tensor, following: Tensor, branch: bool) -> Tensor:
        x = torch.tanh(self.first(F.embedding(tokens, self.table)))
        x = x + self.branch(x) if branch else x
        return F.cross_entropy(self.last(x) @ self.table.T, following)


def _batch(rank: int, step: int, part: int) -> tuple[Tensor, Tensor, bool]:
    generator = torch.Generator().manual_seed(100 * step + 10 * rank + part)
    tokens, following = torch.randint(10, (2, 7), generator=generator)
    return tokens, following, (step + rank + part) % 2 == 0


def _gloo(rank: int, size: int, parts: int, set_to_none: bool) -> dict[str, Any]:
    """Accumulate `parts` batches a step, the last of which communicates."""
    model = Model()
    optimizer = DataParallelOptimizer(
        model.named_parameters(),
        "allreduce-sgd",
        lr=0.1,
        bucket_bytes=4 * WIDTH * WIDTH,
        allow_empty_buckets=True,
    )
    early = []
    for step in range(STEPS):
        with optimizer.no_sync():
            for part in range(parts - 1):
                model(*_batch(rank, step, part)).backward()
        model(*_batch(rank, step, parts - 1)).backward()
        early.append(optimizer._local_workers.launched)
        optimizer.step()
        optimizer.zero_grad(set_to_none=set_to_none)
    values = {name: p.detach().clone() for name, p in model.named_parameters()}
    return {"values": values, "shards": optimizer._local_workers.buckets, "early": early}


def _alone(parts: int) -> dict[str, Tensor]:
    """Plain SGD in one process on the mean over ranks of the summed losses."""
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        losses = [model(*_batch(rank, step, part)) for rank in range(SIZE) for part in range(parts)]
        torch.autograd.backward(torch.stack(losses).sum() / SIZE)
        optimizer.step()
        optimizer.zero_grad()
    return {name: p.detach() for name, p in model.named_parameters()}


@pytest.mark.parametrize("parts", [1, 3])
def test_accumulated_unused_and_tied_as_in_one_process(parts: int, ranks: Callable[[int], Ranks]) -> None:
    """With gradients that are kept as zeros where they accumulate, else dropped; buckets leave before backward is over."""
    expected = _alone(parts)
    for found in ranks(SIZE).run(_gloo, parts, parts == 1):
        for name, value in found["values"].items():
            torch.testing.assert_close(value, expected[name], rtol=0, atol=2e-6)
        assert torch.equal(found["values"]["dead"], torch.ones(5))
        assert found["shards"] >= 4
        assert min(found["early"]) >= 1  # the last layer's; the branch may hold up those before it
        assert max(found["early"]) < found["shards"]  # what holds the dead parameter never does
