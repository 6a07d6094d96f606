"""Sums of small integers over a group, in as many bits as were paid for, and the means that are made of them.

`integer_sum` adds codes in -limit .. limit. Integer sums have the same bits in every order, on every backend and rank, and in
every transport. Head-room is proven before anything is sent. Bytes that a rank sends for d codes:

transport     bits  travels as                                                   bytes
all-reduce    4     two counters q + limit a byte (`packing.pack_nibbles`), uint8  2 (n-1)/n ceil(d/2)
              8     int8                                                         2 (n-1)/n d
              16    two phases over pieces of c = ceil(d/n) codes, since gloo    2 (n-1) 2 c
                    cannot add int16: all-to-all of the bytes, sum at the
                    owner, all-gather
              32    int32                                                        2 (n-1)/n 4 d
two-phase     2-31  packed (`compressors.packing`), each way in as few bits as its    (n-1) (ceil(u c/8) + ceil(v c/8))
                    range needs: u = width(2 limit) up, which is below `bits`,
                    and v = width(2 n limit) down
gather              packed to everybody, who adds                                (n-1) ceil(u d / 8)
sparse              entries (index, code) of those that are not 0, as many as    (n-1) (ceil(width(d-1) k / 8) + ceil(u k / 8))
                    the rank has that has most, k, agreed by a max all-reduce
                    of 4 bytes; others fill up with codes of 0 at index 0

Sending each way no more than its range needs is ours. With 4 bits, an odd d's last counter shares its byte with nothing. In
two phases the last pieces are padded with zeros, which are sent, and each piece of packed codes to whole bytes.

*Shared scales* (`shared_scale`), so that codes on them may be added: M of Global-QSGD, and TernGrad's, IntSGD's and others'.
One a bucket (``bucket``), one a parameter (``tensor``), or one for each `block_size` elements counted from the beginning
of the bucket (``block``); results of the first and the last depend on the size of buckets. ``linf``: largest magnitude over
all ranks, 4 bytes in a max all-reduce, NaN sent as +inf. ``l2``: 2-norm of all ranks' values together, summed as float64,
so that no square over- or underflows: 8 bytes. A value that is not finite on any rank makes the scale, and everything under
it on all ranks, not finite.

`standard_mean`: the mean by standard dithering (`compressors.dithering`) on a shared scale. Its answer lies in a scratch buffer
of the bucket, valid until the next call with the same stage.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import torch
from torch import Tensor

from reference_impls.compressors import dithering, packing
from reference_impls.compressors.sums import fixed_sum, largest
from reference_impls.core import compute
from reference_impls.core.algorithm import Bucket
from reference_impls.core.collectives import Exchange, Group
from reference_impls.core.errors import UnsupportedError

Transport = Literal["all-reduce", "two-phase", "gather", "sparse"]
WIDTHS: Final = (4, 8, 16, 32)


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
    if form == "two-phase" and packing.width(2 * size * limit) > packing.WIDEST:
        raise UnsupportedError(f"stage {stage!r}: {packing.WIDEST} bits is all that packs; use fewer levels")


def integer_sum(
    group: Group, codes: Tensor, bits: int, limit: int, stage: str, transport: Transport = "all-reduce"
) -> Exchange[Tensor]:
    """Element-wise sum over the group.

    Args:
        codes: integers [d], d >= 1, each in -limit .. limit (the caller's promise; int8 suits 4 and 8 bits, int16 suits
            16, int32 suits 32; another dtype is converted). May be consumed.
        bits: width of the sum, and where codes are added on the way, of a code; of no matter where they are gathered.
        limit: largest magnitude of a code.
        stage: of the collectives; in two phases they are called ``<stage>-up`` and ``<stage>-down``.
        transport: see the module's text.

    Returns:
        [d], int8 (4 and 8 bits), int16 or int32; int32 for packed codes.

    Raises:
        UnsupportedError: size * limit does not fit `bits`; raised on every rank before anything is sent.
    """
    if transport == "gather":
        return (yield from gathered_sum(group, codes, limit, stage))
    if transport == "sparse":
        return (yield from sparse_sum(group, codes, limit, stage))
    _prove(bits, limit, group.size, transport, stage)
    if transport == "two-phase":
        mine = yield from _piece_of_sum(group, codes, limit, stage)
        down = packing.width(2 * group.size * limit)
        total = yield from everywhere(group, mine.add_(group.size * limit), down, codes.numel(), stage)
        return total.sub_(group.size * limit)
    if bits == 4:
        return (yield from _nibble_sum(group, codes, limit, stage))
    if bits == 16:
        return (yield from _wide_sum(group, codes, stage))
    return (yield from group.sum(compute.as_dtype(codes, torch.int8 if bits == 8 else torch.int32), stage))


def _nibble_sum(group: Group, codes: Tensor, limit: int, stage: str) -> Exchange[Tensor]:
    message = compute.empty(packing.nibble_bytes(codes.numel()), torch.uint8, codes.device)
    packing.pack_nibbles(codes, message, -limit)
    message = yield from group.sum(message, stage)
    total = compute.empty_like(codes, torch.int8)
    packing.unpack_nibbles(message, total, -group.size * limit)
    return total


def _wide_sum(group: Group, codes: Tensor, stage: str) -> Exchange[Tensor]:
    """Sixteen bits, as they are."""
    numel, size = codes.numel(), group.size
    padded = compute.empty(size * -(-numel // size), torch.int16, codes.device)
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
    numel, size, bits = codes.numel(), group.size, packing.width(2 * limit)
    piece = -(-numel // size)
    padded = compute.empty(size * piece, torch.int32, codes.device)
    padded[:numel].copy_(codes).add_(limit)
    padded[numel:] = limit
    message = compute.empty((size, packing.wire_bytes(piece, bits)), torch.uint8, codes.device)
    packing.pack(padded.view(size, piece), bits, message)
    messages = yield from group.all_to_all(message.view(-1), f"{stage}-up")
    total = compute.empty(piece, torch.int32, codes.device)
    packing.add_up(messages, bits, total)
    return total.sub_(size * limit)


def everywhere(group: Group, mine: Tensor, bits: int, numel: int, stage: str) -> Exchange[Tensor]:
    """The owners' pieces to everybody, as integers of `bits` bits (``<stage>-down``): equally long, int32 -> int32 [numel]."""
    message = compute.empty(packing.wire_bytes(mine.numel(), bits), torch.uint8, mine.device)
    packing.pack(mine, bits, message)
    messages = yield from group.gather(message, f"{stage}-down")
    out = compute.empty((group.size, mine.numel()), mine.dtype, mine.device)
    packing.unpack(messages, bits, out)
    return out.view(-1)[:numel]


