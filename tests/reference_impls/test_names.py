"""One name a parameter: what `torch.compile` and ``checkpoint_wrapper`` put into names changes neither bits nor checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from bandwise import simulate
from reference_impls import DataParallelOptimizer, ddp_hook, fsdp_hook
from reference_impls.frontends.attached import attach
from tests.reference_impls.ranks import Ranks

DRAWN = {"rank": 1, "warm_start": False, "min_compression_rate": 1.0}
"""PowerSGD draws its factors by the parameters' names, anew in every step."""
LR = 0.05
SETTINGS: dict[str, Any] = {"seed": 3, "bucket_bytes": 256}


def _net(wrap: str) -> Any:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4))
    if "checkpointed" in wrap:
        model[0] = checkpoint_wrapper(model[0])
    return checkpoint_wrapper(model) if "as a whole" in wrap else model


def _compiled(model: Any, wrap: str) -> Any:
    return torch.compile(model, backend="eager") if "compiled" in wrap else model


def _loss(model: Any, rank: int, step: int) -> Tensor:
    generator = torch.Generator().manual_seed(100 * step + rank)
    x, y = torch.randn(5, 6, generator=generator), torch.randn(5, 4, generator=generator)
    return (model(x) - y).square().mean()


class _Optimizer:
    """An entrance: the model that is trained, who holds the method's state, who steps, and how it ends."""

    def __init__(self, wrap: str) -> None:
        self.model = _compiled(_net(wrap), wrap)
        pairs = list(self.model.named_parameters())
        groups = [{"params": pairs[:2]}, {"params": pairs[2:], "lr": LR / 2}]
        self.state = self.steps = DataParallelOptimizer(
            groups, "powersgd", lr=LR, optimizer="adamw", **DRAWN, **SETTINGS
        )
        self.end = self.state.release


class _Attach:
    def __init__(self, wrap: str) -> None:
        self.model = _compiled(_net(wrap), wrap)
        self.steps = torch.optim.AdamW(self.model.named_parameters(), lr=LR)  # with its own param_names
        self.state = attach(self.steps, self.model, "powersgd", **DRAWN, **SETTINGS)
        self.end = self.state.release


class _DDP:
    def __init__(self, wrap: str) -> None:
        model = _net(wrap)
        ddp = DistributedDataParallel(model)
        self.model = _compiled(ddp, wrap)
        self.state, hook = ddp_hook("powersgd", self.model, **DRAWN, **SETTINGS)
        ddp.register_comm_hook(self.state, hook)
        self.steps = torch.optim.SGD(model.parameters(), lr=LR)
        self.end = self.state.release


class _FSDP:
    def __init__(self, wrap: str) -> None:
        mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicate", "shard"))
        model, across = _net(wrap), mesh["replicate"].get_group()
        inner = model._checkpoint_wrapped_module if "as a whole" in wrap else model
        for layer in (inner[0], inner[2], model):
            fully_shard(layer, mesh=mesh["shard"])
        self.model = _compiled(model, wrap)
        self.state = fsdp_hook(self.model, "powersgd", group=across, seed=3, **DRAWN)
        self.steps = torch.optim.SGD(model.parameters(), lr=LR)
        self.end = self.state.release


ENTRANCES: dict[str, Callable[[str], Any]] = {
    "optimizer": _Optimizer,
    "attach": _Attach,
    "ddp_hook": _DDP,
    "fsdp_hook": _FSDP,
}


def _values(model: Any) -> list[Tensor]:
    local = [p.to_local() if hasattr(p, "to_local") else p for p in model.parameters()]
    return [p.detach().clone() for p in local]


def _run(own: Any, rank: int, first: int, last: int) -> list[Tensor]:
    for step in range(first, last):
        own.steps.zero_grad()
        _loss(own.model, rank, step).backward()
        own.steps.step()
    return _values(own.model)


def _set(model: Any, values: list[Tensor]) -> None:
    with torch.no_grad():
        for param, value in zip(model.parameters(), values, strict=True):
            (param.to_local() if hasattr(param, "to_local") else param).copy_(value)


def _crossed(rank: int, size: int, entrance: str, wraps: list[str]) -> list[bool]:
    """Whether the trajectories are equal; and those that go on from a checkpoint of another wrapping, both ways."""
    ends, saved, found = {}, {}, []
    for wrap in ("bare", *wraps):
        own = ENTRANCES[entrance](wrap)
        values = _run(own, rank, 0, 2)
        saved[wrap] = own.state.state_dict(), values, own.steps.state_dict()
        ends[wrap] = _run(own, rank, 2, 4)
        own.end()
        found.append(all(map(torch.equal, ends[wrap], ends["bare"])))
    for before, after in [pair for wrap in wraps for pair in (("bare", wrap), (wrap, "bare"))]:
        own = ENTRANCES[entrance](after)
        state, values, optimizer = saved[before]
        _set(own.model, values)
        if own.steps is not own.state:
            own.steps.load_state_dict(optimizer)
        own.state.load_state_dict(state)
        found.append(all(map(torch.equal, _run(own, rank, 2, 4), ends["bare"])))
        own.end()
    return found


@pytest.mark.gloo
@pytest.mark.parametrize("entrance", ENTRANCES)
def test_a_wrapped_model_has_the_bits_and_the_checkpoints_of_the_bare_one(
    entrance: str, ranks: Callable[[int], Ranks]
) -> None:
    wraps = ["compiled, checkpointed as a whole too"]
    for found in ranks(2).run(_crossed, entrance, wraps, timeout_s=180.0):
        assert found == [True] * (1 + 3 * len(wraps)), found


def test_a_simulation_goes_by_the_same_names() -> None:
    def data(rank: int, workers: int, step: int) -> tuple[int, int]:
        return rank, step

    def made(wrap: str, steps: int, state: Any = None) -> Any:
        return simulate(
            _net(wrap), lambda model, batch: _loss(model, *batch), data, "powersgd", workers=2, lr=LR, steps=steps,
            state=state, optimizer="adamw", **SETTINGS, **DRAWN,
        )  # fmt: skip

    bare = made("bare", 4)
    for result in (made("checkpointed", 4), made("checkpointed", 4, made("bare", 2).state_dict())):
        assert result.parameters.keys() == bare.parameters.keys()
        assert all(torch.equal(value, bare.parameters[name]) for name, value in result.parameters.items())
