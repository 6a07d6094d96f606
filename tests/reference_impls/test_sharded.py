"""Methods across the nodes of a model that FSDP2 buckets within them, 2 nodes of 2 ranks on gloo, beside whole parameters.

The same node's gradient, by the same method, on parameters that are not sharded: where a method goes by the element the bits are
the same.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard

from reference_impls import DataParallelOptimizer, ddp_hook, fsdp_hook
from reference_impls.frontends.attached import attach
from reference_impls.frontends.sharded import fsdp_optimizer
from tests.reference_impls.ranks import Ranks, told

WIDTH, STEPS, LR, PATIENCE_S = 6, 6, 0.05, 200.0
pytestmark = pytest.mark.gloo

EXACT: dict[str, dict[str, Any]] = {
    "allreduce-adamw": {},
    "lion-cub-1bit": {},
    "qsr-adamw": {},
    "allreduce": {"optimizer": lambda groups: torch.optim.RAdam(groups)},
    "slowmo-sgd": {"period": 2},
}
"""Methods that go by the element."""
CLOSE: dict[str, dict[str, Any]] = {"one-bit-adam": {"warmup_steps": 2}, "qsgd": {"bits": 8}}
"""Methods with a scale, a choice or a random number for each bucket: the same training, other numbers."""


def _net() -> nn.Sequential:
    """Sizes that do not divide by two: parts of the second rank of a node are shorter, one is empty."""
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(WIDTH, 7), nn.Tanh(), nn.Linear(7, 5), nn.Tanh(), nn.Linear(5, 1))


def _sharded(mesh: DeviceMesh) -> nn.Sequential:
    model = _net()
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh)
    return model


def _mesh() -> DeviceMesh:
    return init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))


def _loss(model: nn.Module, rank: int, step: int) -> Tensor:
    generator = torch.Generator().manual_seed(100 * step + rank)
    x, y = torch.randn(4, WIDTH, generator=generator), torch.randn(4, 1, generator=generator)
    return (model(x) - y).square().mean()


def _whole(method: str, options: dict[str, Any], rank: int, group: Any) -> list[Tensor]:
    """Trained unsharded, on the mean gradient of the node's two ranks."""
    model = _net()
    optimizer = DataParallelOptimizer(model, method, lr=LR, group=group, **options)
    node = rank - rank % 2
    for step in range(STEPS):
        optimizer.zero_grad()
        with optimizer.no_sync():
            (_loss(model, node, step) / 2).backward()
        (_loss(model, node + 1, step) / 2).backward()
        optimizer.step()
    found = [p.detach().clone() for p in model.parameters()]
    optimizer.release()
    return found


def _full(model: nn.Module) -> list[Tensor]:
    return [p.full_tensor().detach().clone() for p in model.parameters()]


def _both(rank: int, size: int) -> Any:
    mesh, found = _mesh(), {}
    group = mesh["replicate"].get_group()
    for method, options in {**EXACT, **CLOSE}.items():
        model = _sharded(mesh["shard"])
        optimizer = fsdp_optimizer(model, method, lr=LR, group=group, check="each", **options)
        for step in range(STEPS):
            optimizer.zero_grad()
            _loss(model, rank, step).backward()
            optimizer.step()
        found[method] = _full(model), _whole(method, options, rank, group), optimizer.ledger.totals()
        optimizer.release()
    return found


def test_a_method_that_goes_by_the_element_is_the_same_on_parts_to_the_bit(
    ranks: Callable[[int], Ranks],
) -> None:
    start = [p.detach() for p in _net().parameters()]
    for result in ranks(4).run(_both, timeout_s=PATIENCE_S):
        assert isinstance(result, dict), result
        for method, (parts, whole, totals) in result.items():
            assert {row["group"] for row in totals} <= {"world"}, method  # of the nodes; nothing within them
            assert sum(row["wire_bytes"] for row in totals) > 0, method
            moved = sum(float((a - b).square().sum()) for a, b in zip(whole, start, strict=True)) ** 0.5
            apart = sum(float((a - b).square().sum()) for a, b in zip(parts, whole, strict=True)) ** 0.5
            if method in EXACT:
                assert moved > 0
                assert apart == 0, (method, apart)
            else:
                assert 0 < apart < moved, (method, apart, moved)


# ---- what is refused -----------------------------------------------------------------------------------------------------