def gathered_sum(group: Group, codes: Tensor, limit: int, stage: str) -> Exchange[Tensor]:
    """Integers [d], d >= 1, each in -limit .. limit (the caller's promise) -> their sum, int32 [d]."""
    bits = packing.width(2 * limit)
    message = compute.empty(packing.wire_bytes(codes.numel(), bits), torch.uint8, codes.device)
    packing.pack(compute.empty_like(codes, torch.int32).copy_(codes).add_(limit), bits, message)
    messages = yield from group.gather(message, stage)
    total = compute.empty_like(codes, torch.int32)
    packing.add_up(messages, bits, total)
    return total.sub_(group.size * limit)


def sparse_sum(group: Group, codes: Tensor, limit: int, stage: str) -> Exchange[Tensor]:
    """As `gathered_sum`, with the codes that are not 0 alone. Collectives: ``<stage>-count`` and ``<stage>``."""
    places = codes.nonzero().squeeze(-1)
    counts = torch.tensor([places.numel()], dtype=torch.int32, device=codes.device)
    most = int((yield from group.max(counts, f"{stage}-count"))[0])
    total = codes.new_zeros(codes.numel(), dtype=torch.int32)
    if most == 0:
        return total
    widths = packing.width(codes.numel() - 1), packing.width(2 * limit)
    entries = codes.new_zeros((2, most), dtype=torch.int32)
    entries[0, : places.numel()] = places.to(torch.int32)
    entries[1, : places.numel()] = codes[places].to(torch.int32)
    entries[1].add_(limit)
    sizes = [packing.wire_bytes(most, bits) for bits in widths]
    message = codes.new_empty(sum(sizes), dtype=torch.uint8)
    for part, bits, entry in zip(torch.split(message, sizes), widths, entries, strict=True):
        packing.pack(entry, bits, part)
    for row in (yield from group.gather(message, stage)):
        for part, bits, entry in zip(torch.split(row, sizes), widths, entries, strict=True):
            packing.unpack(part, bits, entry)
        total.index_add_(0, entries[0], entries[1].sub_(limit))
    return total


