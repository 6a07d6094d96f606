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
from reference_impls.drivers.worker import Worker
from reference_impls.errors import LayoutError, UnsupportedError

Elastic = Literal["refuse", "zero", "fold"]
MODES = ("refuse", "zero", "fold")


def resized(
    states: Sequence[Mapping[str, Any]], worker: Worker, elastic: Elastic = "refuse"
) -> dict[str, Any]:
    """The state with which a worker goes on from those of another number of ranks. Nothing is changed.

    Args:
        states: what `Worker.state_dict` gave on every old rank.
        worker: that goes on; its rank, world size and parameters decide what state it has.
        elastic: what becomes of the state of single ranks.

    Returns:
        A state for `Worker.load_state_dict`.

    Raises:
        LayoutError: it cannot be done; every remedy that the message names can.
        UnsupportedError: an unknown mode.
    """
    if elastic not in MODES:
        raise UnsupportedError(f"elastic must be one of {', '.join(MODES)}, got {elastic!r}")
    found = sorted(state["rank"] for state in states)
    if not states or found != list(range(states[0]["world_size"])):
        raise LayoutError(f"states of all old ranks are needed, one each; got those of ranks {found}")
    states = sorted(states, key=lambda state: int(state["rank"]))
    first, slots = states[0], worker.algorithm.slots
    for name in ("version", "step", "counters", "seed"):
        if any(state[name] != first[name] for state in states):
            raise LayoutError(f"old ranks differ in {name}: they are not of one moment of one training")
    if any(state["pending"] for state in states):
        raise LayoutError("exchanges were under way when this was saved; go on with as many workers as then")
    if set(first["slots"]) != set(slots):
        raise LayoutError(f"checkpoint has slots {sorted(first['slots'])}, the method has {sorted(slots)}")
    change = _Change(worker, {name: [s["slots"][name] for s in states] for name in slots}, elastic)
    world = worker.clock.world
    return {
        **first,
        "world_size": world.size,
        "rank": world.rank,
        "given": sorted({name for state in states for name in state.get("given") or ()}),
        "slots": {name: change.slot(name) for name in slots},
        "parameters": change.parameters([state["parameters"] for state in states]),
        "optimizer": change.optimizer([state["optimizer"] for state in states]),
    }


class _Change:
    """From the slots of old ranks (`saved`: name -> one a rank) to those of `worker`."""

    def __init__(
        self, worker: Worker, saved: Mapping[str, Sequence[Mapping[str, Any]]], elastic: Elastic
    ) -> None:
        self.slots, self.saved, self.elastic = worker.algorithm.slots, saved, elastic
        self.shards = worker.shards
        foldable = all(self._foldable(name) for name in self.slots)
        fold = "elastic='fold' (keeps what the method's identity needs) or " if foldable else ""
        self.remedy = f"resume with as many workers, or load with {fold}elastic='zero' (starts it anew)"

    def slot(self, name: str) -> Mapping[str, Any]:
        slot, saved = self.slots[name], self.saved[name]
        if slot.kind == "owned":
            return {"kind": "owned", "entries": [entry for own in saved for entry in own["entries"]]}
        if slot.kind == "replicated":
            return saved[0] if slot.shape is None else self._per_tensor(slot, saved[0]["tensors"])
        if slot.shape is not None and not saved[0]["tensors"]:
            return self._anew(slot)  # a lone worker kept nothing
        self._refuse(f"slot {name!r} holds what each rank keeps for itself")
        if self.elastic == "zero":
            return self._anew(slot)
        if not self._foldable(name):
            raise LayoutError(
                f"slot {name!r} holds what each rank keeps for itself, and the method does not say how it would pass to "
                "so many ranks: resume with as many workers, or start it anew with elastic='zero'"
            )
        if slot.shape is not None:
            tensors = [own["tensors"] for own in saved]
            return self._per_tensor(slot, {key: _mean([x[key] for x in tensors]) for key in tensors[0]})
        entries = [own["entries"] for own in saved]
        if any([e[:2] for e in own] != [e[:2] for e in entries[0]] for own in entries):
            raise LayoutError(f"slot {name!r}: old ranks were cut into different buckets")
        merged = [(*parts[0][:2], _mean([part[2] for part in parts])) for parts in zip(*entries, strict=True)]
        return {"kind": slot.kind, "entries": merged}

    def parameters(self, saved: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
        found = {}
        for name in saved[0]:
            old = [own[name] for own in saved]
            if not _equal(old):
                self._refuse(f"parameter {name!r} differs between ranks, within a round of local steps")
                old = [_mean(old)]
            found[name] = old[0]
        return found

    def optimizer(self, saved: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Of the local optimizer; what is not a floating-point tensor must be equal on all old ranks."""
        if _equal([own["state"] for own in saved]):
            return dict(saved[0])
        self._refuse("the local optimizer's state differs between ranks")
        if self.elastic == "zero":
            return {**saved[0], "state": {}}
        return {**saved[0], "state": _merged([own["state"] for own in saved], _mean)}

    def _wanted(self, slot: Slot) -> dict[str, Tensor]:
        """What the worker keeps of a slot per tensor, by parameter name."""
        shapes = {
            view.name: (slot.shape(view, shard.world) if slot.shape else None, view.param)
            for shard in self.shards
            for view in shard.views
        }
        return {
            name: torch.full(shape, slot.init, dtype=like.dtype, device=like.device)
            for name, (shape, like) in shapes.items()
            if shape is not None
        }

    def _per_tensor(self, slot: Slot, old: Mapping[str, Tensor]) -> dict[str, Any]:
        """What the worker keeps, from the old ranks where they kept it."""
        return {
            "kind": slot.kind,
            "tensors": {name: old.get(name, start) for name, start in self._wanted(slot).items()},
        }

    def _anew(self, slot: Slot) -> dict[str, Any]:
        if slot.shape is not None:
            return self._per_tensor(slot, {})
        entries = [
            (view.name, 0, torch.full_like(shard.params[view.part], slot.init))
            for shard in self.shards
            for view in shard.views
        ]
        return {"kind": slot.kind, "entries": entries}

    def _foldable(self, name: str) -> bool:
        """Whether the mean over the old ranks has a place here."""
        slot, saved = self.slots[name], self.saved[name]
        if slot.kind != "per_rank" or (slot.shape is not None and not saved[0]["tensors"]):
            return True
        return slot.fold == "mean" and (
            slot.shape is None or self._wanted(slot).keys() >= saved[0]["tensors"].keys()
        )

    def _refuse(self, what: str) -> None:
        if self.elastic == "refuse":
            raise LayoutError(f"{what}, which another number of workers has no place for: {self.remedy}")


def _mean(old: Sequence[Tensor]) -> Tensor:
    """The mean; what is equal on all ranks stays as it is, to the bit."""
    return old[0] if _equal(old) else torch.stack(list(old)).mean(0)


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