def _refused(rank: int, size: int) -> Any:
    mesh = _mesh()
    group, shard = mesh["replicate"].get_group(), mesh["shard"]
    model, hybrid, half = _sharded(shard), _net(), _net()
    for layer in (hybrid[0], hybrid):
        fully_shard(layer, mesh=mesh)
    fully_shard(half[0], mesh=shard)
    found = {
        name: told(lambda name=name: fsdp_optimizer(model, name, group=group))
        for name in ("powersgd", "one-bit-lamb", "lag", "root-sgd", "dgc")
    }
    found["2-D"] = told(lambda: fsdp_optimizer(hybrid, "signum", group=group))
    found["half"] = told(lambda: fsdp_optimizer(half, "signum", group=group))
    found["not sharded"] = told(lambda: fsdp_optimizer(_net(), "signum", group=group))
    return found


REMEDIES = {
    "powersgd": "goes by the element or the bucket",
    "one-bit-lamb": "goes by the element or the bucket",
    "lag": "goes by the element or the bucket",
    "dgc": "goes by the element or the bucket",
    "root-sgd": "train without FSDP",
    "2-D": 'mesh["shard"]',
    "half": "call fully_shard on the model itself too",
    "not sharded": "call fully_shard first",
}


def test_what_needs_more_than_parts_is_refused_with_what_to_do(ranks: Callable[[int], Ranks]) -> None:
    for result in ranks(4).run(_refused, timeout_s=PATIENCE_S):
        assert isinstance(result, dict), result
        assert result.keys() == REMEDIES.keys()
        for what, remedy in REMEDIES.items():
            assert remedy in result[what], (what, result[what])


# ---- which group, and which entrance -------------------------------------------------------------------------------------


def _entrances(sharded: bool, mesh: DeviceMesh) -> dict[str, Callable[[Any], Any]]:
    """Every way into the package that takes a process group, each with a model that it would take, or would not."""

    def attached(group: Any, pairs: bool) -> Any:
        model = made()
        own = torch.optim.SGD(model.parameters(), lr=0.1)
        return attach(own, list(model.named_parameters()) if pairs else model, "qsgd", group=group)

    def made() -> nn.Module:
        return _sharded(mesh["shard"]) if sharded else _net()

    return {
        "DataParallelOptimizer": lambda group: DataParallelOptimizer(made(), "qsgd", group=group),
        "pairs": lambda group: DataParallelOptimizer(made().named_parameters(), "qsgd", group=group),
        "attach": lambda group: attached(group, False),
        "attach pairs": lambda group: attached(group, True),
        "ddp_hook": lambda group: ddp_hook("qsgd", made(), group=group),
        "fsdp_hook": lambda group: fsdp_hook(made(), "qsgd", group=group),
        "fsdp_optimizer": lambda group: fsdp_optimizer(made(), "qsgd", group=group),
    }


WHOLE = ("DataParallelOptimizer", "pairs", "attach", "attach pairs", "ddp_hook")
PARTS = ("fsdp_hook", "fsdp_optimizer")


def _misused(rank: int, size: int) -> dict[str, str]:
    mesh = _mesh()
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    groups = {"foreign": pairs[1 - rank // 2], "mesh": mesh["replicate"], "list": [0, 1, 2, 3]}
    found = {}
    for sharded, names in ((False, WHOLE), (True, PARTS)):
        entrances = _entrances(sharded, mesh)
        for name in names:
            for what, group in groups.items():
                found[f"{what}, {sharded}, {name}"] = told(partial(entrances[name], group))
    for name in PARTS:
        own = mesh["shard"].get_group()
        found[f"shard, True, {name}"] = told(partial(entrances[name], own))
    for name in WHOLE:
        found[f"DTensor, True, {name}"] = told(partial(entrances[name], mesh["replicate"].get_group()))
    return found


def test_a_wrong_group_and_a_wrong_entrance_say_what_to_give(ranks: Callable[[int], Ranks]) -> None:
    remedies = {
        "foreign": ("UsageError", "is no member of the process group that was given as group="),
        "mesh": (
            "UsageError",
            'no DeviceMesh: give of one dimension of it a group, mesh.get_group("replicate")',
        ),
        "list": ("UsageError", "no list: give what torch.distributed.new_group(ranks) answers"),
        "shard": (
            "UnsupportedError",
            'give group=mesh["replicate"].get_group(), the ranks that hold the same parts',
        ),
        "DTensor": ("UnsupportedError", "fsdp_hook"),
    }
    for result in ranks(4).run(_misused, timeout_s=PATIENCE_S):
        assert isinstance(result, dict), result
        assert len(result) == 3 * len(WHOLE) + 4 * len(PARTS) + len(WHOLE)
        for how, message in result.items():
            kind, remedy = remedies[how.partition(",")[0]]
            assert message.startswith(f"{kind}: "), (how, message)
            assert remedy in message, (how, message)
