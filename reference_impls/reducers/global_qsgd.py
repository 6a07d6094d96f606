"""Global-QSGD's two means: unbiased codes on a scale that all ranks share, summed on the way. arXiv 2305.18627.

`standard_mean`: equal levels, an integer sum. `exponential_mean`: powers of two, added byte by byte on a binary tree or
by recursive halving and doubling, whose balanced order of depth ceil(log2 n) is the codec's head-room.

Scales are those of `reducers.shared_scale`. A value that is not finite on any rank makes everything under its scale not
finite on all ranks.

Transport of equal levels, all with the same sums and so the same bits: ``all-reduce`` and ``two-phase`` (as
`reducers.integer_sum` has them), ``gather``, ``gather-base3`` (one level) and ``sparse`` (the non-zero ones alone).
What is gathered, everybody adds, so the sum needs no room on the wire; bytes that a rank sends for d codes in
-limit .. limit:

gathered   (n-1) ceil(u d / 8), u = width(2 limit); codes of -1, 0, 1 in base three: (n-1) ceil(d / 5)
sparse     (n-1) (ceil(width(d-1) k / 8) + ceil(u k / 8)) for the k entries (index, code) of the rank that has most, which
           is agreed by a max all-reduce of 4 bytes; others fill up with codes of 0 at index 0. k = 0 sends no entries.

Both answer into a scratch buffer of the shard, valid until the next call with the same stage.
"""

from __future__ import annotations

from typing import Final, Literal

import torch
from torch import Tensor

from reference_impls import buffers, wire
from reference_impls.algorithm import Cost, Shard
from reference_impls.codecs import dithering, exponential, packed_integers, trits
from reference_impls.collectives import Exchange, Group
from reference_impls.errors import UnsupportedError
from reference_impls.reducers.integer_sum import bytes_sent, integer_sum
from reference_impls.reducers.shared_scale import BUCKET_MAXIMUM, Scaling, shared_scale

__all__ = [
    "FORMS",
    "Form",
    "Transport",
    "code_bytes",
    "code_sum",
    "exponential_mean",
    "form_for",
    "head_room",
    "standard_mean",
]

Form = Literal["auto", "tree", "halving-doubling"]
FORMS: Final = ("auto", "tree", "halving-doubling")
Transport = Literal["all-reduce", "two-phase", "gather", "gather-base3", "sparse"]


def head_room(size: int) -> int:
    """Depth of the balanced addition over `size` ranks: ceil(log2 size)."""
    return (size - 1).bit_length()


def form_for(form: Form, size: int) -> Form:
    """What `form` means for `size` ranks; `UnsupportedError` if it cannot be had."""
    power_of_two = size & (size - 1) == 0
    if form == "auto":
        return "halving-doubling" if power_of_two else "tree"
    if form == "halving-doubling" and not power_of_two:
        raise UnsupportedError(
            f"halving-doubling needs a power of two of ranks, not {size}: use form='tree' or 'auto'"
        )
    return form


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


def exponential_mean(
    shard: Shard, x: Tensor, stage: str, *, scaling: Scaling = BUCKET_MAXIMUM, form: Form = "auto"
) -> Exchange[Tensor]:
    """Mean of `x` over all ranks by exponential dithering, one byte an element.

    Args and result as `standard_mean`. Collectives: ``<stage>-scale``, ``<stage>-up`` (or ``-halve``) and
    ``<stage>-down`` (or ``-double``). form: ``tree`` (any number of ranks; every rank but the root sends its codes up
    once, and the sum travels down the same edges), ``halving-doubling`` (powers of two; 2 (n-1) ceil(d/n) bytes a rank,
    the last piece padded with zeros, which are sent), or ``auto``: halving-doubling where it can.
    """
    size = shard.world.size
    chosen = form_for(form, size)
    x = x.to(torch.float32)
    shared = yield from shared_scale(shard, x, stage, scaling)
    piece = -(-shard.d // size)
    codes = shard.scratch(
        f"{stage}-codes", size * piece if chosen == "halving-doubling" else shard.d, torch.uint8
    )
    codes[shard.d :].zero_()
    exponential.encode(x, shared, head_room(size), shard.key(f"{stage}-dither"), codes[: shard.d])
    if chosen == "tree":
        codes = yield from _tree_sum(shard, codes, stage)
    else:
        yield from _halving_doubling_sum(shard, codes, stage)
    mean = shard.scratch(f"{stage}-mean", shard.d, torch.float32)
    exponential.decode(codes[: shard.d], shared, head_room(size), size, mean)
    return mean


def _tree_sum(shard: Shard, codes: Tensor, stage: str) -> Exchange[Tensor]:
    """Sum of all ranks' codes, in place, on a binary tree whose root is the last rank.

    In layer l, ranks at distance 2**l meet and the higher one adds; a missing partner is the identity. Seen from the root
    (v = n-1 - rank), v sends in the layer of its lowest set bit, to v without that bit.
    """
    world = shard.world
    place = world.size - 1 - world.rank
    depth = head_room(world.size)
    for layer in range(depth):
        child, parent = _edges(place, layer, world.size)
        came = yield from world.send_recv(codes, f"{stage}-up", to=parent, source=child)
        if came is not None:
            exponential.add(codes, came, shard.key(f"{stage}-add-{layer}"), codes)
    for layer in reversed(range(depth)):
        child, parent = _edges(place, layer, world.size)
        came = yield from world.send_recv(codes, f"{stage}-down", to=child, source=parent)
        if came is not None:
            codes = came
    return codes


def _edges(place: int, layer: int, size: int) -> tuple[int | None, int | None]:
    """Ranks from which and to which the rank at `place` below the root sends upwards in this layer."""
    distance = 1 << layer
    within = place % (2 * distance)
    child = place + distance if within == 0 and place + distance < size else None
    parent = place - distance if within == distance else None
    return None if child is None else size - 1 - child, None if parent is None else size - 1 - parent


def _halving_doubling_sum(shard: Shard, codes: Tensor, stage: str) -> Exchange[None]:
    """Sum of all ranks' codes, in place; n a power of two, `codes` uint8 [n * piece].

    Halving: partners at distance n/2, n/4, ..., 1 give each other the half that the other will own. Doubling: back in
    the reverse order, the sums are passed on as bytes.
    """
    world = shard.world
    start, length = 0, codes.numel()
    distance = world.size // 2
    while distance:
        partner = world.rank ^ distance
        length //= 2
        keep, give = (start, start + length) if partner > world.rank else (start + length, start)
        half = codes[give : give + length].contiguous()
        came = yield from world.send_recv(half, f"{stage}-halve", to=partner, source=partner)
        assert came is not None  # both partners send
        mine = codes[keep : keep + length]
        exponential.add(mine, came, shard.key(f"{stage}-add-{distance}"), mine)
        start = keep
        distance //= 2
    distance = 1
    while distance < world.size:
        partner = world.rank ^ distance
        came = yield from world.send_recv(
            codes[start : start + length], f"{stage}-double", to=partner, source=partner
        )
        assert came is not None
        other = start - length if partner < world.rank else start + length
        codes[other : other + length].copy_(came)
        start = min(start, other)
        length *= 2
        distance *= 2


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
