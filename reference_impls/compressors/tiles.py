"""How compressors go over large vectors on a CPU: in tiles of 512 neighbours, or at four places of the vector at a time.

A *tile* is 32 rows of 16 lanes: element i is in tile ``i // 512``, row ``i % 512 // 16``, lane ``i % 16``. Sixteen neighbours
are one vector instruction's worth; rows are what goes into one word (32 rows of one bit, 8 rows of four bits). Everything that
belongs to an element lies in its tile, so a large vector is read once from front to back. A kernel is an element-wise
function of tensors [T, rows .., 16], T tiles, compiled with all but T fixed.

A *pass* writes an integer for every element where it lies. Rounding at random is a long chain of instructions of which each
waits for the one before it. A processor that works on one such chain stands still for most of the time; of four chains of
four stretches of the vector it fills the gaps of one with the others.

Random numbers are those of the elements' own places (`compute.Key`), so nothing of this shows in the bits.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Final

import torch
from torch import Tensor

from reference_impls.core import compute
from reference_impls.core.compute import THRESHOLD, Compiled, Key, bits, bits_at

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


Draw = Callable[[], Tensor]
Formula = Callable[[Tensor, Tensor, Draw, int], Tensor]
_STRETCHES: Final = 4


class Pass:
    """``out = formula(x, y, draw, number)``, element by element.

    formula: gets pieces of x and y, a function that draws an int32 for each of their elements, and the number; a function
    at the top of a module. kernel: its name in `kernels.elementwise`, for one y a row; None: it is compiled for GPUs too.
    """

    def __init__(self, formula: Formula, name: str, kernel: str | None = None) -> None:
        self._formula = formula
        self._kernel = kernel
        self._rest = _whole(formula)
        self._whole = Compiled(_named(_whole(formula), formula, name))
        self._stretched = Compiled(_named(_stretched(formula), formula, name), tiles=True)

    def __call__(self, x: Tensor, y: Tensor, stream: Tensor, out: Tensor, number: int = 0) -> None:
        """Fill `out`.

        Args:
            x: [..., d].
            y: broadcasts against `x`: one number, [..., 1], or [..., d].
            stream: int32 [3] or [..., 3], of the random numbers, element i of a row with element i.
            out: [..., d]; may be `x`.
            number: passed on to the formula.
        """
        if (
            self._kernel
            and (y.dim() == 0 or y.shape[-1] == 1)
            and compute.takes(f"{self._kernel}.encode", x, out)
        ):
            from reference_impls.kernels import elementwise

            elementwise.encode(self._kernel, x, y, stream, out, number)
            return
        if x.numel() < THRESHOLD or x.device.type != "cpu":  # a GPU has other chains to work on
            self._whole(x, y, stream, out, number)
            return
        lead = x.shape[:-1]
        each = y.expand(*lead, y.shape[-1] if y.dim() else 1)
        for own, other, draws, target in rows(x, each, stream.expand(*lead, 3), out):
            self._row(own, other, draws, target, number)

    def _row(self, x: Tensor, y: Tensor, stream: Tensor, out: Tensor, number: int) -> None:
        """Vectors [d]; y [d] or [1]."""
        tiles = x.shape[-1] // (_STRETCHES * LANES)
        inside = _STRETCHES * LANES * tiles
        by_place = len(y) == len(x)
        if x.numel() < THRESHOLD:
            self._whole(x, y, stream, out, number)
            return
        cut = functools.partial(_cut, tiles=tiles)
        own = cut(y).transpose(0, 1) if by_place else y
        self._stretched(cut(x).transpose(0, 1), own, stream, lanes(x.device), *cut(out).unbind(0), number)
        if inside < len(x):
            rest = y[inside:] if by_place else y
            moved = Key(stream).at(inside).words
            self._rest(x[inside:], rest, moved, out[inside:], number)


def _cut(x: Tensor, tiles: int) -> Tensor:
    """[d] -> the stretches, [4, tiles, 16]; a view of the front."""
    return x[: _STRETCHES * tiles * LANES].view(_STRETCHES, tiles, LANES)


def _whole(formula: Formula) -> Callable[[Tensor, Tensor, Tensor, Tensor, int], None]:
    def run(x: Tensor, y: Tensor, stream: Tensor, out: Tensor, number: int) -> None:
        out.copy_(formula(x, y, functools.partial(bits, stream, x.shape[-1]), number))

    return run


def _stretched(
    formula: Formula,
) -> Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, int], None]:
    def run(
        x: Tensor,
        y: Tensor,
        stream: Tensor,
        lane: Tensor,
        a: Tensor,
        b: Tensor,
        c: Tensor,
        d: Tensor,
        number: int,
    ) -> None:
        """x and, if it is not one number, y: [T, 4, 16]; the stretches of the result: [T, 16]."""
        index = numbers(x.shape[0], LANES, 1, x.device) + lane
        for place, out in enumerate((a, b, c, d)):
            draw = functools.partial(bits_at, stream, index + place * LANES * x.shape[0])
            own = y[:, place] if y.dim() == 3 else y
            out.copy_(formula(x[:, place], own, draw, number))

    return run


def _named(run: Callable[..., None], formula: Formula, name: str) -> Callable[..., None]:
    """Counted under the formula's module and the pass's name (see `compute`)."""
    run.__name__, run.__module__ = name, formula.__module__
    return run
