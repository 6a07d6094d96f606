"""A gradient that is not finite, on one rank, in one step: under a hook the training goes on as one that never had that step."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from reference_impls import create, ddp_hook, fsdp_hook, list_algorithms
from reference_impls.frontends.hooks import only_reduces
from tests.reference_impls.ranks import Ranks
from tests.reference_impls.states import contents

STEPS, BAD, WIDTH = 6, 2, 8
OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "qsgd": {"error_feedback": True},
    "random-k": {"error_feedback": True},
    "dq-sgd": {"total_steps": STEPS + 1},
    "top-k": {"form": "two-phase"},
}
METHODS = [a for a in list_algorithms() if only_reduces(create(a, **OPTIONS.get(a, {})).algorithm)]
FEEDBACK = ("powersgd", "qsgd", "top-k")
pytestmark = pytest.mark.gloo


def _net() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Linear(WIDTH, 16), nn.Tanh(), nn.Linear(16, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 3)
    )


def _wrapped(name: str, hook: str) -> tuple[nn.Module, Any]:
    model = _net()
    if hook == "ddp":
        ddp = DistributedDataParallel(model)
        state, function = ddp_hook(name, ddp, bucket_bytes=256, **OPTIONS.get(name, {}))
        ddp.register_comm_hook(state, function)
        return ddp, state
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicate", "shard"))
    for part in (model[0], model[2], model):
        fully_shard(part, mesh=mesh["shard"])
    return model, fsdp_hook(model, name, group=mesh["replicate"].get_group(), **OPTIONS.get(name, {}))


def _local(x: Any) -> Tensor:
    return x.to_local() if hasattr(x, "to_local") else x


def _all_bad(x: Tensor, value: float) -> Tensor:
    """x in forward, `value` times a gradient in backward."""
    return x + (x - x.detach()) * (value - 1)


def _train(rank: int, size: int, name: str, hook: str, value: float) -> Any:
    """With GradScaler's own rules in the open, since it takes no sharded parameters: state before and after the bad step, the
    norms there, the final scale and whether all is finite at the end."""
    module, state = _wrapped(name, hook)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    scale, found = 1024.0, {}
    for step in range(STEPS):
        generator = torch.Generator().manual_seed(100 * step + rank)
        x, y = torch.randn(4, WIDTH, generator=generator), torch.randn(4, 3, generator=generator)
        optimizer.zero_grad()
        before = contents(state.state_dict())
        out = module(x)
        if (step, rank) == (BAD, 1):
            out = _all_bad(out, value)
        ((out - y).square().mean() * scale).backward()
        norm = torch.stack([_local(p.grad).norm() for p in module.parameters()]).norm()
        if step == BAD:
            after = contents(state.state_dict())
            found = {"before": before["slots"], "after": after["slots"], "norm": float(norm)}
            spent = {"spent"}  # of DQ-SGD's budget: what has been sent has been sent
            found["counters"] = [
                {k: v for k, v in x["counters"].items() if k not in spent} for x in (before, after)
            ]
        if not norm.isfinite():
            scale /= 2
            continue
        for p in module.parameters():
            p.grad.div_(scale)
        optimizer.step()
    return {**found, "scale": scale, "parameters": [_local(p).detach().clone() for p in module.parameters()]}


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_equal(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(_equal, a, b))
    return bool(a == b)


def _check(results: list[Any]) -> None:
    for own in results:
        assert isinstance(own, dict), own
        assert own["norm"] == math.inf
        assert own["scale"] == 512
        assert _equal(own["before"], own["after"])
        assert _equal(*own["counters"])
        assert all(p.isfinite().all() for p in own["parameters"])
    assert all(map(torch.equal, *(own["parameters"] for own in results)))


@pytest.mark.parametrize("value", [math.inf, pytest.param(math.nan, marks=pytest.mark.full)])
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in FEEDBACK else pytest.mark.full) for n in METHODS]
)
def test_one_step_that_is_not_finite_leaves_the_state_under_ddp(
    ranks: Callable[[int], Ranks], name: str, value: float
) -> None:
    _check(ranks(2).run(_train, name, "ddp", value))


@pytest.mark.parametrize("name", FEEDBACK[:2])
def test_one_step_that_is_not_finite_leaves_the_state_under_fsdp(
    ranks: Callable[[int], Ranks], name: str
) -> None:
    _check(ranks(2).run(_train, name, "fsdp", math.inf))
