"""A checkpoint of n ranks for another number of ranks.

What all ranks share is taken over. Pieces that ranks own are put together and cut anew. What single ranks keep has no
owner any more: it is refused, starts anew (``zero``), or every new rank gets what keeps the method's identity
(``fold``): residuals of error feedback enter as their mean over ranks, so each new rank gets that mean (`Slot.fold`).
Parameters and states of the local optimizer that differ between ranks (within a round of local steps) are averaged,
which ends the round early; with ``zero``, states of the local optimizer start anew.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from reference_impls.algorithm import Slot
from reference_impls.errors import LayoutError, UnsupportedError

Elastic = Literal["refuse", "zero", "fold"]
MODES = ("refuse", "zero", "fold")


def resized(
    states: Sequence[Mapping[str, Any]],
    slots: Mapping[str, Slot],
    rank: int,
    size: int,
    elastic: Elastic = "refuse",
) -> dict[str, Any]:
    """The state with which `rank` of `size` goes on from the `states` of all old ranks. Nothing is changed.

    Raises `LayoutError` where it cannot be done, `UnsupportedError` for an unknown mode.
    """
    if elastic not in MODES:
        raise UnsupportedError(f"elastic must be one of {', '.join(MODES)}, got {elastic!r}")
    found = sorted(state["rank"] for state in states)
    if not states or found != list(range(states[0]["world_size"])):
        raise LayoutError(f"states of all old ranks are needed, one each; got those of ranks {found}")
    states = sorted(states, key=lambda state: int(state["rank"]))
    first = states[0]
    for name in ("version", "step", "counters", "seed"):
        if any(state[name] != first[name] for state in states):
            raise LayoutError(f"old ranks differ in {name}: they are not of one moment of one training")
    if any(state["pending"] for state in states):
        raise LayoutError("exchanges were under way when this was saved; go on with as many workers as then")
    if set(first["slots"]) != set(slots):
        raise LayoutError(f"checkpoint has slots {sorted(first['slots'])}, the method has {sorted(slots)}")
    changed = {name: _slot(name, slots[name], [s["slots"][name] for s in states], elastic) for name in slots}
    return {
        **first,
        "world_size": size,
        "rank": rank,
        "slots": changed,
        "parameters": _parameters([state["parameters"] for state in states], elastic),
        "optimizer": _optimizer([state["optimizer"] for state in states], elastic),
    }


def _slot(name: str, slot: Slot, saved: Sequence[Mapping[str, Any]], elastic: Elastic) -> Mapping[str, Any]:
    if slot.kind == "replicated":
        return saved[0]
    if slot.kind == "owned":
        return {"kind": "owned", "entries": [entry for own in saved for entry in own["entries"]]}
    _refuse(f"slot {name!r} holds what each rank keeps for itself", elastic)
    if elastic == "fold" and slot.fold is None:
        raise LayoutError(
            f"slot {name!r} holds what each rank keeps for itself, and the method does not say how it would pass to "
            "other ranks: resume with as many workers, or start it anew with elastic='zero'"
        )

    def change(old: Sequence[Tensor]) -> Tensor:
        if elastic == "zero":
            return torch.full_like(old[0], slot.init)
        return _mean(old)

    if "tensors" in saved[0]:
        tensors = [own["tensors"] for own in saved]
        return {"kind": slot.kind, "tensors": {key: change([x[key] for x in tensors]) for key in tensors[0]}}
    entries = [own["entries"] for own in saved]
    if any([e[:2] for e in own] != [e[:2] for e in entries[0]] for own in entries):
        raise LayoutError(f"slot {name!r}: old ranks were cut into different buckets")
    merged = [(*parts[0][:2], change([part[2] for part in parts])) for parts in zip(*entries, strict=True)]
    return {"kind": slot.kind, "entries": merged}


def _mean(old: Sequence[Tensor]) -> Tensor:
    """The mean; what is equal on all ranks stays as it is, to the bit."""
    return old[0] if _equal(old) else torch.stack(list(old)).mean(0)


def _parameters(saved: Sequence[Mapping[str, Tensor]], elastic: Elastic) -> dict[str, Tensor]:
    found = {}
    for name in saved[0]:
        old = [own[name] for own in saved]
        if not _equal(old):
            _refuse(f"parameter {name!r} differs between ranks, within a round of local steps", elastic)
            old = [_mean(old)]
        found[name] = old[0]
    return found


def _optimizer(saved: Sequence[Mapping[str, Any]], elastic: Elastic) -> dict[str, Any]:
    """Of the local optimizer; what is not a floating-point tensor must be equal on all old ranks."""
    if _equal([own["state"] for own in saved]):
        return dict(saved[0])
    _refuse("the local optimizer's state differs between ranks", elastic)
    if elastic == "zero":
        return {**saved[0], "state": {}}
    return {**saved[0], "state": _merged([own["state"] for own in saved], _mean)}


def _merged(old: Sequence[Any], fold: Callable[[Sequence[Tensor]], Tensor]) -> Any:
    if isinstance(old[0], dict) and all(own.keys() == old[0].keys() for own in old):
        return {key: _merged([own[key] for own in old], fold) for key in old[0]}
    if _equal(old):
        return old[0]
    if all(isinstance(x, Tensor) and x.is_floating_point() for x in old):
        return fold(old)
    raise LayoutError(
        "the local optimizer's states of the old ranks cannot be averaged; start them anew with elastic='zero'"
    )


def _equal(old: Sequence[Any]) -> bool:
    if isinstance(old[0], Tensor):
        return all(isinstance(x, Tensor) and torch.equal(x, old[0]) for x in old)
    if isinstance(old[0], dict):
        return all(own.keys() == old[0].keys() for own in old) and all(
            _equal([own[key] for own in old]) for key in old[0]
        )
    return all(x == old[0] for x in old)


def _refuse(what: str, elastic: Elastic) -> None:
    if elastic == "refuse":
        raise LayoutError(
            f"{what}, which another number of workers has no place for: resume with as many workers, or load with "
            "elastic='fold' (keeps what the method's identity needs) or 'zero' (starts it anew)"
        )
