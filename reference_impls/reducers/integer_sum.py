"""Sum of small integers over a group, in as many bits as were paid for, with head-room that is proven before sending.

form        bits  travels as                                                   bytes that a rank sends for d codes
all-reduce  4     two counters q + limit a byte (`codecs.nibbles`), uint8        2 (n-1)/n ceil(d/2)
            8     int8                                                         2 (n-1)/n d
            16    two phases over pieces of c = ceil(d/n) codes, since gloo    2 (n-1) 2 c
                  cannot add int16: all-to-all of the bytes, sum at the
                  owner, all-gather
            32    int32                                                        2 (n-1)/n 4 d
two-phase   2-31  packed (`codecs.packed_integers`), each way in as few bits     (n-1) (ceil(u c/8) + ceil(v c/8))
                  as its range needs: u = width(2 limit) up, which is below
                  `bits`, and v = width(2 n limit) down

`sign_of_sum` answers the sign alone, for which v = 2 suffices. Sending each way no more than its range needs is ours.

Integer sums have the same bits in every order, on every backend and rank. With 4 bits, an odd d's last counter shares
its byte with nothing. In two phases the last pieces are padded with zeros, which are sent, and each piece of packed
codes to whole bytes.
"""

from __future__ import annotations

from typing import Final, Literal

import torch
from torch import Tensor

from reference_impls import buffers, wire
from reference_impls.codecs import nibbles, packed_integers
from reference_impls.collectives import Exchange, Group
from reference_impls.errors import UnsupportedError

__all__ = ["FORMS", "WIDTHS", "Form", "bytes_sent", "integer_sum", "sign_bytes_sent", "sign_of_sum"]

Form = Literal["all-reduce", "two-phase"]
FORMS: Final[tuple[Form, ...]] = ("all-reduce", "two-phase")
WIDTHS: Final = (4, 8, 16, 32)
_SIGN_BITS: Final = 2  # -1, 0 and +1


def _prove(bits: int, limit: int, size: int, form: str, stage: str) -> None:
    if form == "all-reduce" and bits not in WIDTHS:
        raise UnsupportedError(
            f"stage {stage!r}: integers are added on the way in 4, 8, 16 or 32 bits, not in {bits}; "
            "in two phases any width will do"
        )
    if not 2 <= bits <= 32:
        raise UnsupportedError(f"stage {stage!r}: sums have 2 to 32 bits, not {bits}")
    largest = (1 << (bits - 1)) - 1
    if limit < 1 or size * limit > largest:
        raise UnsupportedError(
            f"stage {stage!r}: {size} ranks with codes of -{limit} .. {limit} can reach {size * limit}, but {bits} bits "
            f"hold sums up to {largest}: use at most {largest // size} levels a rank, or more bits"
        )
    if form == "two-phase" and packed_integers.width(2 * size * limit) > packed_integers.WIDEST:
        raise UnsupportedError(
            f"stage {stage!r}: {packed_integers.WIDEST} bits is all that packs; use fewer levels"
        )


def integer_sum(
    group: Group, codes: Tensor, bits: int, limit: int, stage: str, form: Form = "all-reduce"
) -> Exchange[Tensor]:
    """Element-wise sum over the group.

    Args:
        codes: integers [d], d >= 1, each in -limit .. limit (the caller's promise; int8 suits 4 and 8 bits, int16 suits
            16, int32 suits 32; another dtype is converted). May be consumed.
        bits: width of the sum, and where codes are added on the way, of a code.
        limit: largest magnitude of a code.
        stage: of the collectives; in two phases they are called ``<stage>-up`` and ``<stage>-down``.
        form: see the module's text.

    Returns:
        [d], int8 (4 and 8 bits), int16 or int32; int32 for packed codes.

    Raises:
        UnsupportedError: size * limit does not fit `bits`; raised on every rank before anything is sent.
    """
    _prove(bits, limit, group.size, form, stage)
    if form == "two-phase":
        mine = yield from _piece_of_sum(group, codes, limit, stage)
        down = packed_integers.width(2 * group.size * limit)
        total = yield from _everywhere(group, mine.add_(group.size * limit), down, codes.numel(), stage)
        return total.sub_(group.size * limit)
    if bits == 4:
        return (yield from _nibble_sum(group, codes, limit, stage))
    if bits == 16:
        return (yield from _wide_sum(group, codes, stage))
    return (yield from group.sum(_as(codes, torch.int8 if bits == 8 else torch.int32), stage))


