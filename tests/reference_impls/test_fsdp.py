"""Methods across the nodes of a model that FSDP2 buckets within them, 2 nodes of 2 ranks on gloo.

As a hook, uncompressed, it is native HSDP to the bit, with micro-batches too; compressed it goes across nodes alone. As an
optimizer, a method that goes by the element has the bits that it has on parameters that are not sharded.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

from reference_impls import DataParallelOptimizer, ddp_hook, fsdp_hook
from reference_impls.core.errors import UnsupportedError
from reference_impls.frontends.attached import attach
from reference_impls.frontends.sharded import fsdp_optimizer
from tests.reference_impls.frontends import LR, enter, local, loss, net, run, sharded, two_nodes, values
from tests.reference_impls.gloo import Ranks, told
from tests.reference_impls.states import contents

STEPS = 3
pytestmark = pytest.mark.gloo


# ---- as a hook -------------------------------------------------------------------------------------------------------------


def _train(model: Any, rank: int, first: int, last: int, gate: str = "") -> list[Tensor]:
    """Two micro-batches a step where there is a gate for the first. The gradients of the last step, this rank's parts."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR)
    for step in range(first, last):
        optimizer.zero_grad()
        if gate:
            getattr(model, gate, lambda on: None)(False)
            model.set_is_last_backward(False)
            loss(model, rank, 50 + step).backward()
            getattr(model, gate, lambda on: None)(True)
            model.set_is_last_backward(True)
        loss(model, rank, step).backward()
        optimizer.step()
    return [p.grad.to_local().clone() for p in model.parameters()]


