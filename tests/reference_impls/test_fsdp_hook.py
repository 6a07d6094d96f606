"""A method as the reduction across nodes of a model that FSDP2 buckets within nodes: 2 nodes of 2 ranks, on gloo.

Uncompressed it is native HSDP to the bit, with micro-batches too; compressed it goes across nodes alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from reference_impls import fsdp_hook
from reference_impls.core.errors import UnsupportedError
from tests.reference_impls.ranks import Ranks, outcome
from tests.reference_impls.states import contents

WIDTH, STEPS, PATIENCE_S = 6, 3, 200.0
pytestmark = pytest.mark.gloo


def _net(seed: int = 1) -> nn.Sequential:
    """Sizes that do not divide by two: parts of the second rank of a node are padded."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(WIDTH, 7), nn.Tanh(), nn.Linear(7, 5), nn.Tanh(), nn.Linear(5, 3))


def _sharded(model: nn.Sequential, mesh: DeviceMesh, **policy: Any) -> nn.Sequential:
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh, mp_policy=MixedPrecisionPolicy(**policy))
    return model


def _mesh() -> DeviceMesh:
    return init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))


def _loss(model: nn.Module, rank: int, step: int) -> Tensor:
    generator = torch.Generator().manual_seed(100 * step + rank)
    x, y = torch.randn(4, WIDTH, generator=generator), torch.randn(4, 3, generator=generator)
    return (model(x) - y).square().mean()


def _train(model: Any, rank: int, first: int, last: int, gate: str = "") -> list[Tensor]:
    """Two micro-batches a step where there is a gate for the first. The gradients of the last step, this rank's parts."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    for step in range(first, last):
        optimizer.zero_grad()
        if gate:
            getattr(model, gate, lambda on: None)(False)
            model.set_is_last_backward(False)
            _loss(model, rank, 50 + step).backward()
            getattr(model, gate, lambda on: None)(True)
            model.set_is_last_backward(True)
        _loss(model, rank, step).backward()
        optimizer.step()
    return [p.grad.to_local().clone() for p in model.parameters()]


def _parts(model: nn.Module) -> list[Tensor]:
    return [p.to_local().detach().clone() for p in model.parameters()]


# ---- the uncompressed reduction is native HSDP ---------------------------------------------------------------------------

CASES: dict[str, tuple[str, dict[str, Any], str]] = {
    "fp32": ("allreduce", {}, ""),
    "bf16": ("allreduce-bf16", {"reduce_dtype": torch.bfloat16}, ""),
    "fp32, micro-batches without communication": ("allreduce", {}, "set_requires_gradient_sync"),
    "fp32, micro-batches without all-reduce": ("allreduce", {}, "set_requires_all_reduce"),
    "fp32, every micro-batch reduced": ("allreduce", {}, "no gate"),
}


def _beside_native(rank: int, size: int) -> Any:
    mesh, found = _mesh(), {}
    for case, (method, policy, gate) in CASES.items():
        native = _sharded(_net(), mesh, **policy)
        expected = _train(native, rank, 0, STEPS, gate), _parts(native)
        hooked = _sharded(_net(), mesh["shard"], **policy)
        state = fsdp_hook(hooked, method, group=mesh["replicate"].get_group(), check="each")
        found[case] = expected, (_train(hooked, rank, 0, STEPS, gate), _parts(hooked)), state.ledger.totals()
    return found


def test_the_uncompressed_reduction_is_native_hsdp_to_the_bit(ranks: Callable[[int], Ranks]) -> None:
    for result in ranks(4).run(_beside_native, timeout_s=PATIENCE_S):
        assert isinstance(result, dict), result
        for case, (native, hooked, totals) in result.items():
            for own, other in zip(native, hooked, strict=True):  # gradients, then parameters
                assert all(torch.equal(x, y) for x, y in zip(own, other, strict=True)), case
            (row,) = totals
            width = 2 if case == "bf16" else 4
            times = 2 * STEPS if "every" in case else STEPS
            assert row["payload_bytes"] == times * width * PARTS, case
            assert row["wire_bytes"] == row["payload_bytes"]  # 2 (n-1)/n of it, n = 2 nodes


PARTS = sum(-(-rows // 2) * columns for rows, columns in [(7, WIDTH), (7, 1), (5, 7), (5, 1), (3, 5), (3, 1)])
"""Elements of a rank's parts, padded to equal ones."""


# ---- compressed ----------------------------------------------------------------------------------------------------------


def _compressed(rank: int, size: int) -> Any:
    """Error of one reduction, and a training, by method."""
    mesh, found = _mesh(), {}
    exact = _train(_sharded(_net(), mesh), rank, 0, 1)
    norm = sum(float(x.square().sum()) for x in exact)
    for method, options in COMPRESSED.items():
        model = _sharded(_net(), mesh["shard"])
        state = fsdp_hook(model, method, group=mesh["replicate"].get_group(), check="each", **options)
        first = _train(model, rank, 0, 1)
        error = sum(float((a - b).square().sum()) for a, b in zip(first, exact, strict=True))
        _train(model, rank, 1, STEPS)
        found[method] = (
            (error / norm) ** 0.5,
            _parts(model),
            state.ledger.totals(),
            contents(state.state_dict()),
        )
    return found