def sign_of_sum(group: Group, codes: Tensor, limit: int, stage: str) -> Exchange[Tensor]:
    """Sign of the sum over the group: packed codes up, two bits down. Arguments as above; int32 [d] of -1, 0, +1."""
    _prove(32, limit, group.size, "two-phase", stage)
    mine = yield from _piece_of_sum(group, codes, limit, stage)
    signs = yield from _everywhere(group, mine.sign_().add_(1), _SIGN_BITS, codes.numel(), stage)
    return signs.sub_(1)


def bytes_sent(d: int, n: int, bits: int, limit: int, form: Form = "all-reduce") -> float:
    """Bytes that a rank sends in `integer_sum` of d codes over n ranks."""
    if form == "two-phase":
        return _two_phase_bytes(d, n, limit, packed_integers.width(2 * n * limit))
    if bits == 16:
        return 2 * wire.all_to_all(2 * n * -(-d // n), n)
    return wire.all_reduce({4: nibbles.wire_bytes(d), 8: d, 32: 4 * d}[bits], n)


def sign_bytes_sent(d: int, n: int, limit: int) -> float:
    """Bytes that a rank sends in `sign_of_sum` of d codes over n ranks."""
    return _two_phase_bytes(d, n, limit, _SIGN_BITS)


def _two_phase_bytes(d: int, n: int, limit: int, down: int) -> float:
    piece = -(-d // n)
    up = n * packed_integers.wire_bytes(piece, packed_integers.width(2 * limit))
    return wire.all_to_all(up, n) + wire.all_gather(packed_integers.wire_bytes(piece, down), n)


def _as(codes: Tensor, dtype: torch.dtype) -> Tensor:
    return codes if codes.dtype == dtype else buffers.empty_like(codes, dtype).copy_(codes)


def _nibble_sum(group: Group, codes: Tensor, limit: int, stage: str) -> Exchange[Tensor]:
    message = buffers.empty(nibbles.wire_bytes(codes.numel()), torch.uint8, codes.device)
    nibbles.pack(codes, message, -limit)
    message = yield from group.sum(message, stage)
    total = buffers.empty_like(codes, torch.int8)
    nibbles.unpack(message, total, -group.size * limit)
    return total


def _wide_sum(group: Group, codes: Tensor, stage: str) -> Exchange[Tensor]:
    """Sixteen bits, as they are."""
    numel, size = codes.numel(), group.size
    padded = buffers.empty(size * -(-numel // size), torch.int16, codes.device)
    padded[:numel].copy_(codes)
    padded[numel:].zero_()
    pieces = yield from group.all_to_all(padded.view(torch.uint8), f"{stage}-up")
    mine, *others = pieces.view(torch.int16)
    for other in others:
        mine += other
    sums = yield from group.gather(mine.view(torch.uint8), f"{stage}-down")
    return sums.view(torch.int16).view(-1)[:numel]


def _piece_of_sum(group: Group, codes: Tensor, limit: int, stage: str) -> Exchange[Tensor]:
    """Packed codes to the owners of the pieces: the sum of this rank's piece, int32 [ceil(d / n)]."""
    numel, size, bits = codes.numel(), group.size, packed_integers.width(2 * limit)
    piece = -(-numel // size)
    padded = buffers.empty(size * piece, torch.int32, codes.device)
    padded[:numel].copy_(codes).add_(limit)
    padded[numel:] = limit
    message = buffers.empty((size, packed_integers.wire_bytes(piece, bits)), torch.uint8, codes.device)
    packed_integers.pack(padded.view(size, piece), bits, message)
    messages = yield from group.all_to_all(message.view(-1), f"{stage}-up")
    total = buffers.empty(piece, torch.int32, codes.device)
    packed_integers.add_up(messages, bits, total)
    return total.sub_(size * limit)


def _everywhere(group: Group, mine: Tensor, bits: int, numel: int, stage: str) -> Exchange[Tensor]:
    """The owners' pieces to everybody, as integers of `bits` bits: int32 [d]."""
    message = buffers.empty(packed_integers.wire_bytes(mine.numel(), bits), torch.uint8, mine.device)
    packed_integers.pack(mine, bits, message)
    messages = yield from group.gather(message, f"{stage}-down")
    out = buffers.empty((group.size, mine.numel()), mine.dtype, mine.device)
    packed_integers.unpack(messages, bits, out)
    return out.view(-1)[:numel]
