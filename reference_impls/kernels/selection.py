"""`compressors.sparse` of large vectors: the k largest magnitudes exactly, without a number on the host.

1. The maxima of groups of 32 are counted by their upper 16 bits. The lower end of the bin of the k-th largest maximum is a
   bound: at least k elements reach it, and few others.
2. Elements that reach it are written down, block by block, and counted by their upper bits; those in the bin of the k-th
   largest element are counted by their lower bits. That is its value, and how many of those that equal it are wanted.
3. What is above it, and the first of what equals it, goes to its place, which sums over the blocks before say.
"""

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

_GROUP: Final = 32
_COARSE: Final = 1 << 13  # bins of the upper bits of the groups' maxima
_UPPER, _LOWER = 1 << 15, 1 << 16  # bins of the upper and of the lower bits of a magnitude
_COPIES: Final = 32  # of bins in which many meet: programs take turns, and wait less for one another
_BLOCK: Final = 4096
_SOME: Final = 128


@triton.jit
def _maxima(
    order,
    among,
    bins,
    groups,
    GROUP: tl.constexpr,
    BLOCK: tl.constexpr,
    BINS: tl.constexpr,
    COPIES: tl.constexpr,
):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < groups
    found = tl.zeros([BLOCK], tl.int32)
    for member in tl.static_range(GROUP):
        found = tl.maximum(found, tl.load(order + member * groups + place, mask=inside, other=0) & among)
    bins += tl.program_id(0) % COPIES * BINS
    tl.atomic_add(bins + (found >> 18), 1, mask=inside, sem="relaxed")


@triton.jit
def _find(bins, wanted, found, COUNT: tl.constexpr, BLOCK: tl.constexpr):
    """In which bin from the top the count reaches `wanted`: found[0]; how many of that bin: found[1]."""
    k = tl.load(wanted)
    before = k * 0
    last = k * 0
    missing = k * 0
    for first in range(0, COUNT, BLOCK):
        counts = tl.load(bins + (COUNT - 1 - first - tl.arange(0, BLOCK)))
        sums = tl.cumsum(counts, 0) + before
        missing += tl.sum((sums < k).to(tl.int32), 0)
        last = tl.maximum(last, tl.max(tl.where(sums < k, sums, 0), 0))
        before += tl.sum(counts, 0)
    tl.store(found, COUNT - 1 - missing)
    tl.store(found + 1, k - last)


@triton.jit
def _candidates(
    order,
    among,
    bound,
    places,
    counts,
    bins,
    d,
    BLOCK: tl.constexpr,
    BINS: tl.constexpr,
    COPIES: tl.constexpr,
):
    block = tl.program_id(0)
    place = block * BLOCK + tl.arange(0, BLOCK)
    own = tl.load(order + place, mask=place < d, other=0) & among
    reached = (own >= (tl.load(bound) << 18)) & (place < d)
    rank = tl.cumsum(reached.to(tl.int32), 0) - 1
    tl.store(places + block * BLOCK + rank, place, mask=reached)
    tl.store(counts + block, tl.sum(reached.to(tl.int32), 0))
    upper = own >> 16
    bins += block % COPIES * BINS
    tl.atomic_add(bins + upper, 1, mask=reached & (upper > 0), sem="relaxed")
    nothing = tl.sum((reached & (upper == 0)).to(tl.int32), 0)  # of which there may be many
    tl.atomic_add(bins, nothing, mask=nothing > 0, sem="relaxed")


@triton.jit
def _refine(order, among, places, counts, upper, bins, BLOCK: tl.constexpr, SOME: tl.constexpr):
    block = tl.program_id(0)
    bin = tl.load(upper)
    count = tl.load(counts + block)
    for first in range(0, count, SOME):
        at = first + tl.arange(0, SOME)
        place = tl.load(places + block * BLOCK + at, mask=at < count, other=0)
        own = tl.load(order + place, mask=at < count, other=0) & among
        tl.atomic_add(bins + (own & 0xFFFF), 1, mask=(at < count) & ((own >> 16) == bin), sem="relaxed")


@triton.jit
def _tally(
    order, among, places, counts, upper, lower, tallies, blocks, BLOCK: tl.constexpr, SOME: tl.constexpr
):
    """How many of a block are above the k-th largest, and how many equal it."""
    block = tl.program_id(0)
    least = (tl.load(upper) << 16) | tl.load(lower)
    count = tl.load(counts + block)
    above = tl.zeros([SOME], tl.int32)
    equal = tl.zeros([SOME], tl.int32)
    for first in range(0, count, SOME):
        at = first + tl.arange(0, SOME)
        place = tl.load(places + block * BLOCK + at, mask=at < count, other=0)
        own = tl.load(order + place, mask=at < count, other=0) & among
        above += ((own > least) & (at < count)).to(tl.int32)
        equal += ((own == least) & (at < count)).to(tl.int32)
    tl.store(tallies + block, tl.sum(above, 0))
    tl.store(tallies + blocks + block, tl.sum(equal, 0))


