"""Digits 0, 1, 2, five a byte: 1.6 bits each, where 1.585 are the least possible. Wire format version 1.

d digits take exactly W = ceil(d / 5) bytes: digit i is digit ``i // W`` of byte ``i % W``, which is the sum of its digits
times 3^place, at most 242. Digits beyond d are 0. Functions work on the last axis and accept any leading ones.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

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
def _join(digits: Tensor, wire: Tensor) -> None:
    total = digits[..., 0, :].to(torch.int32)
    for place in range(1, _PLACES):
        total = total + digits[..., place, :].to(torch.int32) * 3**place
    wire.copy_(total)


@compiled
def _split(wire: Tensor, powers: Tensor, digits: Tensor) -> None:
    digits.copy_(wire.to(torch.int32).unsqueeze(-2) // powers % 3)


def pack(digits: Tensor, wire: Tensor) -> None:
    """Integers 0 .. 2 [..., d] (the caller keeps the range) -> wire, uint8 [..., ceil(d / 5)]."""
    numel = digits.shape[-1]
    _check(wire, numel)
    if numel:
        padded = functional.pad(digits, (0, _PLACES * wire.shape[-1] - numel))
        _join(padded.view(*padded.shape[:-1], _PLACES, -1), wire)


def unpack(wire: Tensor, out: Tensor) -> None:
    """Wire -> `out` [..., d], digits 0 .. 2 in the integer dtype of `out`."""
    numel = out.shape[-1]
    _check(wire, numel)
    if numel:
        powers = (3 ** torch.arange(_PLACES, dtype=torch.int32, device=wire.device)).unsqueeze(-1)
        digits = torch.empty(*wire.shape[:-1], _PLACES, wire.shape[-1], dtype=torch.int32, device=wire.device)
        _split(wire, powers, digits)
        out.copy_(digits.flatten(-2)[..., :numel])