# ---- scales and means ----------------------------------------------------------------------------------------------

Norm = Literal["linf", "l2"]
Scale = Literal["bucket", "tensor", "block"]


@dataclass(frozen=True)
class Scaling:
    """What M is (`norm`), and how many there are (`per`); see the module's text."""

    norm: Norm = "linf"
    per: Scale = "bucket"
    block_size: int = 512


BUCKET_MAXIMUM: Final = Scaling()


def shared_scale(bucket: Bucket, x: Tensor, stage: str, scaling: Scaling) -> Exchange[Tensor]:
    """The scale(s) of all ranks, float32: 0-dimensional for ``bucket``, else [d], one an element."""
    norm, block = scaling.norm, scaling.block_size
    if scaling.per == "bucket":
        own = _size_of(x, norm).view(1)
    elif scaling.per == "tensor":
        own = torch.stack([_size_of(x[v.part], norm) for v in bucket.views])
    else:
        padded = compute.empty(x.numel() + -x.numel() % block, x.dtype, x.device)
        padded[: x.numel()] = x
        padded[x.numel() :].zero_()
        own = _size_of(padded.view(-1, block), norm)
    if norm == "linf":
        shared = yield from bucket.world.max(own, f"{stage}-scale")
    else:
        shared = (yield from bucket.world.sum(own, f"{stage}-scale")).sqrt().to(torch.float32)
    if scaling.per == "bucket":
        return shared[0]
    if scaling.per == "block":
        rows = compute.empty((shared.numel(), block), shared.dtype, shared.device)
        return rows.copy_(shared.unsqueeze(-1)).view(-1)[: bucket.d]
    return an_element(bucket, shared)


def an_element(bucket: Bucket, values: Tensor) -> Tensor:
    """One value a tensor -> [d], one an element, in a buffer of the pool."""
    out = compute.empty(bucket.d, values.dtype, values.device)
    for view, value in zip(bucket.views, values, strict=True):
        out[view.part] = value
    return out


def _size_of(x: Tensor, norm: Norm) -> Tensor:
    """[..., k] -> [...]: largest magnitude, or sum of squares in float64 by the fixed tree."""
    if norm == "l2":
        return fixed_sum(x, "wide square")
    return largest(x) if x.shape[-1] else x.new_zeros(x.shape[:-1])


def standard_mean(
    bucket: Bucket,
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
    count = dithering.levels(bits, bucket.world.size) if levels is None else levels
    x = x.to(torch.float32)
    shared = yield from shared_scale(bucket, x, stage, scaling)
    narrow = torch.int8 if bits <= 8 else torch.int16 if bits <= 16 else torch.int32
    codes = bucket.scratch(f"{stage}-codes", bucket.d, narrow)
    dithering.encode(x, shared, count, bucket.key(f"{stage}-dither"), codes)
    total = yield from integer_sum(bucket.world, codes, bits, count, f"{stage}-codes", transport)
    mean = bucket.scratch(f"{stage}-mean", bucket.d, torch.float32)
    dithering.decode(total, shared, count, bucket.world.size, mean)
    return mean
