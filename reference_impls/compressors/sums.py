"""Sums and norms of floats in a fixed order, so that a scale has the same bits compiled, eager and on any threads.

The tree of `fixed_sum`, which is part of every wire format whose scale is a sum:

1. Zeros are appended up to a multiple of 1024, and the vector is cut into blocks of 1024.
2. A block is 64 rows of 16. They become 32 rows by adding row 2 r + 1 to row 2 r, element by element, then 16 and so on
   down to 1; its 16 elements become 8 by adding element i + 8 to element i, then 4, 2 and 1. (Neighbouring rows first: a
   pass that leaps about in its block reads memory at a third of the speed.)
3. The B block sums become ceil(B / 2): a zero is appended when B is odd, then element i + B/2 is added to element i;
   again until one is left.

Every addition is one IEEE addition in the dtype of what is added.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Literal

import torch
from torch import Tensor
from torch.nn import functional

from reference_impls.compressors.tiles import LANES
from reference_impls.core import compute
from reference_impls.core.compute import THRESHOLD, Compiled, compiled

BLOCK = 1024
_LAUNCHES: Final = (
    1 << 20
)  # elements below which a GPU's time is that of its launches: there a kernel has two, the tree scores
_FEW: Final = 1 << 13  # rows, whose maxima take 32 KiB

Of = Literal["x", "abs", "square", "wide square"]
_TERMS: Final[dict[Of, Callable[[Tensor], Tensor]]] = {
    "x": lambda x: x,
    "abs": torch.abs,
    "square": torch.square,
    "wide square": lambda x: x.to(torch.float64).square(),
}


def fixed_sum(x: Tensor, of: Of = "x", factor: Tensor | None = None) -> Tensor:
    """Sum over the last axis by the tree above: [..., d] -> [...]. Zero for d = 0; NaN and inf pass.

    of: what is added: x itself, |x|, x^2, or x^2 in float64, which is then the dtype of the sum; else that of x.
    factor: x is multiplied by it before, broadcast to [..., 1].
    """
    if x.is_meta:  # of what has no values, a thousand steps of a tree are none
        return x.new_empty(x.shape[:-1], dtype=torch.float64 if of == "wide square" else x.dtype)
    floats = x.dtype in (torch.float32, torch.float64)
    if floats and 0 < x.numel() < _LAUNCHES and compute.takes("sums.fixed_sum", x):
        from reference_impls.kernels import sums as on_gpu

        return on_gpu.fixed_sum(x, of, factor)
    if x.dim() > 1 and x.shape[-1] >= THRESHOLD:  # each row is worth compiling, and lies in one piece
        each = (None,) * len(x) if factor is None else factor.expand(*x.shape[:-1], 1)
        return torch.stack([fixed_sum(row, of, own) for row, own in zip(x, each, strict=True)])
    full = x.shape[-1] // BLOCK * BLOCK
    parts = [_blocks(x[..., :full].unflatten(-1, (-1, BLOCK)), of, factor)] if full else []  # type: ignore[no-untyped-call]
    if full < x.shape[-1] or not full:
        parts.append(_blocks(x[..., full:].unsqueeze(-2), of, factor))
    total = parts[0]
    if len(parts) > 1:
        count = sum(part.shape[-1] for part in parts)
        room = compute.empty((*total.shape[:-1], count), total.dtype, total.device)
        total = torch.cat(parts, dim=-1, out=room)
    while total.shape[-1] > 1:
        half = -(-total.shape[-1] // 2)
        pairs = total.shape[-1] - half
        halved = compute.empty((*total.shape[:-1], half), total.dtype, total.device)
        torch.add(total[..., :pairs], total[..., half:], out=halved[..., :pairs])
        torch.add(total[..., pairs:half], 0.0, out=halved[..., pairs:])
        total = halved
    return total.squeeze(-1)


def _blocks(x: Tensor, of: Of, factor: Tensor | None) -> Tensor:
    """[..., B, d], d <= 1024 -> the sum of each, filled up with zeros to 1024: [..., B]."""
    width = x.shape[-1]
    rows = width // LANES
    even = width > 0 and width % LANES == 0 and rows & (rows - 1) == 0
    one_row = factor is None or factor.numel() == 1
    if not (
        even and one_row and x.is_contiguous() and x.numel() >= THRESHOLD and (of != "x" or width == BLOCK)
    ):
        term = _TERMS[of](x if factor is None else x * factor.unsqueeze(-1))
        term = functional.pad(term, (0, BLOCK - width)).unflatten(-1, (-1, LANES))  # type: ignore[no-untyped-call]
        while term.shape[-2] > 1:
            term = term[..., 0::2, :] + term[..., 1::2, :]
        return _halves(term.squeeze(-2).unbind(-1))
    dtype = torch.float64 if of == "wide square" else x.dtype
    tiles = x.view(-1, rows, LANES)
    by_lane = compute.empty((len(tiles), LANES), dtype, x.device)
    _row_folder(of, factor is not None)(tiles, by_lane, *([] if factor is None else [factor.view(1)]))
    out = compute.empty(len(tiles), dtype, x.device)
    _fold_lanes(by_lane, out)
    return out.view(x.shape[:-1])


@functools.cache
def _row_folder(of: Of, scaled: bool) -> Compiled[..., None]:
    """[T, rows, 16] -> [T, 16] by pairs of rows."""

    def fold(x: Tensor, out: Tensor, *factor: Tensor) -> None:
        parts = [_TERMS[of](row * factor[0] if scaled else row) for row in x.unbind(-2)]
        while len(parts) > 1:
            parts = [parts[i] + parts[i + 1] for i in range(0, len(parts), 2)]
        out.copy_(parts[0])

    return Compiled(fold, tiles=True)


@compiled
def _fold_lanes(x: Tensor, out: Tensor) -> None:
    out.copy_(_halves(x.unbind(-1)))


def _halves(parts: Sequence[Tensor]) -> Tensor:
    """The sum of a power of two of parts, by adding part i + half to part i until one is left."""
    while len(parts) > 1:
        half = len(parts) // 2
        parts = [parts[i] + parts[i + half] for i in range(half)]
    return parts[0]


@compiled
def _maxima(x: Tensor, out: Tensor) -> None:
    out.copy_(x.abs().amax(-1))  # a maximum is the same in every order


def few_rows(x: Tensor, *out: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """[R, ..] with as many of others, by pieces: compiled reductions keep what they find aside first, little of few rows."""
    count = max(_FEW, -(-THRESHOLD // x.shape[-1]))
    return zip(*(torch.split(part, count) for part in (x, *out)), strict=True)


def largest(x: Tensor) -> Tensor:
    """The largest magnitude, [..., d], d >= 1 -> [...]; NaN where an element is NaN."""
    if x.dim() == 1:
        least, most = torch.aminmax(x)  # reads at the memory's speed, which a maximum of magnitudes does not
        return torch.maximum(least.abs(), most.abs())
    if x.numel() < THRESHOLD:
        return x.abs().amax(-1)
    if x.dim() > 2 or x.shape[-1] >= THRESHOLD:
        return torch.stack([largest(row) for row in x])
    out = compute.empty(len(x), x.dtype, x.device)
    for some, target in few_rows(x, out):
        _maxima(some, target)
    return out


def fixed_mean(x: Tensor, of: Of = "x") -> Tensor:
    """`fixed_sum(x, of)` / d, [..., d] -> [...]; zero for d = 0."""
    return fixed_sum(x, of) / max(x.shape[-1], 1)


def root_mean_square(x: Tensor, count: Tensor | None = None) -> Tensor:
    """Root of the fixed sum of x^2 / count (default: d; at least 1), [..., d] -> [...]; zero for d = 0.

    Squares are taken of x over a power of two near its largest magnitude, so that none overflows or vanishes; where
    neither would have happened, the bits are those of the plain formula.
    """
    if x.shape[-1] == 0:
        return x.new_zeros(x.shape[:-1])
    most = 126 if x.dtype == torch.float32 else 1022
    exponent = torch.frexp(largest(x).unsqueeze(-1)).exponent.clamp(-most, most)
    factor = torch.ldexp(torch.ones_like(exponent, dtype=x.dtype), -exponent)
    elements = x.shape[-1] if count is None else count.clamp(min=1)
    return torch.ldexp((fixed_sum(x, "square", factor) / elements).sqrt(), exponent.squeeze(-1))
