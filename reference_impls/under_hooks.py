"""What a communication hook can do besides: go on with another number of ranks, and carry IntSGD.

    state.load_state_dict(resize_hook_state(state, saved_by_all_old_ranks, elastic="fold"))

    state, hook = ddp_hook(intsgd_for_hook(ddp, optimizer, bits=8), ddp)

IntSGD's factor follows the movement of the parameters and the learning rate, neither of which a hook is given: here they come
from the model and from your optimizer, and the factor is that of `DataParallelOptimizer`. With ``measure="gradient"`` or
``factor="exponent"`` it needs neither.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from reference_impls import buffers
from reference_impls.algorithm import Algorithm, Shard, Slot, replicated
from reference_impls.algorithms.intsgd import IntSGD
from reference_impls.collectives import Exchange
from reference_impls.drivers.checkpoints import packed
from reference_impls.drivers.elastic import Elastic, resized
from reference_impls.errors import LayoutError, UnsupportedError, UsageError
from reference_impls.hooks import _KEPT, DDPHook, FSDPHook
from reference_impls.layout import named, unwrapped
from reference_impls.registry import Method, create

__all__ = ["intsgd_for_hook", "resize_hook_state"]


def resize_hook_state(
    hook: DDPHook | FSDPHook, states: Sequence[Mapping[str, Any]], *, elastic: Elastic = "refuse"
) -> dict[str, Any]:
    """The state with which a hook goes on from those of another number of ranks; nothing is changed.

    Args:
        hook: That goes on, attached to its model.
        states: What ``state_dict()`` answered on every old rank, under FSDP on every old node at this place in it.
        elastic: What becomes of the state that single ranks keep (error feedback): ``refuse``, ``zero`` (it starts anew) or
            ``fold`` (each new rank gets the mean, so that nothing is lost).

    Returns:
        A state for ``hook.load_state_dict``.

    Raises:
        LayoutError: It cannot be done; every remedy that the message names can.
        UnsupportedError: An unknown mode.
    """
    given = [hook._unpacked(state, None) for state in states]
    if not given:
        raise LayoutError("give what state_dict() answered on every old rank")
    differing = [key for key in ("shapes", "calls") if any(s.get(key) != given[0].get(key) for s in given)]
    if differing:
        raise LayoutError(
            f"old ranks differ in {' and '.join(differing)}: they are not of one moment of one training, or under FSDP not of "
            "the same place in their nodes"
        )
    whole = hook._worker.state_dict()
    filled = [{**whole, **{key: state[key] for key in _KEPT}} for state in given]
    found = resized(filled, hook._worker, elastic)
    extra = {"calls": given[0]["calls"]} if "calls" in given[0] else {}
    kept = {**{key: found[key] for key in _KEPT}, "shapes": given[0]["shapes"], **extra}
    return packed(kept, local=False, place=hook._place_in_node)


@dataclass(frozen=True)
class _HookedIntSGD(IntSGD):
    """IntSGD whose parameters and learning rate are somebody else's; `params` and `optimizer_` are set by a class of its own."""

    params: ClassVar[Mapping[str, Tensor]] = {}
    theirs: ClassVar[torch.optim.Optimizer | None] = None
    synchronize = Algorithm.synchronize  # type: ignore[assignment]  # the movement is seen when the next step begins

    @property
    def _moves(self) -> bool:
        return self.factor == "adaptive" and self.measure == "movement"

    @property
    def slots(self) -> Mapping[str, Slot]:
        own = super().slots
        return {**own, "before": replicated(float("nan"))} if self._moves else own

    def reduce(self, shard: Shard) -> Exchange[Tensor]:
        if self._moves:
            self._see(shard)
        return (yield from super().reduce(shard))

    def _see(self, shard: Shard) -> None:
        """Count the step that was taken since the last reduction, and take over the learning rate of this one."""
        assert self.theirs is not None
        now, before = buffers.empty_like(shard.params), shard.state["before"]
        for view in shard.views:
            now[view.part].copy_(self.params[view.name].detach().reshape(-1))
        if shard.step:
            self._average(shard, now - before)
        before.copy_(now)
        rates = {float(group["lr"]) for group in self.theirs.param_groups}
        if len(rates) > 1:
            raise UnsupportedError(
                f"the optimizer has the learning rates {sorted(rates)}, and under a hook IntSGD knows one: give "
                'measure="gradient", or train with DataParallelOptimizer(model, "intsgd")'
            )
        for _, group in shard.groups():
            group["lr"] = next(iter(rates))  # type: ignore[index]

    def update(self, shard: Shard, reduced: Tensor) -> None:
        if self._moves:
            super(IntSGD, self).update(shard, reduced)
        else:
            super().update(shard, reduced)


def intsgd_for_hook(
    model: nn.Module, optimizer: torch.optim.Optimizer | None = None, name: str = "intsgd", **options: Any
) -> Method:
    """IntSGD as a method for `ddp_hook`.

    Args:
        model: Whose parameters move, bare or in its `DistributedDataParallel`.
        optimizer: Yours, whose learning rate is read; not needed with ``measure="gradient"`` or ``intsgd-heuristic``.
        name: ``intsgd`` or ``intsgd-heuristic``.
        options: Of the method.

    Returns:
        A method for ``ddp_hook(method, model)``. A hook with it cannot be pickled: save its ``state_dict()``.

    Raises:
        UsageError: The optimizer is missing, or another method is named.
        UnknownOptionError: The method has no such option.
    """
    method = create(name, **options)
    if not isinstance(method.algorithm, IntSGD):
        raise UsageError(f"{name} is no IntSGD: give its name to ddp_hook")
    own = method.algorithm
    if own.factor == "adaptive" and own.measure == "movement" and optimizer is None:
        raise UsageError(
            'IntSGD divides the movement of the parameters by the learning rate: give your optimizer, or measure="gradient"'
        )
    params = {key: param for key, param in named(unwrapped(model)[0]) if param.requires_grad}
    cls = type("HookedIntSGD", (_HookedIntSGD,), {"params": params, "theirs": optimizer})
    values = {field.name: getattr(own, field.name) for field in fields(own)}
    return Method(method.name, cls(**values), method.hyperparameters)
