"""Element-wise passes over large vectors, at four places of the vector at a time.

Rounding at random is a long chain of instructions of which each waits for the one before it. A processor that works on
one such chain stands still for most of the time; of four chains of four stretches of the vector it fills the gaps of one
with the others. Every element's result is that of the formula at its place, so nothing of this shows in the bits.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Final

from torch import Tensor

from reference_impls import kernels
from reference_impls.codecs.tiles import LANES, lanes, numbers, rows
from reference_impls.compilation import THRESHOLD, Compiled, CompiledTiles
from reference_impls.randomness import Key, bits, bits_at

__all__ = ["Draw", "Pass"]

Draw = Callable[[], Tensor]
Formula = Callable[[Tensor, Tensor, Draw, int, int], Tensor]

_STRETCHES: Final = 4


class Pass:
    """``out = formula(x, y, draw, first, second)``, element by element.

    formula: gets pieces of x and y, a function that draws an int32 for each of their elements, and two numbers; a function
    at the top of a module. kernel: its name in `kernels.elementwise`, for one y a row; None: it is compiled for GPUs too.
    """

    def __init__(self, formula: Formula, name: str, kernel: str | None = None) -> None:
        self._formula = formula
        self._kernel = kernel
        self._rest = _whole(formula)
        self._whole = Compiled(_named(_whole(formula), formula, name))
        self._stretched = CompiledTiles(_named(_stretched(formula), formula, name))

    def __call__(
        self, x: Tensor, y: Tensor, stream: Tensor, out: Tensor, first: int = 0, second: int = 0
    ) -> None:
        """Fill `out`.

        Args:
            x: [..., d].
            y: broadcasts against `x`: one number, [..., 1], or [..., d].
            stream: int32 [3] or [..., 3], of the random numbers, element i of a row with element i.
            out: [..., d]; may be `x`.
            first, second: passed on to the formula.
        """
        if (
            self._kernel
            and (y.dim() == 0 or y.shape[-1] == 1)
            and kernels.takes(f"{self._kernel}.encode", x, out)
        ):
            from reference_impls.kernels import elementwise

            elementwise.encode(self._kernel, x, y, stream, out, first)
            return
        if x.numel() < THRESHOLD or x.device.type != "cpu":  # a GPU has other chains to work on
            self._whole(x, y, stream, out, first, second)
            return
        lead = x.shape[:-1]
        each = y.expand(*lead, y.shape[-1] if y.dim() else 1)
        for own, other, draws, target in rows(x, each, stream.expand(*lead, 3), out):
            self._row(own, other, draws, target, first, second)

    def _row(self, x: Tensor, y: Tensor, stream: Tensor, out: Tensor, first: int, second: int) -> None:
        """Vectors [d]; y [d] or [1]."""
        tiles = x.shape[-1] // (_STRETCHES * LANES)
        inside = _STRETCHES * LANES * tiles
        by_place = len(y) == len(x)
        if x.numel() < THRESHOLD:
            self._whole(x, y, stream, out, first, second)
            return
        cut = functools.partial(_cut, tiles=tiles)
        own = cut(y).transpose(0, 1) if by_place else y
        self._stretched(
            cut(x).transpose(0, 1), own, stream, lanes(x.device), *cut(out).unbind(0), first, second
        )
        if inside < len(x):
            rest = y[inside:] if by_place else y
            moved = Key(stream).at(inside).words
            self._rest(x[inside:], rest, moved, out[inside:], first, second)


def _cut(x: Tensor, tiles: int) -> Tensor:
    """[d] -> the stretches, [4, tiles, 16]; a view of the front."""
    return x[: _STRETCHES * tiles * LANES].view(_STRETCHES, tiles, LANES)


def _whole(formula: Formula) -> Callable[[Tensor, Tensor, Tensor, Tensor, int, int], None]:
    def run(x: Tensor, y: Tensor, stream: Tensor, out: Tensor, first: int, second: int) -> None:
        out.copy_(formula(x, y, functools.partial(bits, stream, x.shape[-1]), first, second))

    return run


def _stretched(
    formula: Formula,
) -> Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, int, int], None]:
    def run(
        x: Tensor,
        y: Tensor,
        stream: Tensor,
        lane: Tensor,
        a: Tensor,
        b: Tensor,
        c: Tensor,
        d: Tensor,
        first: int,
        second: int,
    ) -> None:
        """x and, if it is not one number, y: [T, 4, 16]; the stretches of the result: [T, 16]."""
        index = numbers(x.shape[0], LANES, 1, x.device) + lane
        for place, out in enumerate((a, b, c, d)):
            draw = functools.partial(bits_at, stream, index + place * LANES * x.shape[0])
            own = y[:, place] if y.dim() == 3 else y
            out.copy_(formula(x[:, place], own, draw, first, second))

    return run


def _named(run: Callable[..., None], formula: Formula, name: str) -> Callable[..., None]:
    """Counted under the formula's module and the pass's name (see `compilation`)."""
    run.__name__, run.__module__ = name, formula.__module__
    return run
