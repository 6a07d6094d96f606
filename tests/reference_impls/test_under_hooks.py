"""Hooks: states of another number of ranks, and IntSGD, whose factor needs the parameters and the learning rate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from reference_impls import DataParallelOptimizer, ddp_hook
from reference_impls.attached import attach
from reference_impls.errors import LayoutError, UsageError
from reference_impls.under_hooks import intsgd_for_hook, resize_hook_state
from tests.reference_impls.ranks import Ranks
from tests.reference_impls.states import contents

pytestmark = pytest.mark.gloo
LR = 0.05


def _net() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 3))


def _step(module: nn.Module, optimizer: torch.optim.Optimizer, rank: int, step: int) -> None:
    generator = torch.Generator().manual_seed(100 * step + rank)
    for group in optimizer.param_groups:
        group["lr"] = LR / (1 + step)
    optimizer.zero_grad()
    module(torch.randn(4, 6, generator=generator)).square().mean().backward()
    optimizer.step()


def _hooked(rank: int, method: Any, group: Any = None) -> tuple[Any, Any, Any]:
    model = _net()
    ddp = DistributedDataParallel(model, process_group=group)
    own = torch.optim.SGD(model.parameters(), lr=LR)
    state, hook = ddp_hook(method(model, own) if callable(method) else method, ddp, check="each")
    ddp.register_comm_hook(state, hook)
    return ddp, own, state


# ---- IntSGD --------------------------------------------------------------------------------------------------------------

KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "movement": ("intsgd", {"bits": 8}),
    "gradient": ("intsgd", {"measure": "gradient", "scale": "bucket"}),
    "exponent": ("intsgd-heuristic", {}),
}


def _intsgd(rank: int, size: int) -> Any:
    """Parameters after six steps of the hook, of the hook resumed in the middle, and of the optimizer; and messages."""
    found: dict[str, Any] = {}
    for kind, (name, options) in KINDS.items():

        def method(model: nn.Module, own: Any, name: str = name, options: dict[str, Any] = options) -> Any:
            return intsgd_for_hook(model, own if kind == "movement" else None, name, **options)  # noqa: B023

        ddp, own, state = _hooked(rank, method)
        for step in range(3):
            _step(ddp, own, rank, step)
        kept, values = state.state_dict(), [p.detach().clone() for p in ddp.parameters()]
        for step in range(3, 6):
            _step(ddp, own, rank, step)
        again, other, resumed = _hooked(rank, method)
        with torch.no_grad():
            for p, value in zip(again.parameters(), values, strict=True):
                p.copy_(value)
        resumed.load_state_dict(kept)
        for step in range(3, 6):
            _step(again, other, rank, step)
        model = _net()
        optimizer = DataParallelOptimizer(model, name, lr=LR, check="each", **options)
        for step in range(6):
            _step(model, optimizer, rank, step)
        found[kind] = tuple([p.detach().clone() for p in m.parameters()] for m in (ddp, again, model))
        optimizer.release()
    return found


def test_intsgd_under_a_hook_is_that_of_the_optimizer_to_the_bit(ranks: Callable[[int], Ranks]) -> None:
    for result in ranks(2).run(_intsgd):
        assert isinstance(result, dict), result
        for kind, (hooked, resumed, whole) in result.items():
            assert not all(
                torch.equal(a, b.detach()) for a, b in zip(hooked, _net().parameters(), strict=True)
            )
            for a, b, c in zip(hooked, resumed, whole, strict=True):
                assert torch.equal(a, c), kind
                assert torch.equal(a, b), kind


def test_intsgd_wants_the_optimizer_where_it_needs_it_and_other_methods_none_of_it() -> None:
    with pytest.raises(UsageError, match="give your optimizer"):
        intsgd_for_hook(_net())
    with pytest.raises(UsageError, match="is no IntSGD"):
        intsgd_for_hook(_net(), name="qsgd")


# ---- another number of ranks ---------------------------------------------------------------------------------------------

FEEDBACK: dict[str, Any] = {"bits": 4, "error_feedback": True}


def _errors(state: dict[str, Any]) -> Tensor:
    return torch.cat([entry[2] for entry in contents(state)["slots"]["worker_error"]["entries"]])


def _resize_hook(rank: int, size: int) -> Any:
    """From three ranks to two: the states, the one that goes on, what is refused, and that it trains on."""
    from reference_impls import create

    ddp, own, state = _hooked(rank, create("qsgd", **FEEDBACK))
    for step in range(3):
        _step(ddp, own, rank, step)
    saved: list[Any] = [None] * size
    dist.all_gather_object(saved, state.state_dict())
    pair = dist.new_group([0, 1])
    if rank > 1:
        return saved, None, "", ""
    fewer, other, hook = _hooked(rank, create("qsgd", **FEEDBACK), pair)

    def refused(action: Callable[[], Any]) -> str:
        try:
            action()
        except LayoutError as error:
            return str(error)
        return "no error"

    words = refused(lambda: resize_hook_state(hook, saved))
    lacking = refused(lambda: resize_hook_state(hook, saved[:2], elastic="fold"))
    hook.load_state_dict(resize_hook_state(hook, saved, elastic="fold"))
    went_on = hook.state_dict()
    _step(fewer, other, rank, 3)
    return saved, went_on, words, lacking


def test_a_hook_goes_on_with_fewer_ranks_and_loses_no_error(ranks: Callable[[int], Ranks]) -> None:
    results = ranks(3).run(_resize_hook)
    for rank, result in enumerate(results):
        assert isinstance(result, tuple), result
        assert len(result) == 4, result
        if rank == 2:
            continue
        saved, state, words, lacking = result
        mean = torch.stack([_errors(own) for own in saved]).mean(0)
        assert mean.abs().max() > 0
        torch.testing.assert_close(_errors(state), mean, rtol=0, atol=1e-7)
        held = contents(state)
        assert (held["world_size"], held["rank"], held["step"]) == (2, rank, 3)
        assert "elastic='fold'" in words
        assert "all old ranks" in lacking


def _resize_attached(rank: int, size: int, interface: str) -> Any:
    """From three ranks to two within a round of local steps: parameters are averaged, and training goes on."""
    model = _net()
    own = torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9)

    def begun(model: nn.Module, own: Any, group: Any) -> tuple[Any, Any]:
        if interface == "attach":
            return own, attach(own, model, "local-sgd", period=4, group=group)
        optimizer = DataParallelOptimizer(model, "local-sgd", lr=LR, momentum=0.9, period=4, group=group)
        return optimizer, optimizer

    optimizer, driver = begun(model, own, None)
    for step in range(2):
        _step(model, optimizer, rank, step)
    saved: list[Any] = [None] * size
    dist.all_gather_object(saved, driver.state_dict())
    pair = dist.new_group([0, 1])
    driver.release()
    if rank > 1:
        return saved, None, ""
    model = _net()
    optimizer, driver = begun(model, torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9), pair)
    try:
        driver.load_state_dict(saved)
        words = "no error"
    except LayoutError as error:
        words = str(error)
    driver.load_state_dict(saved, elastic="fold")
    went_on = {name: p.detach().clone() for name, p in model.named_parameters()}
    for step in range(2, 4):
        _step(model, optimizer, rank, step)
    driver.release()
    return saved, went_on, words, [p.detach().clone() for p in model.parameters()]


@pytest.mark.full
@pytest.mark.parametrize("interface", ["attach", "optimizer"])
def test_fewer_ranks_go_on_from_the_mean(interface: str, ranks: Callable[[int], Ranks]) -> None:
    results = ranks(3).run(_resize_attached, interface)
    for result in results[:2]:
        assert isinstance(result, tuple), result
        assert len(result) == 4, result
        saved, went_on, words, _ = result
        for name, value in went_on.items():
            assert torch.equal(
                value, torch.stack([contents(own)["parameters"][name] for own in saved]).mean(0)
            )
        assert "elastic='fold'" in words
    assert all(
        torch.equal(a, b) for a, b in zip(results[0][3], results[1][3], strict=True)
    )  # averaged in step 4
