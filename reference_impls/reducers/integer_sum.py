"""Sum of small integers over a group, in as many bits as were paid for, with head-room that is proven before sending.

bits  travels as                                                           bytes that a rank sends for d codes
4     two counters q + limit a byte (`codecs.nibbles`), uint8 all-reduce     2 (n-1)/n ceil(d/2)
8     int8 all-reduce                                                      2 (n-1)/n d
16    two phases over pieces of c = ceil(d/n) codes, since gloo cannot     2 (n-1) 2 c
      add int16: all-to-all of the bytes, sum at the owner, all-gather
32    int32 all-reduce                                                     2 (n-1)/n 4 d

Integer sums have the same bits in every order, on every backend and rank. With 4 bits, an odd d's last counter shares
its byte with nothing. With 16 bits, the last pieces are padded with zeros, which are sent.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from reference_impls.codecs import nibbles
from reference_impls.collectives import Exchange, Group
from reference_impls.errors import UnsupportedError

__all__ = ["WIDTHS", "integer_sum"]

WIDTHS: Final = (4, 8, 16, 32)


def _prove(bits: int, limit: int, size: int, stage: str) -> None:
    if bits not in WIDTHS:
        raise UnsupportedError(f"stage {stage!r}: integers travel in 4, 8, 16 or 32 bits, not in {bits}")
    largest = (1 << (bits - 1)) - 1
    if limit < 1 or size * limit > largest:
        raise UnsupportedError(
            f"stage {stage!r}: {size} ranks with codes of -{limit} .. {limit} can reach {size * limit}, but {bits} bits "
            f"hold sums up to {largest}: use at most {largest // size} levels a rank, or more bits"
        )


def integer_sum(group: Group, codes: Tensor, bits: int, limit: int, stage: str) -> Exchange[Tensor]:
    """Element-wise sum over the group.

    Args:
        codes: integers [d], d >= 1, each in -limit .. limit (the caller's promise; int8 suits 4 and 8 bits, int16 suits
            16, int32 suits 32; another dtype is converted). May be consumed.
        bits: width of a code on the wire and of the sum: 4, 8, 16 or 32.
        limit: largest magnitude of a code.
        stage: of the collectives; with 16 bits they are called ``<stage>-up`` and ``<stage>-down``.

    Returns:
        [d], int8 (4 and 8 bits), int16 or int32.

    Raises:
        UnsupportedError: size * limit does not fit `bits`; raised on every rank before anything is sent.
    """
    _prove(bits, limit, group.size, stage)
    if bits == 4:
        return (yield from _nibble_sum(group, codes, limit, stage))
    if bits == 16:
        return (yield from _two_phase_sum(group, codes, stage))
    return (yield from group.sum(codes.to(torch.int8 if bits == 8 else torch.int32), stage))


def _nibble_sum(group: Group, codes: Tensor, limit: int, stage: str) -> Exchange[Tensor]:
    wire = torch.empty(nibbles.wire_bytes(codes.numel()), dtype=torch.uint8, device=codes.device)
    nibbles.pack(codes + limit, wire)
    wire = yield from group.sum(wire, stage)
    total = torch.empty(codes.numel(), dtype=torch.int8, device=codes.device)
    nibbles.unpack(wire, total)
    return total.sub_(group.size * limit)


def _two_phase_sum(group: Group, codes: Tensor, stage: str) -> Exchange[Tensor]:
    numel, size = codes.numel(), group.size
    piece = -(-numel // size)
    padded = torch.zeros(size * piece, dtype=torch.int16, device=codes.device)
    padded[:numel].copy_(codes)
    pieces = yield from group.all_to_all(padded.view(torch.uint8), f"{stage}-up")
    mine = pieces.view(torch.int16).sum(0, dtype=torch.int16)
    sums = yield from group.gather(mine.view(torch.uint8), f"{stage}-down")
    return sums.view(torch.int16).view(-1)[:numel]
