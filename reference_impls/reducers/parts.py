"""Some tensors of a shard as one vector, and back: what travels when not all of it does."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from reference_impls import buffers

__all__ = ["consecutive", "joined", "spread"]


def consecutive(parts: Sequence[slice]) -> list[slice]:
    """Where the parts lie when nothing is between them."""
    found, start = [], 0
    for part in parts:
        found.append(slice(start, start + part.stop - part.start))
        start = found[-1].stop
    return found


def joined(x: Tensor, parts: Sequence[slice]) -> Tensor:
    """The parts of `x` behind one another, [k], in a buffer of the pool."""
    places = consecutive(parts)
    out = buffers.empty(places[-1].stop if places else 0, x.dtype, x.device)
    for place, part in zip(places, parts, strict=True):
        out[place] = x[part]
    return out


def spread(out: Tensor, parts: Sequence[slice], x: Tensor) -> None:
    """The inverse of `joined`: writes `x` into the parts of `out`."""
    for place, part in zip(consecutive(parts), parts, strict=True):
        out[part] = x[place]
