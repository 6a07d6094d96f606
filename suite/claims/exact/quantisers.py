"""Quantisers by enumeration: expectations over all draws of a grid on which the probabilities are exact."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from reference_impls.codecs import dithering
from reference_impls.codecs import exponential as powers
from reference_impls.codecs.natural import Natural

_GRID = 256
_JOINT = 4
"""Most ranks whose joint draws are enumerated; beyond, expectations add up rank by rank."""


def standard(*, bits: int = 8, workers: list[int]) -> dict[str, float]:
    """Standard dithering: largest bias of one rank's code, in levels, and of the decoded mean of n ranks over all joint draws,
    in the scale.

    Numbers are multiples of 1 / 256 of the scale, so that fp32 holds their multiples by s levels exactly, and draws are those of
    1 / 256: a probability is a number of draws.
    """
    alone, together = 0.0, 0.0
    draws, scale = torch.arange(_GRID, dtype=torch.float32) / _GRID, torch.tensor(1.0)
    x = torch.arange(-_GRID, _GRID + 1, dtype=torch.float32)[:, None] / _GRID
    for n in workers:
        s = dithering.levels(bits, n)
        codes = dithering.rounded(x, scale, s, draws).double()
        alone = max(alone, float((codes.mean(-1, keepdim=True) - s * x.double()).abs().max()))
        if n <= _JOINT:
            together = max(together, _joint(n, s))
    return {"bias_of_a_code": alone, "bias_of_the_mean": together}


def _joint(n: int, s: int) -> float:
    """Ranks with quarters of the scale, all 4^n joint draws."""
    values = torch.tensor([0.75, -0.25, 0.5, -1.0][:n])
    scale, draws = torch.tensor(1.0), torch.arange(4) / 4
    codes = [dithering.rounded(v.expand(4), scale, s, draws) for v in values]
    sums = torch.stack([sum(choice, torch.tensor(0)) for choice in itertools.product(*codes)]).to(torch.int32)
    mean = torch.empty(len(sums))
    dithering.decode(sums, scale, s, n, mean)
    return abs(float(mean.double().mean()) - float(values.double().mean()))


def _value(codes: Tensor) -> Tensor:
    """Magnitudes with signs, in units of the normaliser, as float64."""
    c = codes.int() & 127
    magnitude = torch.where(c == 0, 0.0, torch.exp2(-c.double()))
    return torch.where(codes.int() > 127, -magnitude, magnitude)


def exponential(*, largest: int = 40, apart: int = 10) -> dict[str, float]:
    """Exponential dithering's addition of two codes, over all exponents 2 .. largest, both signs, and all tosses of `apart`
    bits: largest relative bias of the sum, and largest second moment over the square (9/8 is natural compression's)."""
    words, bias, moment = torch.arange(1 << apart, dtype=torch.int32), 0.0, 0.0
    for a, b, sign in itertools.product(range(2, largest), range(2, largest), (0, 128)):
        if abs(a - b) > apart:
            continue
        one, other = torch.tensor([a], dtype=torch.uint8), torch.tensor([b | sign], dtype=torch.uint8)
        exact = float(_value(one) + _value(other))
        found = _value(powers.add_with(one.expand(len(words)), other.expand(len(words)), words))
        if exact == 0:
            bias = max(bias, float(found.abs().max()))
            continue
        bias = max(bias, abs(float(found.mean()) / exact - 1))
        moment = max(moment, float(found.square().mean()) / exact**2)
    return {"bias": bias, "second_moment": moment}


def headroom(*, bits: int, workers: list[int]) -> dict[str, float]:
    """All ranks at plus or at minus the maximum: by how much the largest sum of standard dithering's codes goes beyond the
    integer (0: nowhere), and the smallest code that a balanced sum of exponential dithering's reaches (1: no overflow)."""
    excess, smallest = -float("inf"), 127
    for n in workers:
        s = dithering.levels(bits, n)
        codes = dithering.rounded(torch.tensor([1.0, -1.0]), torch.tensor(1.0), s, torch.zeros(2))
        excess = max(excess, float((codes * n).abs().max()) - ((1 << (bits - 1)) - 1))
        smallest = min(smallest, _balanced(n))
    return {"largest_excess": excess, "smallest_code": smallest}


def _balanced(n: int) -> int:
    """Exponent that n ranks at the maximum reach when they are added pair by pair."""
    room = (n - 1).bit_length()
    level = [torch.tensor([1 + room], dtype=torch.uint8)] * n
    word = torch.zeros(1, dtype=torch.int32)  # every toss succeeds: the largest sum there can be
    while len(level) > 1:
        pairs = [level[i : i + 2] for i in range(0, len(level), 2)]
        level = [powers.add_with(pair[0], pair[1], word) if len(pair) == 2 else pair[0] for pair in pairs]
    return int(level[0])


def natural(*, mantissa_bits: int = 8) -> dict[str, float]:
    """Natural compression over all mantissas of so many bits and all draws: relative bias, and largest relative variance."""
    codec, step = Natural(), 1 << (23 - mantissa_bits)
    mantissas = torch.arange(1 << mantissa_bits, dtype=torch.int32) * step
    draws = torch.arange(1 << mantissa_bits, dtype=torch.int32) * step
    x = (mantissas | (127 << 23))[:, None].expand(-1, len(draws))
    got = codec.value(codec.code(x, (), lambda: draws), ()).double()
    exact = x[:, :1].contiguous().view(torch.float32).double()
    return {
        "bias": float((got.mean(-1, keepdim=True) / exact - 1).abs().max()),
        "relative_variance": float(((got - exact) / exact).square().mean(-1).max()),
    }
