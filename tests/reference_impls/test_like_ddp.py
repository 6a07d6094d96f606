"""Trainings that DistributedDataParallel gets right, on real processes, beside it or beside one process; and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from reference_impls import DataParallelOptimizer, create
from reference_impls.core.errors import UnknownOptionError, UsageError
from reference_impls.frontends.attached import attach
from tests.reference_impls.frontends import loss, named_values, net
from tests.reference_impls.gloo import Ranks, outcome

pytestmark = pytest.mark.gloo
SIZE, STEPS, WIDTH = 2, 6, 12
RANKS = 3
BUCKETS = {"bucket_bytes": 128}  # several, so that some leave during backward


def _close(results: list[Any]) -> None:
    """(ours, theirs) of every rank are the same training, and all replicas are equal."""
    for result in results:
        ours, theirs = result
        for name, value in ours.items():
            torch.testing.assert_close(value, theirs[name], rtol=0, atol=2e-6)
            assert torch.equal(value, results[0][0][name])


def _norms(rank: int, size: int, clip: float) -> Any:
    """What ours says of the norm of the mean gradient, and what DDP's clipping answers; and the parameters.

    A norm may be logged between backward and step, by a clip that changes nothing.
    """
    ours, theirs = net(), net()
    optimizer = DataParallelOptimizer(ours, "allreduce-sgd", lr=0.05, clip_norm=clip, **BUCKETS)
    wrapped, plain = DistributedDataParallel(theirs), torch.optim.SGD(theirs.parameters(), lr=0.05)
    seen = [optimizer.last_grad_norm]
    for step in range(STEPS):
        loss(ours, rank, step).backward()
        assert nn.utils.clip_grad_norm_(ours.parameters(), float("inf")) > 0
        optimizer.step()
        optimizer.zero_grad()
        loss(wrapped, rank, step).backward()
        expected = nn.utils.clip_grad_norm_(theirs.parameters(), clip)
        plain.step()
        plain.zero_grad()
        seen.append((optimizer.last_grad_norm, expected))
    without = DataParallelOptimizer(net(), "allreduce-sgd", lr=0.05)
    return seen, without.last_grad_norm, named_values(ours), named_values(theirs)


@pytest.mark.parametrize("clip", [0.05, float("inf")])
def test_the_norm_of_the_last_step_is_that_of_the_mean_before_clipping(clip, ranks):
    results = ranks(SIZE).run(_norms, clip)
    for (first, *norms), without, _, _ in results:
        assert first is without is None
        for ours, theirs in norms:
            assert (ours.dim(), ours.dtype) == (0, torch.float64)
            torch.testing.assert_close(ours.float(), theirs, rtol=1e-5, atol=0)
    _close([result[2:] for result in results])


# ---- frozen parameters and buffers ---------------------------------------------------------------------------------------


def _batch_norm(rank: int, size: int) -> Any:
    """Of two micro-batches a step: buffers after every step, and at last those of ours and of DDP."""
    trained, seen = [], []
    for ours in (True, False):
        model = net(seed=rank)
        model.insert(4, nn.BatchNorm1d(5))
        wrapped: nn.Module = model
        optimizer: torch.optim.Optimizer
        if ours:
            optimizer = DataParallelOptimizer(model, "allreduce-sgd", lr=0.05, momentum=0.9)
            no_sync = optimizer.no_sync
        else:
            wrapped = DistributedDataParallel(model)
            optimizer, no_sync = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), wrapped.no_sync
        for step in range(STEPS):
            for part in range(2):
                with nullcontext() if part else no_sync():
                    loss(wrapped, rank, 10 * step + part).backward()
            if not ours:
                seen.append({k: v for k, v in named_values(model).items() if "4." in k})
            optimizer.step()
            optimizer.zero_grad()
        if not ours:
            wrapped(torch.zeros(2, 6))  # DDP synchronises before a forward
            with torch.no_grad():
                for name, buffer in model.named_buffers():
                    buffer.copy_(seen[-1][name])
        trained.append(named_values(model))
    return trained


def test_batch_norms_buffers_are_those_of_rank_zero_as_with_ddp(ranks: Callable[[int], Ranks]) -> None:
    """Rank 0's buffers are DDP's on rank 0, and every rank has them."""
    first, *others = ranks(SIZE).run(_batch_norm)
    _close([first])
    for ours, _ in others:
        assert all(torch.equal(value, first[0][name]) for name, value in ours.items())


# ---- accumulated gradients, parameters that backward passes by, and tied weights, overlapped with backward -----------------


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


def _accumulated(rank: int, size: int, parts: int, set_to_none: bool) -> dict[str, Any]:
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
    return {"values": named_values(model), "shards": optimizer._local_workers.buckets, "early": early}


def _in_one_process(parts: int) -> dict[str, Tensor]:
    """Plain SGD in one process on the mean over ranks of the summed losses."""
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        losses = [model(*_batch(rank, step, part)) for rank in range(RANKS) for part in range(parts)]
        torch.autograd.backward(torch.stack(losses).sum() / RANKS)
        optimizer.step()
        optimizer.zero_grad()
    return named_values(model)


@pytest.mark.parametrize("parts", [1, 3])
def test_accumulated_unused_and_tied_as_in_one_process(parts: int, ranks: Callable[[int], Ranks]) -> None:
    """With gradients that are kept as zeros where they accumulate, else dropped; buckets leave before backward is over."""
    expected = _in_one_process(parts)
    for found in ranks(RANKS).run(_accumulated, parts, parts == 1):
        for name, value in found["values"].items():
            torch.testing.assert_close(value, expected[name], rtol=0, atol=2e-6)
        assert torch.equal(found["values"]["dead"], torch.ones(5))
        assert found["shards"] >= 4
        assert min(found["early"]) >= 1  # the last layer's; the branch may hold up those before it
        assert max(found["early"]) < found["shards"]  # what holds the dead parameter never does


# ---- what is refused -------------------------------------------------------------------------------------------------------


def test_a_model_wrapped_in_ddp_is_refused_by_that_name(ranks: Callable[[int], Ranks]) -> None:
    for result in ranks(SIZE).run(_wrapped):
        for how, (kind, message) in result.items():
            assert kind == UsageError.__name__, (how, kind, message)
            assert "DistributedDataParallel" in message, how


def _wrapped(rank: int, size: int) -> dict[str, Any]:
    bare = net()
    model = DistributedDataParallel(bare)
    optimizer = DataParallelOptimizer(bare.named_parameters(), "allreduce-sgd", **BUCKETS)

    def train() -> None:
        for step in range(2):
            loss(model, rank, step).backward()
            optimizer.step()
            optimizer.zero_grad()

    given = partial(DataParallelOptimizer, DistributedDataParallel(net()), "allreduce-sgd")
    return {"given": outcome(given), "wrapped": outcome(train)}


def _scaled(rank: int, size: int) -> Any:
    """A GradScaler, with gradients unscaled before the step or not: on all ranks alike, whoever overflows."""
    found = {}
    for how in ("plain", "unscaled", "attached"):
        model, scaler = net(), torch.amp.GradScaler("cpu", init_scale=1000.0)
        optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
        if how == "attached":
            attach(optimizer, model, "allreduce", **BUCKETS)
        else:
            optimizer = DataParallelOptimizer(model, "allreduce-sgd", lr=0.1, **BUCKETS)
        before = named_values(model)
        scaler.scale(loss(model, rank, 0) * (float("inf") if rank else 1.0)).backward()
        if how == "unscaled":
            scaler.unscale_(optimizer)
        error = outcome(partial(scaler.step, optimizer))
        found[how] = error, all(torch.equal(v, before[k]) for k, v in named_values(model).items())
    return found


def test_a_grad_scaler_is_refused_and_scaled_gradients_are_never_applied(ranks):
    for result in ranks(SIZE).run(_scaled):
        for how, ((kind, message), untouched) in result.items():
            assert (kind, untouched) == ("UsageError", True), (how, kind, message)
            assert "bfloat16 autocast" in message
    with pytest.raises(UnknownOptionError, match="train with bfloat16 autocast"):
        create("lion-cub-1bit", scaler=None)
