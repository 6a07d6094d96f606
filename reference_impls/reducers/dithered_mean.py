"""A mean by standard dithering: unbiased codes of equal levels on a scale that all ranks share, summed as integers.

Scales are those of `reducers.shared_scale`. A value that is not finite on any rank makes everything under its scale not
finite on all ranks.

Transport of equal levels, all with the same sums and so the same bits: ``all-reduce`` and ``two-phase`` (as
`reducers.integer_sum` has them), ``gather``, ``gather-base3`` (one level) and ``sparse`` (the non-zero ones alone).
What is gathered, everybody adds, so the sum needs no room on the wire; bytes that a rank sends for d codes in
-limit .. limit:

gathered   (n-1) ceil(u d / 8), u = width(2 limit); codes of -1, 0, 1 in base three: (n-1) ceil(d / 5)
sparse     (n-1) (ceil(width(d-1) k / 8) + ceil(u k / 8)) for the k entries (index, code) of the rank that has most, which
           is agreed by a max all-reduce of 4 bytes; others fill up with codes of 0 at index 0. k = 0 sends no entries.

The answer lies in a scratch buffer of the shard, valid until the next call with the same stage.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from reference_impls import buffers, wire
from reference_impls.algorithm import Cost, Shard
from reference_impls.codecs import dithering, packed_integers, trits
from reference_impls.collectives import Exchange, Group
from reference_impls.reducers.integer_sum import bytes_sent, integer_sum
from reference_impls.reducers.shared_scale import BUCKET_MAXIMUM, Scaling, shared_scale

__all__ = [
    "Transport",
    "code_bytes",
    "code_sum",
    "standard_mean",
]

Transport = Literal["all-reduce", "two-phase", "gather", "gather-base3", "sparse"]


def code_sum(
    group: Group, codes: Tensor, bits: int, limit: int, stage: str, transport: Transport
) -> Exchange[Tensor]:
    """Sum of integers in -limit .. limit over the group; `bits` (of the sum) matter to ``all-reduce`` alone."""
    if transport in ("all-reduce", "two-phase"):
        return (yield from integer_sum(group, codes, bits, limit, stage, transport))
    if transport == "sparse":
        return (yield from sparse_sum(group, codes, limit, stage))
    return (
        yield from gathered_sum(group, codes, limit, stage, base_three=transport == "gather-base3")
    )  # fmt: skip


def code_bytes(d: int, n: int, bits: int, limit: int, transport: Transport) -> Cost:
    """Bytes that a rank sends in `code_sum` of d codes."""
    if transport in ("all-reduce", "two-phase"):
        return bytes_sent(d, n, bits, limit, transport)
    if transport == "sparse":
        return sparse_bytes(d, n, limit)
    return gathered_bytes(d, n, limit, base_three=transport == "gather-base3")


def standard_mean(
    shard: Shard,
    x: Tensor,
    stage: str,
    *,
    bits: int = 8,
    levels: int | None = None,
    scaling: Scaling = BUCKET_MAXIMUM,
    transport: Transport = "all-reduce",
) -> Exchange[Tensor]:
    """Mean of `x` over all ranks by standard dithering with ``floor((2**(bits-1) - 1) / n)`` levels.

    Args:
        x: float [d] of this rank; only read. Computed in float32.
        stage: names the collectives ``<stage>-scale`` and ``<stage>-codes`` and the random stream.
        bits: of a sum of codes: 4, 8, 16 or 32 in an all-reduce, else 2 to 31.
        levels: s, if not the most that `bits` allow.
        scaling: what the scale is.
        transport: how codes travel, see the module's text.

    Returns:
        float32 [d], the same bits on all ranks where the sum of the scale is (linf: always).
    """
    count = dithering.levels(bits, shard.world.size) if levels is None else levels
    x = x.to(torch.float32)
    shared = yield from shared_scale(shard, x, stage, scaling)
    narrow = torch.int8 if bits <= 8 else torch.int16 if bits <= 16 else torch.int32
    codes = shard.scratch(f"{stage}-codes", shard.d, narrow)
    dithering.encode(x, shared, count, shard.key(f"{stage}-dither"), codes)
    total = yield from code_sum(shard.world, codes, bits, count, f"{stage}-codes", transport)
    mean = shard.scratch(f"{stage}-mean", shard.d, torch.float32)
    dithering.decode(total, shared, count, shard.world.size, mean)
    return mean


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