NATIVE: dict[str, tuple[str, dict[str, Any], str]] = {
    "bf16": ("allreduce-bf16", {"reduce_dtype": torch.bfloat16}, ""),
    "micro-batches without communication": ("allreduce", {}, "set_requires_gradient_sync"),
    "micro-batches without all-reduce": ("allreduce", {}, "set_requires_all_reduce"),
    "every micro-batch reduced": ("allreduce", {}, "no gate"),
}
PARTS = sum(-(-rows // 2) * columns for rows, columns in [(7, 6), (7, 1), (5, 7), (5, 1), (1, 5), (1, 1)])
"""Elements of a rank's parts, padded to equal ones."""


def _beside_native(rank: int, size: int) -> Any:
    mesh, found = two_nodes(), {}
    for case, (method, policy, gate) in NATIVE.items():
        native, hooked = sharded(mesh, **policy), sharded(mesh["shard"], **policy)
        state = fsdp_hook(hooked, method, group=mesh["replicate"].get_group(), check="each")
        both = [(*_train(model, rank, 0, STEPS, gate), *values(model)) for model in (native, hooked)]
        found[case] = all(map(torch.equal, *both)), state.ledger.totals()
    return found


def test_the_uncompressed_reduction_is_native_hsdp_to_the_bit(ranks: Callable[[int], Ranks]) -> None:
    for result in ranks(4).run(_beside_native):
        for case, (equal, (row,)) in result.items():
            assert equal, case
            assert row["payload_bytes"] == PARTS * STEPS * (2 if case == "bf16" else 4) * (
                1 + ("every" in case)
            ), case
            assert row["wire_bytes"] == row["payload_bytes"]  # 2 (n-1)/n of it, n = 2 nodes


COMPRESSED: dict[str, tuple[float, dict[str, Any]]] = {
    "qsgd": (0.05, {"bits": 8, "error_feedback": True}),
    "powersgd": (0.9, {"rank": 1, "min_compression_rate": 0}),
}


def _compressed(rank: int, size: int) -> Any:
    """Error of one reduction, and a training, by method."""
    mesh, found = two_nodes(), {}
    exact = torch.cat([x.flatten() for x in _train(sharded(mesh), rank, 0, 1)])
    for method, (_, options) in COMPRESSED.items():
        model = sharded(mesh["shard"])
        state = fsdp_hook(model, method, group=mesh["replicate"].get_group(), check="each", **options)
        first = torch.cat([x.flatten() for x in _train(model, rank, 0, 1)])
        _train(model, rank, 1, STEPS)
        error = float((first - exact).norm() / exact.norm())
        found[method] = error, values(model), state.ledger.totals(), contents(state.state_dict())
    return found


def test_a_compressed_reduction_goes_across_nodes_and_keeps_state_by_module(ranks):
    results = ranks(4).run(_compressed)
    for rank, result in enumerate(results):
        for method, (error, whole, totals, state) in result.items():
            assert 0 < error < COMPRESSED[method][0], (method, error)
            other = results[(rank + 2) % 4][method][1]  # the same place in the other node
            assert all(map(torch.equal, whole, other)), method
            assert {row["group"] for row in totals} == {"world"}  # of the nodes; nothing within them
            assert state["calls"] == {"0": STEPS, "2": STEPS, "the model": STEPS}
            assert state["seed"] == (rank % 2) << 32  # parts of a module draw other random numbers
        names = {name for name, *_ in result["qsgd"][3]["slots"]["worker_error"]["entries"]}
        assert names == {name for name, _ in net().named_parameters()}
        sent = sum(row["payload_bytes"] for row in result["qsgd"][2])
        # a byte an element, and a norm a module, which is less than a block
        assert sent == STEPS * (PARTS + 3 * 4)


# ---- as an optimizer -------------------------------------------------------------------------------------------------------

EXACT: dict[str, dict[str, Any]] = {
    "lion-cub-1bit": {},
    "qsr-adamw": {},
    "allreduce": {"optimizer": lambda groups: torch.optim.RAdam(groups)},
    "slowmo-sgd": {"period": 2},
}
"""Methods that go by the element."""
CLOSE: dict[str, dict[str, Any]] = {"one-bit-adam": {"warmup_steps": 2}, "qsgd": {"bits": 8}}
"""Methods with a scale, a choice or a random number for each bucket: the same training, other numbers."""


def _whole(method: str, options: dict[str, Any], rank: int, group: Any) -> Tensor:
    """Trained unsharded, on the mean gradient of the node's two ranks."""
    model = net()
    optimizer = DataParallelOptimizer(model, method, lr=LR, group=group, **options)
    node = rank - rank % 2
    for step in range(2 * STEPS):
        optimizer.zero_grad()
        with optimizer.no_sync():
            (loss(model, node, step) / 2).backward()
        (loss(model, node + 1, step) / 2).backward()
        optimizer.step()
    optimizer.release()
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def _beside_whole(rank: int, size: int) -> Any:
    mesh, found = two_nodes(), {}
    group = mesh["replicate"].get_group()
    for method, options in {**EXACT, **CLOSE}.items():
        model = sharded(mesh["shard"])
        optimizer = fsdp_optimizer(model, method, lr=LR, group=group, check="each", **options)
        for step in range(2 * STEPS):
            optimizer.zero_grad()
            loss(model, rank, step).backward()
            optimizer.step()
        parts = torch.cat([p.full_tensor().detach().flatten() for p in model.parameters()])
        found[method] = parts, _whole(method, options, rank, group), optimizer.ledger.totals()
        optimizer.release()
    return found


def test_a_method_that_goes_by_the_element_is_the_same_on_parts_to_the_bit(ranks):
    start = torch.cat([p.detach().flatten() for p in net().parameters()])
    for result in ranks(4).run(_beside_whole):
        for method, (parts, whole, totals) in result.items():
            assert {row["group"] for row in totals} <= {"world"}, method  # of the nodes; nothing within them
            assert sum(row["wire_bytes"] for row in totals) > 0, method
            moved, apart = float((whole - start).norm()), float((parts - whole).norm())
            assert (apart == 0 < moved) if method in EXACT else (0 < apart < moved), (method, apart, moved)


def _around(rank: int, size: int) -> dict[str, Any]:
    """Whether the model, beside which the parts lie, has what each call leaves."""
    own = enter("fsdp_optimizer", "local-adamw", {"period": 100}, size)
    before = run(own, rank, 0, STEPS)
    with own.state.without_communication():
        moved = not all(map(torch.equal, before, run(own, rank, 50, 53)))
    found = {"without_communication": moved and all(map(torch.equal, before, values(own.model)))}
    with pytest.raises(KeyError), own.state.averaged():
        inside = values(own.model)
        raise KeyError
    found["averaged"] = not all(map(torch.equal, before, inside))
    found["averaged, by an exception"] = all(map(torch.equal, before, values(own.model)))
    with torch.no_grad():
        for param in own.model.parameters():
            local(param).fill_(7.0)
    saved = own.state.state_dict(), own.state.consolidate()
    held = contents(saved[0])["parameters"].values()
    leaves = {} if saved[1] is None else saved[1]["param_groups"][0]
    for what, parts in ("state_dict", held), ("consolidate", _parameters(leaves)):
        found[what] = all((x == 7.0).all() for x in parts)
    loss(own.model, rank, STEPS).backward()
    frozen = next(own.model.parameters()).requires_grad_(False)
    frozen.grad = None
    found["frozen"] = "'0.weight' was trained" in told(own.steps.step)
    own.state.release()
    return found


def _parameters(leaves: dict[str, Any]) -> list[Tensor]:
    found = [leaf[0].get("parameters", {}) for leaf in leaves.values() if isinstance(leaf, tuple)]
    return [x for own in found for x in own.values()]


def test_the_model_has_what_each_call_leaves(ranks: Callable[[int], Ranks]) -> None:
    for found in ranks(4).run(_around):
        assert [what for what, holds in found.items() if not holds] == []


def _evaluated(rank: int, size: int) -> dict[str, bool]:
    """After a forward without backward FSDP2 keeps the root's parameters gathered, whatever is written into their parts."""
    ways, x = {}, torch.ones(4, 6)
    for evaluates in (False, True):
        own = enter("fsdp_optimizer", "local-sgd", {"period": 100}, size)
        for step in range(STEPS):
            run(own, rank, step, step + 1)
            if evaluates:
                with torch.no_grad():
                    own.model(x)
                    with own.state.averaged():
                        means, seen = [p.full_tensor() for p in own.model.parameters()], own.model(x)
        ways[evaluates] = values(own.model)
    mean = net()
    with torch.no_grad():
        for param, value in zip(mean.parameters(), means, strict=True):
            param.copy_(value)
        found = {"the mean inside": torch.equal(mean(x), seen)}
    found["no trace outside"] = all(map(torch.equal, *ways.values()))
    whole = [own.state.consolidate()]
    found["one dict"] = (whole[0] is None) == bool(rank)
    dist.broadcast_object_list(whole)
    other = enter("fsdp_optimizer", "local-sgd", {"period": 100}, size, seed=2)
    with torch.no_grad():
        other.model(x)
    fsdp_optimizer(other.model, "signum", group=two_nodes(size)["replicate"].get_group()).release()
    other.state.load_state_dict(whole[0])
    with torch.no_grad():
        found["what was loaded"] = torch.equal(own.model(x), other.model(x))
    both = [run(it, rank, STEPS, 2 * STEPS) for it in (own, other)]
    found["the training that was loaded"] = all(map(torch.equal, *both))
    return found


def test_forwards_see_what_was_written_and_one_dict_resumes_all_places(ranks: Callable[[int], Ranks]) -> None:
    for found in ranks(4).run(_evaluated):
        assert [what for what, holds in found.items() if not holds] == []


def _clipped(rank: int, size: int) -> tuple[bool, bool, bool]:
    ends = []
    for of_groups in (False, True):
        own = enter("fsdp_optimizer", "allreduce-sgd", {}, size)
        schedule = torch.optim.lr_scheduler.StepLR(own.steps, 1)
        for step in range(STEPS):
            loss(own.model, rank, step).backward()
            groups = own.steps.param_groups
            of_them = [p for group in groups for p in group["params"]]
            nn.utils.clip_grad_norm_(of_them if of_groups else own.model.parameters(), 1e-3)
            own.steps.step()
            own.model.zero_grad()
            schedule.step()
        ends.append(values(own.model))
    start = sharded(two_nodes(size)["shard"])
    small = all(float((a - b).norm()) < 1e-3 for a, b in zip(ends[1], values(start), strict=True))
    held = any(part.grad is not None for part in own.state._parts.plain.values())
    return all(map(torch.equal, *ends)), small, held


def test_clipping_the_parameters_of_its_groups_clips_the_models(ranks: Callable[[int], Ranks]) -> None:
    assert ranks(4).run(_clipped) == [(True, True, False)] * 4


# ---- what is refused -------------------------------------------------------------------------------------------------------


class _Half(nn.Module):
    """Half of its parameters get no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.spare = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.used(x)


def _without_gradients(mesh: Any, zeros: bool) -> None:
    model: Any = fully_shard(_Half(), mesh=mesh["shard"])
    if zeros:
        model.set_reduce_scatter_unused_params(True)
    state = fsdp_hook(model, "qsgd", group=mesh["replicate"].get_group())
    model(torch.ones(2, 4)).sum().backward()
    assert state.ledger.totals()


def _fsdp1(**options: Any) -> nn.Module:
    return FullyShardedDataParallel(net(), device_id=torch.device("cpu"), **options)


def _tensor_parallel(enters: Callable[..., Any]) -> Any:
    mesh = init_device_mesh("cpu", (2, 1, 2), mesh_dim_names=("replicate", "shard", "tp"))
    model = parallelize_module(net(), mesh["tp"], {"2": ColwiseParallel()})
    return enters(sharded(mesh["shard"], model), "qsgd", group=mesh["replicate"].get_group())


def _on_two_meshes(enters: Callable[..., Any], mesh: Any) -> Any:
    model, alone = net(), init_device_mesh("cpu", (4, 1), mesh_dim_names=("all", "self"))["self"]
    fully_shard(model[0], mesh=alone)
    fully_shard(model, mesh=mesh["shard"])
    return enters(model, "qsgd", group=mesh["replicate"].get_group())


def _frozen_apart(rank: int, mesh: Any) -> Any:
    """Whose first layer is frozen and, alone, differs between nodes."""
    model = net()
    model[0].requires_grad_(False)
    if rank // 2:
        nn.init.constant_(model[0].weight, 3.0)
    return sharded(mesh, model)


def _frozen(rank: int, size: int) -> list[Tensor]:
    mesh = two_nodes()
    model = _frozen_apart(rank, mesh["shard"])
    fsdp_optimizer(model, "signum", group=mesh["replicate"].get_group()).release()
    return values(model)


def test_all_nodes_begin_with_what_is_frozen_on_the_first(ranks: Callable[[int], Ranks]) -> None:
    first, second, *other = ranks(4).run(_frozen)
    for node, held in zip((first, second), other, strict=True):
        assert all(map(torch.equal, node, held))


def _refused(rank: int, size: int) -> list[tuple[str, str]]:
    """What each that cannot be is to be told, and is told."""
    mesh = two_nodes()
    group, shard = mesh["replicate"].get_group(), mesh["shard"]
    hybrid, twice, half = sharded(mesh), sharded(shard), net()
    fully_shard(half[0], mesh=shard)
    fsdp_hook(twice, "qsgd", group=group)
    hook, optimizer = partial(fsdp_hook, algorithm="qsgd", group=group), partial(fsdp_optimizer, group=group)
    unequal = partial(hook, sharded(shard, net(seed=rank // 2)), timeout_s=60)
    by_element = "UnsupportedError goes by the element or the bucket"
    expected: list[tuple[str, Callable[[], Any]]] = [
        ('UnsupportedError mesh["replicate"].get_group()', partial(hook, hybrid)),
        ("UsageError call fully_shard", partial(hook, net())),
        ("UsageError already", partial(hook, twice)),
        ("MismatchError parameters that add up to", unequal),
        ("MismatchError parameters that add up to", partial(hook, _frozen_apart(rank, shard), timeout_s=60)),
        ("UsageError set_reduce_scatter_unused_params(True)", partial(_without_gradients, mesh, zeros=False)),
        (by_element, partial(optimizer, sharded(shard), "powersgd")),
        (by_element, partial(optimizer, sharded(shard), "lag")),
        ("UnsupportedError train without FSDP", partial(optimizer, sharded(shard), "root-sgd")),
        ("UnsupportedError choose adamw, lion or sgd", partial(optimizer, sharded(shard), "muloco")),
        ('UnsupportedError mesh["shard"]', partial(optimizer, sharded(mesh), "signum")),
        ("UnsupportedError call fully_shard on the model itself too", partial(optimizer, half, "signum")),
        ("UsageError call fully_shard first", partial(optimizer, net(), "signum")),
        ("UsageError give the model itself", partial(optimizer, list(net().parameters()), "signum")),
    ]
    for enters in (fsdp_optimizer, fsdp_hook):
        expected += [
            ("UnsupportedError 2 dimensions", partial(_tensor_parallel, enters)),
            ("UnsupportedError call fully_shard with one 1-D mesh", partial(_on_two_meshes, enters, mesh)),
        ]
    fsdp1 = "UnsupportedError shard it by fully_shard (FSDP2)"
    for wrap in (_fsdp1, lambda: _fsdp1().named_parameters(), lambda: _fsdp1(use_orig_params=True)):
        expected.append((fsdp1, lambda wrap=wrap: DataParallelOptimizer(wrap(), "signum")))
    return [(words, told(action)) for words, action in expected]


def test_what_cannot_be_is_refused_with_what_to_do(ranks: Callable[[int], Ranks]) -> None:
    for result in ranks(4).run(_refused):
        for expected, message in result:
            kind, _, remedy = expected.partition(" ")
            assert message.startswith(kind), (expected, message)
            assert remedy in message, (expected, message)


def _as_zeros(rank: int, size: int) -> str:
    return told(lambda: _without_gradients(two_nodes(), zeros=True))


@pytest.mark.skipif(
    not hasattr(FSDPModule, "set_reduce_scatter_unused_params"), reason="torch can do that from 2.13 on"
)
def test_parameters_without_gradient_may_count_as_zeros(ranks: Callable[[int], Ranks]) -> None:
    assert ranks(4).run(_as_zeros) == ["no error"] * 4


@pytest.mark.parametrize(
    ("name", "other"), [("lion-cub-1bit", "DataParallelOptimizer"), ("l-greco", "ddp_hook")]
)
def test_a_method_that_a_hook_cannot_carry_is_refused(name: str, other: str) -> None:
    """It does more than reduce, or sees the whole model."""
    with pytest.raises(UnsupportedError, match=other):
        fsdp_hook(net(), name, group=None)  # type: ignore[arg-type]


# ---- which group, and which entrance -------------------------------------------------------------------------------------


def _attached(model: nn.Module, pairs: bool, group: Any) -> Any:
    own = torch.optim.SGD(model.parameters(), lr=0.1)
    return attach(own, list(model.named_parameters()) if pairs else model, "qsgd", group=group)


ENTRANCES: dict[str, Callable[[Any, Any], Any]] = {
    "DataParallelOptimizer": lambda model, group: DataParallelOptimizer(model, "qsgd", group=group),
    "pairs": lambda model, group: DataParallelOptimizer(model.named_parameters(), "qsgd", group=group),
    "attach": lambda model, group: _attached(model, False, group),
    "attach pairs": lambda model, group: _attached(model, True, group),
    "ddp_hook": lambda model, group: ddp_hook("qsgd", model, group=group),
    "fsdp_hook": lambda model, group: fsdp_hook(model, "qsgd", group=group),
    "fsdp_optimizer": lambda model, group: fsdp_optimizer(model, "qsgd", group=group),
}
"""Every way into the package that takes a process group."""
MISUSED = {
    "foreign": ("UsageError", "is no member of the process group that was given as group="),
    "mesh": ("UsageError", 'no DeviceMesh: give of one dimension of it a group, mesh.get_group("replicate")'),
    "list": ("UsageError", "no list: give what torch.distributed.new_group(ranks) answers"),
    "shard": (
        "UnsupportedError",
        'give group=mesh["replicate"].get_group(), the ranks that hold the same parts',
    ),
    "DTensor": ("UnsupportedError", "fsdp_hook"),
}


def _misused(rank: int, size: int) -> dict[tuple[str, str], str]:
    mesh, found = two_nodes(), {}
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    groups: dict[str, Any] = {
        "foreign": pairs[1 - rank // 2],
        "mesh": mesh["replicate"],
        "list": [0, 1, 2, 3],
    }
    for name, make in ENTRANCES.items():
        parts = name.startswith("fsdp")
        for what, group in groups.items():
            found[what, name] = told(lambda: make(sharded(mesh["shard"]) if parts else net(), group))  # noqa: B023
        what, dimension = ("shard", "shard") if parts else ("DTensor", "replicate")
        found[what, name] = told(lambda: make(sharded(mesh["shard"]), mesh[dimension].get_group()))  # noqa: B023
    return found


def test_a_wrong_group_and_a_wrong_entrance_say_what_to_give(ranks: Callable[[int], Ranks]) -> None:
    for result in ranks(4).run(_misused):
        assert len(result) == 4 * len(ENTRANCES)
        for (what, name), message in result.items():
            kind, remedy = MISUSED[what]
            assert message.startswith(f"{kind}: "), (what, name, message)
            assert remedy in message, (what, name, message)
