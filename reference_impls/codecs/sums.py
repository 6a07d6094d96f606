"""Sums and norms of floats in a fixed order, so that a scale has the same bits compiled, eager and on any threads.

The tree of `fixed_sum`, which is part of every wire format whose scale is a sum:

1. Zeros are appended up to a multiple of 1024, and the vector is cut into blocks of 1024.
2. A block of 1024 becomes 512 by adding element i + 512 to element i, then 256 and so on down to 1.
3. The B block sums become ceil(B / 2): a zero is appended when B is odd, then element i + B/2 is added to element i;
   again until one is left.

Every addition is one IEEE addition in the dtype of the input.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["BLOCK", "fixed_mean", "fixed_sum", "root_mean_square"]

BLOCK = 1024


def _halves(x: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return x[..., :half] + x[..., half:]


def fixed_sum(x: Tensor) -> Tensor:
    """Sum over the last axis by the tree above: [..., d] -> [...], same dtype. Zero for d = 0; NaN and inf pass."""
    full = x.shape[-1] // BLOCK * BLOCK
    rest = x.shape[-1] - full
    parts = [x[..., :full].view(*x.shape[:-1], -1, BLOCK)] if full else []
    if rest or not full:
        parts.append(functional.pad(x[..., full:], (0, BLOCK - rest)).unsqueeze(-2))
    sums = []
    for blocks in parts:
        while blocks.shape[-1] > 1:
            blocks = _halves(blocks)
        sums.append(blocks.squeeze(-1))
    total = torch.cat(sums, dim=-1) if len(sums) > 1 else sums[0]
    while total.shape[-1] > 1:
        total = _halves(functional.pad(total, (0, total.shape[-1] % 2)))
    return total.squeeze(-1)


def fixed_mean(x: Tensor) -> Tensor:
    """`fixed_sum(x)` / d, [..., d] -> [...]; zero for d = 0."""
    return fixed_sum(x) / max(x.shape[-1], 1)


def root_mean_square(x: Tensor, count: Tensor | None = None) -> Tensor:
    """Root of `fixed_sum(x^2)` / count (default: d; at least 1), [..., d] -> [...]; zero for d = 0.

    Squares are taken of x over a power of two near its largest magnitude, so that none overflows or vanishes; where
    neither would have happened, the bits are those of the plain formula.
    """
    if x.shape[-1] == 0:
        return x.new_zeros(x.shape[:-1])
    most = 126 if x.dtype == torch.float32 else 1022
    exponent = torch.frexp(x.abs().amax(-1, keepdim=True)).exponent.clamp(-most, most)
    elements = x.shape[-1] if count is None else count.clamp(min=1)
    return torch.ldexp(
        (fixed_sum(torch.ldexp(x, -exponent).square()) / elements).sqrt(), exponent.squeeze(-1)
    )