@triton.jit
def _chosen(
    order,
    among,
    places,
    counts,
    upper,
    lower,
    ends,
    tallies,
    out,
    blocks,
    BLOCK: tl.constexpr,
    SOME: tl.constexpr,
):
    block = tl.program_id(0)
    least = (tl.load(upper) << 16) | tl.load(lower)
    room = tl.load(lower + 1)
    count = tl.load(counts + block)
    above = tl.load(ends + block) - tl.load(tallies + block)
    equal = tl.load(ends + blocks + block) - tl.load(tallies + blocks + block)
    for first in range(0, count, SOME):
        at = first + tl.arange(0, SOME)
        place = tl.load(places + block * BLOCK + at, mask=at < count, other=0)
        own = tl.load(order + place, mask=at < count, other=0) & among
        greater = ((own > least) & (at < count)).to(tl.int32)
        same = ((own == least) & (at < count)).to(tl.int32)
        more, ties = tl.cumsum(greater, 0), tl.cumsum(same, 0)
        taken = (greater == 1) | ((same == 1) & (equal + ties <= room))
        slot = above + more - greater + tl.minimum(equal + ties - same, room)
        tl.store(out + slot, place.to(tl.int64), mask=taken)
        above += tl.sum(greater, 0)
        equal += tl.sum(same, 0)


@triton.jit
def _sums(tallies, ends, count, BLOCK: tl.constexpr):
    """Sums up to each of `count` numbers; a program a row."""
    row = tl.program_id(0) * count
    before = tl.load(tallies) * 0
    for first in range(0, count, BLOCK):
        at = first + tl.arange(0, BLOCK)
        own = tl.load(tallies + row + at, mask=at < count, other=0)
        tl.store(ends + row + at, tl.cumsum(own, 0) + before, mask=at < count)
        before += tl.sum(own, 0)


def largest(order: Tensor, mask: int, k: int) -> Tensor:
    """Indices of the k largest of ``order & mask``, int32 [d] contiguous -> int64 [k], ascending; 64 k <= d < 2^30."""
    d, device = len(order), order.device
    groups, blocks = d // _GROUP, triton.cdiv(d, _BLOCK)
    sizes = (_COPIES * _COARSE, _COPIES * _UPPER, _LOWER)
    coarse, upper, lower = torch.zeros(sum(sizes), dtype=torch.int32, device=device).split(sizes)
    found = torch.empty(3, 2, dtype=torch.int32, device=device)
    wanted = torch.full((1,), k, dtype=torch.int32, device=device)
    among = mask & 0x7FFFFFFF
    _maxima[(triton.cdiv(groups, 512),)](order, among, coarse, groups, _GROUP, 512, _COARSE, _COPIES)
    _find[(1,)](_together(coarse), wanted, found[0], _COARSE, 8192, num_warps=16)
    places = torch.empty(blocks * _BLOCK, dtype=torch.int32, device=device)
    counts = torch.empty(blocks, dtype=torch.int32, device=device)
    _candidates[(blocks,)](
        order, among, found[0], places, counts, upper, d, _BLOCK, _UPPER, _COPIES, num_warps=8
    )
    _find[(1,)](_together(upper), wanted, found[1], _UPPER, 16384, num_warps=16)
    _refine[(blocks,)](order, among, places, counts, found[1], lower, _BLOCK, _SOME, num_warps=1)
    _find[(1,)](lower, found[1, 1:], found[2], _LOWER, 16384, num_warps=16)
    tallies = torch.empty(2, blocks, dtype=torch.int32, device=device)
    _tally[(blocks,)](
        order, among, places, counts, found[1], found[2], tallies, blocks, _BLOCK, _SOME, num_warps=1
    )
    ends = torch.empty_like(tallies)
    _sums[(2,)](tallies, ends, blocks, 8192, num_warps=16)
    out = torch.empty(k, dtype=torch.int64, device=device)
    _chosen[(blocks,)](
        order,
        among,
        places,
        counts,
        found[1],
        found[2],
        ends,
        tallies,
        out,
        blocks,
        _BLOCK,
        _SOME,
        num_warps=1,
    )
    return out


def _together(bins: Tensor) -> Tensor:
    return bins.view(_COPIES, -1).sum(0, dtype=torch.int32)
