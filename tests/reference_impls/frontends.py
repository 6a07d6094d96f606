"""Every way into the package around one small model, for tests that say the same of several."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from reference_impls import DataParallelOptimizer, ddp_hook, fsdp_hook
from reference_impls.frontends.attached import attach
from reference_impls.frontends.sharded import fsdp_optimizer

LR = 0.05
SETTINGS: dict[str, Any] = {"seed": 3, "bucket_bytes": 128}
FRONTENDS = {"DataParallelOptimizer": 2, "attach": 2, "ddp_hook": 2, "fsdp_hook": 4, "fsdp_optimizer": 4}
"""On how many processes."""


def net(seed: int = 1, wrap: str = "") -> Any:
    """Where FSDP2 halves it, second parts are shorter, and one is empty. wrap: "checkpointed" puts words into names."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 5), nn.Tanh(), nn.Linear(5, 1))
    if "checkpointed" in wrap:
        model[0] = checkpoint_wrapper(model[0])
    return model


def loss(model: nn.Module, rank: int, step: int, widths: tuple[int, int] = (6, 1), **options: Any) -> Tensor:
    """On data of the rank and the step; widths: of what goes into the model and comes out."""
    generator = torch.Generator().manual_seed(100 * step + rank)
    x, y = (torch.randn(4, width, generator=generator) for width in widths)
    return (model(x, **options) - y).square().mean()


def two_nodes(size: int = 4) -> DeviceMesh:
    return init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("replicate", "shard"))


def sharded(mesh: DeviceMesh, model: Any = None, **policy: Any) -> Any:
    model = net() if model is None else model
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh, mp_policy=MixedPrecisionPolicy(**policy))
    return model


def enter(frontend, method, options, size, seed=1, wrap=""):
    """model: what is called. state: who holds the method's state. steps: who steps. wrap: "compiled" and what `net` knows."""
    model = net(seed, wrap)
    if frontend.startswith("fsdp"):
        mesh = two_nodes(size)
        across = mesh["replicate"].get_group()
        sharded(mesh["shard"], model)
    if frontend == "ddp_hook":
        model = DistributedDataParallel(model)
    bare, model = model, torch.compile(model, backend="eager") if "compiled" in wrap else model
    if frontend == "DataParallelOptimizer":
        steps: Any = DataParallelOptimizer(model.named_parameters(), method, lr=LR, **SETTINGS, **options)
        return SimpleNamespace(model=model, state=steps, steps=steps)
    if frontend == "fsdp_optimizer":
        steps = fsdp_optimizer(model, method, group=across, lr=LR, **SETTINGS, **options)
        return SimpleNamespace(model=model, state=steps, steps=steps)
    if frontend == "attach":
        steps = torch.optim.AdamW(model.named_parameters(), lr=LR)  # with its own param_names
        return SimpleNamespace(
            model=model, state=attach(steps, model, method, **SETTINGS, **options), steps=steps
        )
    if frontend == "ddp_hook":
        state, hook = ddp_hook(method, model, **SETTINGS, **options)
        bare.register_comm_hook(state, hook)
    else:
        state = fsdp_hook(model, method, group=across, seed=3, **options)
    return SimpleNamespace(model=model, state=state, steps=torch.optim.SGD(bare.parameters(), lr=LR))


def values(model: nn.Module) -> list[Tensor]:
    """This rank's own parts of the parameters."""
    return [local(p).detach().clone() for p in model.parameters()]


def named_values(model: nn.Module) -> dict[str, Tensor]:
    """Of parameters and buffers."""
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def local(x: Any) -> Tensor:
    return x.to_local() if hasattr(x, "to_local") else x


def run(own: Any, rank: int, first: int, last: int) -> list[Tensor]:
    """Steps first .. last, the last of which leaves its gradients where they are; the parameters after them."""
    for step in range(first, last):
        own.steps.zero_grad()
        loss(own.model, rank, step).backward()
        own.steps.step()
    return values(own.model)
