"""A rank's state in the form in which the usual ways of saving keep all of it.

`torch.distributed.checkpoint` keeps one value of a key that several ranks have, and loads the keys that the object has which it
loads into. So what is equal on all ranks lies under one key, and what is this rank's own under one with the rank in it. Each is
one leaf, a tuple, into which torch does not look: a fresh optimizer, which has neither moments nor counters yet, then has the
very keys of one that has trained, which tensors under keys of their own would not have.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import FrameType
from typing import Any, Final

from reference_impls.core.errors import LayoutError, UnsupportedError
from reference_impls.runtime.worker import EVERY_RANK, STATE_VERSION, copied

_OWN: Final = ("rank", "step", "observed", "given", "pending")
"""What of a worker's state lies with the rank's own. The step is with both, by which they are known to belong together."""
_LOCAL: Final = ("parameters", "optimizer")
"""What is too where ranks take steps of their own."""


def packed(state: Mapping[str, Any], *, local: bool, place: int | None = None) -> dict[str, Any]:
    """The state of a worker as two leaves, on the CPU: what all ranks share, and what is this one's own.

    Args:
        state: What `Worker.state_dict` answered, with whatever else is equal on all ranks.
        local: Whether ranks take steps of their own, so that their parameters differ.
        place: Of this rank in its node, where ranks at other places hold other parts of the model.
    """
    keys = (*_OWN, *_LOCAL) if local else _OWN
    own = {key: state[key] for key in keys if key in state}
    shared = {key: value for key, value in state.items() if key == "step" or key not in own}
    slots = state["slots"]
    shared["slots"] = {name: slot for name, slot in slots.items() if slot["kind"] == "replicated"}
    own["slots"] = {name: slot for name, slot in slots.items() if slot["kind"] != "replicated"}
    at = _at(place)
    return {  # a leaf comes back on the device that it was saved from, be it that of another rank
        f"{at}shared": (copied(shared, "cpu"),),
        f"{at}rank_{state['rank']}": (copied(own, "cpu"),),
    }


def unpacked(state: Mapping[str, Any], what: str, *, rank: int, place: int | None = None) -> dict[str, Any]:
    """The inverse of `packed`; where this rank's own part is missing, the state of another rank.

    Args:
        state: What `packed` gave, of one rank or put together of several.
        what: Names it.
        rank: Whose own part is wanted.
        place: See `packed`.

    Raises:
        LayoutError: It is no such state, of another version or place, or its parts are not of one moment.
    """
    if not isinstance(state, Mapping) or "version" in state:
        version = f"state version {state['version']}" if isinstance(state, Mapping) else type(state).__name__
        raise LayoutError(f"checkpoint has {version}, this code reads {STATE_VERSION}")
    at = _at(place)
    if f"{at}shared" not in state:
        held = ", ".join(map(str, list(state)[:4]))
        raise LayoutError(
            f"this is no state of {what}{f' at place {place} of a node' if at else ''} (it has {held}): give what state_dict() "
            "of one answered; from the state of a torch optimizer nothing can be taken over, so load the model's parameters alone"
        )
    shared = state[f"{at}shared"][0]
    found = {key: value[0] for key, value in state.items() if str(key).startswith(f"{at}rank_")}
    mine = found.pop(f"{at}rank_{rank}", None)
    for own in found.values() if mine is None else (mine, *found.values()):
        if own["step"] == shared["step"]:
            return {**shared, **own, "slots": {**shared["slots"], **own["slots"]}}
    steps = sorted({own["step"] for own in found.values()} | ({mine["step"]} if mine else set()))
    raise LayoutError(
        f"what ranks share is of step {shared['step']}, and what rank {rank} keeps for itself of step {steps}: the checkpoint "
        f"lacks that part. {EVERY_RANK}"
    )


def refuse_by_parameter() -> None:
    """Raise `UnsupportedError` where ``get_state_dict`` of torch.distributed.checkpoint.state_dict asks for an optimizer's state.

    It sorts state by parameter, loads the model after the optimizer, and leaves out the rest in silence: its frame is looked for.
    """
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        code = frame.f_code
        if code.co_name == "_get_optim_state_dict" and code.co_filename.endswith("checkpoint/state_dict.py"):
            raise UnsupportedError(
                "get_state_dict() keeps an optimizer's state by parameter, and would lose what else a method and a rank have: "
                'save {"model": model, "optimizer": optimizer} by torch.distributed.checkpoint.save, or what consolidate() '
                "answers; of a sharded model take get_model_state_dict(model)"
            )
        frame = frame.f_back


def _at(place: int | None) -> str:
    return "" if place is None else f"place_{place}_"
