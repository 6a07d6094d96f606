"""Values as numbers of bins, each of which decodes to the mean of what fell into it. Wire format version 1.

The message: the bins' numbers in b bits, then 2^b means, little-endian float32, 0 for an empty bin. Sums are by the fixed
tree. A value that is not finite makes its whole bin so. Biased: use error feedback.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from reference_impls.compressors import packing
from reference_impls.compressors.sums import fixed_mean, fixed_sum, root_mean_square
from reference_impls.core import compute
from reference_impls.core.compute import Key, compiled
from reference_impls.core.errors import UnsupportedError

WIRE_VERSION: Final = 1
SPREAD: Final = 6
"""Standard deviations that the bins of `DeviationBins` are wide in all."""


def wire_bytes(numel: int, bits: int) -> int:
    """Bytes of the message of `numel` values."""
    return packing.wire_bytes(numel, bits) + (4 << bits)


def write(values: Tensor, bins: Tensor, bits: int, wire: Tensor) -> None:
    """float [..., k] and their bins, int32 [..., k] of 0 .. 2^bits - 1 -> uint8 [..., `wire_bytes`(k)]."""
    means = []
    own, inside = compute.empty_like(values), compute.empty_like(values, torch.bool)
    for number in range(1 << bits):
        torch.eq(bins, number, out=inside)
        counts = [torch.count_nonzero(row) for row in inside.view(-1, inside.shape[-1])]
        count = torch.stack(counts).view(inside.shape[:-1]).clamp(min=1)
        means.append(fixed_sum(own.copy_(values).masked_fill_(inside.logical_not_(), 0.0)) / count)
    table = 4 << bits
    packing.pack(bins, bits, wire[..., :-table])
    wire[..., -table:].copy_(torch.stack(means, dim=-1).to(torch.float32).view(torch.uint8))


def read(wire: Tensor, bits: int, numel: int) -> Tensor:
    """The inverse: uint8 [..., `wire_bytes`(numel)] -> float32 [..., numel]."""
    table = 4 << bits
    bins = compute.empty((*wire.shape[:-1], numel), torch.int32, wire.device)
    packing.unpack(wire[..., :-table], bits, bins)
    means = wire[..., -table:].clone(memory_format=torch.contiguous_format).view(torch.float32)
    out = compute.empty_like(bins, torch.float32)
    return torch.gather(means, -1, compute.empty_like(bins, torch.int64).copy_(bins), out=out)


@compiled
def _around_the_mean(x: Tensor, mean: Tensor, step: Tensor, levels: float, bins: Tensor) -> None:
    place = ((x - mean) / step + levels / 2).round()
    bins.copy_(torch.where(place != place, 0.0, place).clamp(0, levels - 1).to(torch.int32))


@dataclass(frozen=True)
class DeviationBins:
    """Compressor: 2^b bins of one width around the mean. MuLoCo's ``statistical`` quantiser, arXiv 2505.23725.

    With L = 2^b and s the unbiased standard deviation of the message, a bin is 6 s / L wide, and x lies in bin
    round((x - mean) / width + L / 2), half to even, cut to 0 .. L - 1: bins are centred on multiples of the width from
    -L/2 to L/2 - 1, so the outermost on the upper side is nearer than on the lower. Of equal values the width is 1.
    """

    bits: int = 4

    def __post_init__(self) -> None:
        if not 1 <= self.bits <= 4:
            raise UnsupportedError(f"bins want 1 to 4 bits, got {self.bits}")

    def wire_bytes(self, numel: int) -> int:
        return wire_bytes(numel, self.bits) if numel else 0

    def encode(self, x: Tensor, key: Key, wire: Tensor) -> None:
        numel, levels = x.shape[-1], 1 << self.bits
        if not numel:
            return
        mean = fixed_mean(x).unsqueeze(-1)
        around = torch.sub(x, mean, out=compute.empty_like(x))
        deviation = root_mean_square(around).unsqueeze(-1) * math.sqrt(numel / max(numel - 1, 1))
        width = deviation * (SPREAD / levels)
        bins = compute.empty_like(x, torch.int32)
        _around_the_mean(x, mean, torch.where(width == 0, 1.0, width), float(levels), bins)
        write(x, bins, self.bits, wire)

    def decode(self, wire: Tensor, out: Tensor) -> None:
        if out.shape[-1]:
            out.copy_(read(wire, self.bits, out.shape[-1]))
