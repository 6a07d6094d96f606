"""Sum of small integers over a group by gathering them: densely, in base three, or the non-zero ones alone.

Every rank's codes go to every rank, packed; everybody adds them, so the sum needs no room on the wire and has the same
bits as any other integer sum (`reducers.integer_sum`). Bytes that a rank sends for d codes in -limit .. limit:

gathered   (n-1) ceil(u d / 8), u = width(2 limit); codes of -1, 0, 1 in base three: (n-1) ceil(d / 5)
sparse     (n-1) (ceil(width(d-1) k / 8) + ceil(u k / 8)) for the k entries (index, code) of the rank that has most, which
           is agreed by a max all-reduce of 4 bytes; others fill up with codes of 0 at index 0. k = 0 sends no entries.
"""

from __future__ import annotations

import torch
from torch import Tensor

from reference_impls import buffers, wire
from reference_impls.codecs import packed_integers, trits
from reference_impls.collectives import Exchange, Group

__all__ = ["gathered_bytes", "gathered_sum", "sparse_bytes", "sparse_sum"]


def gathered_sum(
    group: Group, codes: Tensor, limit: int, stage: str, *, base_three: bool = False
) -> Exchange[Tensor]:
    """Integers [d], d >= 1, each in -limit .. limit (the caller's promise) -> their sum, int32 [d].

    base_three: five codes a byte; limit is 1 then.
    """
    numel, bits = codes.numel(), packed_integers.width(2 * limit)
    message = buffers.empty(_dense_bytes(numel, limit, base_three), torch.uint8, codes.device)
    if base_three:
        trits.pack(codes, message, -limit)
    else:
        packed_integers.pack(buffers.empty_like(codes, torch.int32).copy_(codes).add_(limit), bits, message)
    messages = yield from group.gather(message, stage)
    total = buffers.empty_like(codes, torch.int32)
    if base_three:
        digits = buffers.empty_like(codes, torch.int8)
        total.zero_()
        for row in messages:
            trits.unpack(row, digits, -limit)
            total += digits
        return total
    packed_integers.add_up(messages, bits, total)
    return total.sub_(group.size * limit)


def sparse_sum(group: Group, codes: Tensor, limit: int, stage: str) -> Exchange[Tensor]:
    """As `gathered_sum`, with the codes that are not 0 alone. Collectives: ``<stage>-count`` and ``<stage>``."""
    places = codes.nonzero().squeeze(-1)
    counts = torch.tensor([places.numel()], dtype=torch.int32, device=codes.device)
    most = int((yield from group.max(counts, f"{stage}-count"))[0])
    total = codes.new_zeros(codes.numel(), dtype=torch.int32)
    if most == 0:
        return total
    widths = packed_integers.width(codes.numel() - 1), packed_integers.width(2 * limit)
    entries = codes.new_zeros((2, most), dtype=torch.int32)
    entries[0, : places.numel()] = places.to(torch.int32)
    entries[1, : places.numel()] = codes[places].to(torch.int32)
    entries[1].add_(limit)
    sizes = [packed_integers.wire_bytes(most, bits) for bits in widths]
    message = codes.new_empty(sum(sizes), dtype=torch.uint8)
    for part, bits, entry in zip(torch.split(message, sizes), widths, entries, strict=True):
        packed_integers.pack(entry, bits, part)
    for row in (yield from group.gather(message, stage)):
        for part, bits, entry in zip(torch.split(row, sizes), widths, entries, strict=True):
            packed_integers.unpack(part, bits, entry)
        total.index_add_(0, entries[0], entries[1].sub_(limit))
    return total


def gathered_bytes(d: int, n: int, limit: int, *, base_three: bool = False) -> float:
    """Bytes that a rank sends in `gathered_sum` of d codes over n ranks."""
    return wire.all_gather(_dense_bytes(d, limit, base_three), n)


def sparse_bytes(d: int, n: int, limit: int) -> tuple[float, float]:
    """Least and most bytes that a rank sends in `sparse_sum`: no code is other than 0, or all of some rank are."""
    widths = packed_integers.width(d - 1), packed_integers.width(2 * limit)
    count = wire.all_reduce(4, n)
    return count, count + wire.all_gather(sum(packed_integers.wire_bytes(d, bits) for bits in widths), n)


def _dense_bytes(numel: int, limit: int, base_three: bool) -> int:
    if base_three:
        return trits.wire_bytes(numel)
    return packed_integers.wire_bytes(numel, packed_integers.width(2 * limit))
