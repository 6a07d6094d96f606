"""The declared state of one worker: made, written down by parameter name, and taken over again.

Whole-shard slots are saved as (parameter name, first element, values), so that a checkpoint does not know how
parameters were cut into shards; slots per tensor as parameter name -> values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from reference_impls.algorithm import Shard, Slot
from reference_impls.errors import LayoutError

Copies = list[tuple[Tensor, Tensor]]
"""(part of the state, what it becomes)."""


def allocate(shard: Shard, slots: Mapping[str, Slot]) -> None:
    """Give `shard` the state that a method declares, at its starting values."""
    for name, slot in slots.items():
        if slot.shape is not None:
            shapes = {view.name: slot.shape(view, shard.world) for view in shard.views}
            shard.state[name] = {
                own: _full(shape, slot, shard) for own, shape in shapes.items() if shape is not None
            }
        else:
            part = shard.chunk() if slot.kind == "owned" else slice(0, shard.d)
            shard.state[name] = _full((part.stop - part.start,), slot, shard)


def _full(shape: tuple[int, ...], slot: Slot, shard: Shard) -> Tensor:
    return torch.full(shape, slot.init, dtype=shard.params.dtype, device=shard.params.device)


def save(shards: Sequence[Shard], slots: Mapping[str, Slot]) -> dict[str, dict[str, Any]]:
    """The state of all shards, as copies."""
    saved: dict[str, dict[str, Any]] = {}
    for name, slot in slots.items():
        if slot.shape is not None:
            values = {own: x.clone() for shard in shards for own, x in shard.state[name].items()}
            saved[name] = {"kind": slot.kind, "tensors": values}
            continue
        entries: list[tuple[str, int, Tensor]] = []
        for shard in shards:
            base = shard.chunk().start if slot.kind == "owned" else 0
            entries += _by_parameter(shard, shard.state[name], base)
        saved[name] = {"kind": slot.kind, "entries": entries}
    return saved


def load(
    shards: Sequence[Shard], slots: Mapping[str, Slot], saved: Mapping[str, Mapping[str, Any]]
) -> Copies:
    """What must be copied where to take over what `save` gave; nothing is written here.

    Raises `LayoutError` where it does not fit.
    """
    if set(saved) != set(slots):
        raise LayoutError(f"checkpoint has slots {sorted(saved)}, the method has {sorted(slots)}")
    copies: Copies = []
    for name, slot in slots.items():
        if (slot.shape is not None) != ("tensors" in saved[name]):
            raise LayoutError(
                f"slot {name!r} is kept per tensor by one of checkpoint and method and per shard by the other: "
                "the checkpoint was written by another version of the method"
            )
        if slot.shape is not None:
            copies += _per_tensor(name, shards, saved[name]["tensors"])
            continue
        for shard in shards:
            base = shard.chunk().start if slot.kind == "owned" else 0
            copies += _of_shard(shard, shard.state[name], base, saved[name]["entries"])
    return copies


def _per_tensor(name: str, shards: Sequence[Shard], saved: Mapping[str, Tensor]) -> Copies:
    own: dict[str, Tensor] = {key: x for shard in shards for key, x in shard.state[name].items()}
    for key in sorted(own.keys() | saved.keys()):
        there, here = (tuple(x[key].shape) if key in x else "none" for x in (saved, own))
        if there != here:
            raise LayoutError(
                f"slot {name!r} of parameter {key!r}: checkpoint holds {there}, the method wants {here}; resume with "
                "the options and the number of workers that it was written with"
            )
    return [(x, saved[key]) for key, x in own.items()]


def _by_parameter(shard: Shard, values: Tensor, base: int) -> list[tuple[str, int, Tensor]]:
    """(parameter name, first element, values) for the elements base.. of the shard that `values` holds."""
    found = []
    for view in shard.views:
        first, last = max(view.part.start, base), min(view.part.stop, base + values.numel())
        if first < last:
            found.append((view.name, first - view.part.start, values[first - base : last - base].clone()))
    return found


def _of_shard(shard: Shard, values: Tensor, base: int, entries: Sequence[tuple[str, int, Tensor]]) -> Copies:
    """The inverse of `_by_parameter`, for any cut of the same elements into shards."""
    places = {view.name: view.part.start for view in shard.views}
    copies: Copies = []
    for name, first, piece in entries:
        if name not in places:
            continue
        begin = places[name] + first - base
        low, high = max(begin, 0), min(begin + piece.numel(), values.numel())
        if low < high:
            copies.append((values[low:high], piece[low - begin : high - begin]))
    filled = sum(target.numel() for target, _ in copies)
    if filled != values.numel():
        raise LayoutError(
            f"checkpoint holds {filled} of the {values.numel()} elements of state that this rank keeps for shard "
            f"{shard.index}: it was written with another bucket size; load it with that one"
        )
    return copies
