"""Checkpoints by the usual ways keep what every rank has of its own: torch.distributed.checkpoint, its state_dict functions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from reference_impls import DataParallelOptimizer, ddp_hook, fsdp_hook
from reference_impls.frontends.attached import attach
from reference_impls.frontends.sharded import fsdp_optimizer
from tests.reference_impls.ranks import Ranks, told
from tests.reference_impls.states import contents

pytestmark = pytest.mark.gloo
LR, CUT, STEPS, PATIENCE_S = 0.05, 3, 6, 200.0
SETTINGS: dict[str, Any] = {"seed": 3, "bucket_bytes": 128}
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "residuals by tensor": ("powersgd", {"optimizer": "adamw", "rank": 1, "min_compression_rate": 1.0}),
    "a part of the server": ("one-bit-adam", {"warmup_steps": 1}),
    "an exchange under way": ("streaming-diloco", {"period": 4, "fragments": 2, "overlap": 2}),
    "nothing": ("allreduce-adamw", {}),
}


def _net(seed: int = 1) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4))


def _step(model: Any, optimizer: Any, rank: int, step: int) -> None:
    """A step that leaves the gradients where they are."""
    optimizer.zero_grad()
    generator = torch.Generator().manual_seed(100 * step + rank)
    x, y = torch.randn(5, 6, generator=generator), torch.randn(5, 4, generator=generator)
    (model(x) - y).square().mean().backward()
    optimizer.step()


def _values(model: nn.Module) -> list[Tensor]:
    local = [p.to_local() if hasattr(p, "to_local") else p for p in model.parameters()]
    return [p.detach().clone() for p in local]


def _go_on(model: Any, optimizer: Any, rank: int) -> list[Tensor]:
    for step in range(CUT, STEPS):
        _step(model, optimizer, rank, step)
    return _values(model)


Made = tuple[Any, Any]


def _save_state_dict(folder: str, model: Any, optimizer: Any) -> None:
    dcp.save({"opt": optimizer.state_dict()}, checkpoint_id=folder)


def _load_state_dict(folder: str, model: Any, optimizer: Any) -> None:
    state = {"opt": optimizer.state_dict()}
    dcp.load(state, checkpoint_id=folder)
    optimizer.load_state_dict(state["opt"])


def _save_stateful(folder: str, model: Any, optimizer: Any) -> None:
    dcp.save({"opt": optimizer}, checkpoint_id=folder)


def _load_stateful(folder: str, model: Any, optimizer: Any) -> None:
    dcp.load({"opt": optimizer}, checkpoint_id=folder)


WAYS = {
    "dcp.save of state_dict()": (_save_state_dict, _load_state_dict),
    "dcp.save of the optimizer": (_save_stateful, _load_stateful),
}


def _resumed(rank: int, size: int, method: str, folder: str) -> dict[str, bool]:
    """Whether a training that was saved each way goes on in fresh objects, which start elsewhere, to the bit."""
    name, options = METHODS[method]

    def made(seed: int) -> Made:
        model = _net(seed)
        return model, DataParallelOptimizer(model, name, lr=LR, **SETTINGS, **options)

    model, optimizer = made(1)
    for step in range(CUT):
        _step(model, optimizer, rank, step)
    for way, (save, _) in WAYS.items():
        save(f"{folder}/{way}", model, optimizer)
    torch.save(optimizer.state_dict(), f"{folder}/{rank}.pt")
    whole = _go_on(model, optimizer, rank)
    optimizer.release()
    found = {}
    for way, (_, load) in WAYS.items():
        model, optimizer = made(2)
        load(f"{folder}/{way}", model, optimizer)
        found[way] = all(map(torch.equal, _go_on(model, optimizer, rank), whole))
        optimizer.release()
    model, optimizer = made(2)
    optimizer.load_state_dict(torch.load(f"{folder}/{rank}.pt", weights_only=True))
    found["a file a rank"] = all(map(torch.equal, _go_on(model, optimizer, rank), whole))
    optimizer.release()
    return found


@pytest.mark.parametrize("method", METHODS)
def test_a_training_goes_on_to_the_bit_from_every_way_of_saving(
    method: str, ranks: Callable[[int], Ranks], tmp_path: Path
) -> None:
    for found in ranks(2).run(_resumed, method, str(tmp_path), timeout_s=PATIENCE_S):
        assert isinstance(found, dict), found
        assert [way for way, same in found.items() if not same] == []


# ---- what else holds a method's state ------------------------------------------------------------------------------------


class _Attached:
    def __init__(self) -> None:
        self.model = _net()
        self.steps = torch.optim.AdamW(self.model.parameters(), lr=LR)
        self.state = attach(
            self.steps, self.model, "streaming-diloco", **SETTINGS, **METHODS["an exchange under way"][1]
        )


class _Hooked:
    def __init__(self) -> None:
        self.model = DistributedDataParallel(_net())
        self.state, hook = ddp_hook("qsgd", self.model, bits=4, error_feedback=True, **SETTINGS)
        self.model.register_comm_hook(self.state, hook)
        self.steps = torch.optim.SGD(self.model.parameters(), lr=LR)


class _Sharded:
    def __init__(self, how: str) -> None:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
        self.model, across = _net(), mesh["replicate"].get_group()
        for layer in (self.model[0], self.model[2], self.model):
            fully_shard(layer, mesh=mesh["shard"])
        if how == "fsdp_hook":
            self.state: Any = fsdp_hook(self.model, "qsgd", group=across, bits=4, error_feedback=True)
            self.steps: Any = torch.optim.SGD(self.model.parameters(), lr=LR)
        else:
            self.steps = self.state = fsdp_optimizer(self.model, how, group=across, lr=LR, **SETTINGS)


HOLDERS: dict[str, tuple[int, Callable[[], Any]]] = {
    "attach": (2, _Attached),
    "ddp_hook": (2, _Hooked),
    "fsdp_hook": (4, lambda: _Sharded("fsdp_hook")),
    "fsdp_optimizer, momenta": (4, lambda: _Sharded("lion-cub-1bit")),
}


def _resumed_holder(rank: int, size: int, holder: str, folder: str) -> list[bool]:
    """By dcp.save of the state and of the object; the model, which is a hook's user's, is saved beside it."""
    own = HOLDERS[holder][1]()
    for step in range(CUT):
        _step(own.model, own.steps, rank, step)
    values = _values(own.model)
    dcp.save({"state": own.state.state_dict()}, checkpoint_id=f"{folder}/dict")
    dcp.save({"state": own.state}, checkpoint_id=f"{folder}/object")
    whole = _go_on(own.model, own.steps, rank)
    own.state.release()
    found = []
    for way in ("dict", "object"):
        own = HOLDERS[holder][1]()
        with torch.no_grad():
            for param, value in zip(own.model.parameters(), values, strict=True):
                (param.to_local() if hasattr(param, "to_local") else param).copy_(value)
        state = {"state": own.state if way == "object" else own.state.state_dict()}
        dcp.load(state, checkpoint_id=f"{folder}/{way}")
        if way == "dict":
            own.state.load_state_dict(state["state"])
        found.append(all(map(torch.equal, _go_on(own.model, own.steps, rank), whole)))
        own.state.release()
    return found


@pytest.mark.parametrize("holder", HOLDERS)
def test_hooks_attached_and_sharded_ones_too(
    holder: str, ranks: Callable[[int], Ranks], tmp_path: Path
) -> None:
    for found in ranks(HOLDERS[holder][0]).run(_resumed_holder, holder, str(tmp_path), timeout_s=PATIENCE_S):
        assert set(found) == {True}, found


# ---- what would be lost is refused ---------------------------------------------------------------------------------------


def _lost(rank: int, size: int, folder: str) -> dict[str, str]:
    model = _net()
    optimizer = DataParallelOptimizer(model, "qsgd", lr=LR, error_feedback=True, **SETTINGS)
    _step(model, optimizer, rank, 0)
    found = {"by parameter": told(lambda: get_state_dict(model, optimizer))}
    states: list[Any] = [optimizer.state_dict()]
    dist.broadcast_object_list(states, src=0)  # the main process alone has written
    optimizer.release()
    model = _net()
    optimizer = DataParallelOptimizer(model, "qsgd", lr=LR, error_feedback=True, **SETTINGS)
    fresh = optimizer.state_dict()["param_groups"][0]
    mixed = {**fresh, "shared": states[0]["param_groups"][0]["shared"]}
    found["mixed"] = told(lambda: optimizer.load_state_dict({"state": {}, "param_groups": [mixed]}))
    old = contents(states[0])
    found["old"] = told(lambda: optimizer.load_state_dict({**old, "version": 1}))
    found["lone"] = told(lambda: optimizer.load_state_dict(states[0]))
    optimizer.release()
    return found


def test_what_would_be_lost_is_refused_with_the_remedy(ranks: Callable[[int], Ranks], tmp_path: Path) -> None:
    for rank, found in enumerate(ranks(2).run(_lost, str(tmp_path))):
        assert isinstance(found, dict), found
        assert 'save {"model": model, "optimizer": optimizer}' in found["by parameter"]
        assert "what ranks share is of step 1" in found["mixed"]
        assert "All ranks must save" in found["mixed"]
        assert "state version 1, this code reads 2" in found["old"]
        if rank == 0:
            assert found["lone"] == "no error"
        else:
            assert "every rank has its own state 'worker_error'" in found["lone"]
            assert "All ranks must save: each a file of its own" in found["lone"]
