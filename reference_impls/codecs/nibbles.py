"""Two 4-bit counters a byte, whose bytes may be added. Wire format version 1.

The format, to the bit
----------------------
d counters in 0 .. 15 take exactly B = ceil(d / 2) bytes: counter i < B is the low nibble (bits 0-3) of byte i, counter
B + i is the high nibble (bits 4-7) of byte i. For odd d the last high nibble is 0.

The bytes of several ranks may be summed as uint8 as long as every sum of counters stays at or below 15, since then
no nibble carries into its neighbour; `reducers.integer_sum` proves that before it sends. Signed codes in -s .. s travel
as counters q + s. Functions work on the last axis and accept any leading ones.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from reference_impls.compilation import compiled

__all__ = ["WIRE_VERSION", "pack", "unpack", "wire_bytes"]

WIRE_VERSION: Final = 1


def wire_bytes(numel: int) -> int:
    """Bytes on the wire for `numel` counters: ceil(numel / 2)."""
    return -(-numel // 2)


def _check(wire: Tensor, numel: int) -> None:
    if wire.dtype != torch.uint8 or wire.shape[-1] != wire_bytes(numel):
        raise ValueError(
            f"{numel} counters need a uint8 wire of {wire_bytes(numel)} bytes on its last axis, "
            f"not {wire.dtype} {tuple(wire.shape)}"
        )


@compiled
def _join(low: Tensor, high: Tensor, lowest: int, wire: Tensor) -> None:
    wire.copy_((low.to(torch.int32) - lowest) | ((high.to(torch.int32) - lowest) << 4))


@compiled
def _split(wire: Tensor, lowest: int, low: Tensor, high: Tensor) -> None:
    both = wire.to(torch.int32)
    low.copy_((both & 15) + lowest)
    high.copy_((both >> 4) + lowest)


def pack(counters: Tensor, wire: Tensor, lowest: int = 0) -> None:
    """Integers [..., d] of any integer dtype -> wire, uint8 [..., ceil(d / 2)].

    lowest: what counter 0 stands for. The integers are in lowest .. lowest + 15; the caller keeps the range.
    """
    numel = counters.shape[-1]
    _check(wire, numel)
    half = numel // 2
    first = wire.shape[-1]
    if half:
        _join(counters[..., :half], counters[..., first:], lowest, wire[..., :half])
    if numel % 2:
        wire[..., half].copy_(counters[..., half].to(torch.int32) - lowest)


def unpack(wire: Tensor, out: Tensor, lowest: int = 0) -> None:
    """Wire -> `out` [..., d], counters plus `lowest` in the integer dtype of `out`."""
    numel = out.shape[-1]
    _check(wire, numel)
    half = numel // 2
    first = wire.shape[-1]
    if half:
        _split(wire[..., :half], lowest, out[..., :half], out[..., first:])
    if numel % 2:
        out[..., half].copy_((wire[..., half] & 15).to(torch.int32) + lowest)