COMPRESSED: dict[str, dict[str, Any]] = {
    "qsgd": {"bits": 8, "error_feedback": True},
    "powersgd": {"rank": 1, "min_compression_rate": 0},
}


def test_a_compressed_reduction_goes_across_nodes_and_keeps_state_by_module(
    ranks: Callable[[int], Ranks],
) -> None:
    results = ranks(4).run(_compressed, timeout_s=PATIENCE_S)
    for rank, result in enumerate(results):
        assert isinstance(result, dict), result
        for method, (error, whole, totals, state) in result.items():
            assert 0 < error < (0.9 if method == "powersgd" else 0.05), (method, error)
            other = results[(rank + 2) % 4][method][1]  # the same place in the other node
            assert all(torch.equal(x, y) for x, y in zip(whole, other, strict=True)), method
            assert {row["group"] for row in totals} == {"world"}  # of the nodes; nothing within them
            assert state["calls"] == {"0": STEPS, "2": STEPS, "the model": STEPS}
            assert state["seed"] == (rank % 2) << 32  # parts of a module draw other random numbers
        names = {name for name, *_ in result["qsgd"][3]["slots"]["worker_error"]["entries"]}
        assert names == {name for name, _ in _net().named_parameters()}
        sent = sum(row["payload_bytes"] for row in result["qsgd"][2])
        assert sent == STEPS * sum(_message_bytes(k) for k in (4 * WIDTH + 4, 3 * 7 + 3, 2 * 5 + 2))


def _message_bytes(elements: int) -> int:
    """A code of 8 bits an element, and a norm for all, which are fewer than a block."""
    return elements + 4


# ---- what is refused -----------------------------------------------------------------------------------------------------


def _refused(rank: int, size: int) -> Any:
    mesh = _mesh()
    group, shard = mesh["replicate"].get_group(), mesh["shard"]
    twice = _sharded(_net(), shard)
    fsdp_hook(twice, "qsgd", group=group)
    return {
        "2-D mesh": outcome(lambda: fsdp_hook(_sharded(_net(), mesh), "qsgd", group=group)),
        "not sharded": outcome(lambda: fsdp_hook(_net(), "qsgd", group=group)),
        "twice": outcome(lambda: fsdp_hook(twice, "qsgd", group=group)),
        "unequal": outcome(
            lambda: fsdp_hook(_sharded(_net(seed=rank // 2), shard), "qsgd", group=group, timeout_s=60)
        ),
        "without gradient": outcome(lambda: _half(mesh, zeros=False)),
    }


def _as_zeros(rank: int, size: int) -> Any:
    return outcome(lambda: _half(_mesh(), zeros=True))


class _Half(nn.Module):
    """Half of its parameters get no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.spare = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.used(x)


def _half(mesh: DeviceMesh, zeros: bool) -> None:
    """A step of a model in which parameters have no gradient."""
    torch.manual_seed(1)
    model: Any = fully_shard(_Half(), mesh=mesh["shard"])
    if zeros:
        model.set_reduce_scatter_unused_params(True)
    state = fsdp_hook(model, "qsgd", group=mesh["replicate"].get_group())
    model(torch.ones(2, 4)).sum().backward()
    assert state.ledger.totals()


REMEDIES = {
    "2-D mesh": ("UnsupportedError", 'mesh["replicate"].get_group()'),
    "not sharded": ("UsageError", "call fully_shard"),
    "twice": ("UsageError", "already"),
    "unequal": ("MismatchError", "parameters that add up to"),
    "without gradient": ("UsageError", "set_reduce_scatter_unused_params(True)"),
}


def test_what_cannot_be_is_refused_with_what_to_do(ranks: Callable[[int], Ranks]) -> None:
    for result in ranks(4).run(_refused, timeout_s=PATIENCE_S):
        assert isinstance(result, dict), result
        for what, (kind, remedy) in REMEDIES.items():
            assert result[what][0] == kind, (what, result[what])
            assert remedy in result[what][1]


@pytest.mark.skipif(
    not hasattr(FSDPModule, "set_reduce_scatter_unused_params"), reason="torch can do that from 2.13 on"
)
def test_parameters_without_gradient_may_count_as_zeros(ranks: Callable[[int], Ranks]) -> None:
    assert [kind for kind, _ in ranks(4).run(_as_zeros, timeout_s=PATIENCE_S)] == ["no error"] * 4


@pytest.mark.parametrize("name", ["lion-cub-1bit", "apmsqueeze", "diloco"])
def test_a_coupled_method_is_refused(name: str) -> None:
    with pytest.raises(UnsupportedError, match="DataParallelOptimizer"):
        fsdp_hook(_net(), name, group=None)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["l-greco", "adaqs"])
def test_a_method_that_sees_the_whole_model_is_refused(name: str) -> None:
    with pytest.raises(UnsupportedError, match="ddp_hook"):
        fsdp_hook(_net(), name, group=None)  # type: ignore[arg-type]
