"""Digits 0, 1, 2, five a byte: 1.6 bits each, where 1.585 are the least possible. Wire format version 1.

d digits take exactly W = ceil(d / 5) bytes: digit i is digit ``i // W`` of byte ``i % W``, which is the sum of its digits
times 3^place, at most 242. Digits beyond d are 0. Functions work on the last axis and accept any leading ones.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from reference_impls.compilation import compiled

__all__ = ["WIRE_VERSION", "pack", "unpack", "wire_bytes"]

WIRE_VERSION: Final = 1
_PLACES: Final = 5


def wire_bytes(numel: int) -> int:
    """Bytes on the wire for `numel` digits: ceil(numel / 5)."""
    return -(-numel // _PLACES)


def _check(wire: Tensor, numel: int) -> None:
    if wire.dtype != torch.uint8 or wire.shape[-1] != wire_bytes(numel):
        raise ValueError(
            f"{numel} digits need a uint8 wire of {wire_bytes(numel)} bytes on its last axis, "
            f"not {wire.dtype} {tuple(wire.shape)}"
        )


@compiled
def _join(a: Tensor, b: Tensor, c: Tensor, d: Tensor, e: Tensor, lowest: int, wire: Tensor) -> None:
    one, three, nine, more, most = (digits.to(torch.int32) - lowest for digits in (a, b, c, d, e))
    wire.copy_(one + 3 * three + 9 * nine + 27 * more + 81 * most)


@compiled
def _split(wire: Tensor, lowest: int, a: Tensor, b: Tensor, c: Tensor, d: Tensor, e: Tensor) -> None:
    rest = wire.to(torch.int32)
    for digits in (a, b, c, d):
        third = (rest * 171) >> 9  # a third of anything up to 255
        digits.copy_(rest - 3 * third + lowest)
        rest = third
    e.copy_(rest + lowest)


def _stretches(digits: Tensor, step: int, first: int, last: int) -> list[Tensor]:
    """The digits of the bytes from `first` to `last`, by place; those that are there."""
    parts = [digits[..., place * step + first : place * step + last] for place in range(_PLACES)]
    return [part for part in parts if part.shape[-1] == last - first]


def pack(digits: Tensor, wire: Tensor, lowest: int = 0) -> None:
    """Integers [..., d] from `lowest` on (the caller keeps the range) -> wire, uint8 [..., ceil(d / 5)].

    lowest: what digit 0 stands for; with -1 the digits stand for -1, 0 and 1.
    """
    numel = digits.shape[-1]
    _check(wire, numel)
    step = wire.shape[-1]
    full = max(numel - (_PLACES - 1) * step, 0)  # bytes of five digits
    if full:
        one, two, three, four, five = _stretches(digits, step, 0, full)
        _join(one, two, three, four, five, lowest, wire[..., :full])
    for place in range(full, step):  # four at most
        parts = _stretches(digits, step, place, place + 1)
        total = sum((part.to(torch.int32) - lowest) * 3**power for power, part in enumerate(parts))
        wire[..., place : place + 1].copy_(total)


def unpack(wire: Tensor, out: Tensor, lowest: int = 0) -> None:
    """Wire -> `out` [..., d], `lowest` and up in the integer dtype of `out`."""
    numel = out.shape[-1]
    _check(wire, numel)
    step = wire.shape[-1]
    full = max(numel - (_PLACES - 1) * step, 0)
    if full:
        one, two, three, four, five = _stretches(out, step, 0, full)
        _split(wire[..., :full], lowest, one, two, three, four, five)
    for place in range(full, step):
        for power, part in enumerate(_stretches(out, step, place, place + 1)):
            part.copy_(wire[..., place : place + 1].to(torch.int32) // 3**power % 3 + lowest)
