"""Tiles: 512 neighbouring elements as 32 rows of 16 lanes, the shape in which codecs cut, pack and draw.

Element i is in tile ``i // 512``, row ``i % 512 // 16``, lane ``i % 16``. Sixteen neighbours are one vector instruction's
worth; rows are what goes into one word (32 rows of one bit, 8 rows of four bits). Everything that belongs to an element
lies in its tile, so a large vector is read once from front to back.

A kernel is an element-wise function of tensors [T, rows .., 16], T tiles, compiled with all but T fixed; random numbers
in it are those of the elements' own places (`randomness`).
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

import torch
from torch import Tensor

from reference_impls.compilation import THRESHOLD

__all__ = ["LANES", "ROWS", "TILE", "lanes", "numbers", "rows", "whole"]

LANES = 16
ROWS = 32
TILE = ROWS * LANES


def whole(numel: int) -> int:
    """How many of `numel` elements lie in whole tiles."""
    return numel // TILE * TILE


def rows(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """The same rows (all axes but the last) of all tensors, one by one where together they are worth compiling.

    Small batches come in one piece: the eager path takes them as they are.
    """
    first = tensors[0]
    if first.dim() == 1 or first.numel() < THRESHOLD:
        yield tensors
        return
    for place in range(first.shape[0]):
        yield from rows(*(t[place] for t in tensors))


@functools.cache
def lanes(device: torch.device) -> Tensor:
    """int32 [16]: 0 .. 15."""
    return torch.arange(LANES, dtype=torch.int32, device=device)


def numbers(count: int, step: int, after: int, device: torch.device) -> Tensor:
    """int32 [count, 1, ..]: 0, step, 2 step, .. with `after` axes of length 1 behind."""
    return torch.arange(0, count * step, step, dtype=torch.int32, device=device).view(-1, *[1] * after)
