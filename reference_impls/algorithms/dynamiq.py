"""DynamiQ: an all-reduce of which every hop decodes, adds its own part and encodes again, in 2, 4 or 8 bits. arXiv 2602.08923.

A *super-group* is 256 neighbours of a bucket, a *group* 16 of them. The bucket, padded to n R super-groups, is dealt out to n
pieces of R *rows*: row k has one width in all pieces. A piece's message has the same length in every step:

- codes in *units* of 64 bytes, 2 bits of each element of a row (`compressors.packing`). A row of w bits has w / 2 units, lowest
  bits first; rows follow one another; units that are left are 0.
- the scales of groups, a byte each; then those of super-groups, bf16, little-endian.

A code of w bits is the index of a level in the lowest w - 1, and the sign above. Wire format version 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import torch
from torch import Tensor

from reference_impls.compressors import packing
from reference_impls.compressors.sums import fixed_sum, largest
from reference_impls.core import compute
from reference_impls.core.algorithm import Bucket, option
from reference_impls.core.collectives import Exchange, piece_size
from reference_impls.core.compute import Compiled, constant
from reference_impls.core.optimizers import WithLocalOptimizer

WIRE_VERSION: Final = 1
SUPER: Final = 256
GROUP: Final = 16
GROUPS: Final = SUPER // GROUP
UNIT: Final = SUPER // 4  # bytes
SCALES: Final = GROUPS + 2  # bytes of a super-group
STATISTICS: Final = 4  # bytes
OVERHEAD: Final = 8 * (SCALES + STATISTICS) / SUPER  # bits a coordinate that are not codes
WIDTHS: Final = (2, 4, 8)
EPSILONS: Final = (0.27, 0.20, 0.08)
Rounding = Literal["correlated", "independent"]


@dataclass(frozen=True)
class DynamiQ(WithLocalOptimizer):
    """DynamiQ: 2, 4 or 8 bits for each 256 coordinates, by their norm over all ranks, coded anew at each hop of a ring.

    g <- mu + 1/n times the sum over ranks of g_i - mu, of which each partial sum is rounded.

    All ranks agree on the mean mu_j and the sum of squares F_j of every super-group j (bf16 each) and subtract mu_j. All have 2
    bits; more go to where they are worth most, until b bits a coordinate are spent: from 2 to 4 bits (4^-2 - 4^-4) F_j / 2 a bit,
    from 4 to 8 (4^-4 - 4^-8) F_j / 4, so thresholds are T24 = 17/512 T48. Then a ring: a rank decodes the partial sum of a
    piece, adds its own part and encodes; the last rank's codes go to everybody, and everybody, that rank too, decodes them.

    y = |x| over the largest magnitude of its group is rounded at random to a level f(r) = (q^r - 1) / (q^L - 1), r = 0 .. L =
    2^(w-1) - 1, q = 1 + 2 epsilon^2. A group's scale is rounded at random to 0 .. 255 parts of its super-group's.
    ``correlated``: a rank's draw is (pi_i + gamma_i) / n, pi a permutation of ranks for each coordinate, gamma uniform. No state.

    Differences: the paper could not be read; a reader's notes of it and part of its authors' code were. Along a ring correlated
    draws are biased, though the paper calls the sum unbiased: what a rank rounds depends on the draws of the ranks before it,
    given which its own is not uniform. ``independent`` is unbiased, at a larger error of one step. Permutations are the
    rotations of one that is drawn in every step. The published code spreads widths less than intended (it has 4/(512/17) where
    the ratio of thresholds needs 4/log2(512/17)), and stops its search within 0.1 bit. Here the ratio is 17/512, and the search
    is exact and never above b, over the padded length. n super-groups that follow one another in the order of F share a width,
    by the sum of their F, and each goes to another piece: so messages have one length, which no gradient changes. Widths are
    a bucket's; there are none of 1 and 16 bits. Epsilons, 0.27, 0.20 and 0.08 for 2, 4 and 8 bits, are those of the authors'
    simulation. Scales of super-groups are rounded up to bf16; zero groups have a scale of 0. The last super-group's statistics
    are over its own elements. Draws are counted over the padded length, so that up to 256 n at the end of a bucket serve in
    the next one too. Statistics are summed by an owner in the order of ranks, at the bytes of an all-reduce. A ring
    only, no butterfly; no fused kernels. One worker compresses nothing.
    """

    bits: float = option(
        5.0, "b: bits a coordinate, statistics and scales included", ge=2 + OVERHEAD, le=8 + OVERHEAD
    )
    rounding: Rounding = option(
        "correlated", "draws: correlated among ranks (the paper's) or independent (unbiased)"
    )

    def reduce(self, bucket: Bucket) -> Exchange[Tensor]:
        n, d = bucket.world.size, bucket.d
        if n == 1:
            return bucket.grads
        count = piece_size(d, n, SUPER) // SUPER  # R
        x = compute.zeros((n * count, SUPER), torch.float32, bucket.grads.device)
        x.view(-1)[:d] = bucket.grads
        means, squares = yield from _statistics(bucket, x)
        x.sub_(means)
        x.view(-1)[d:].zero_()
        order, rows = deal(squares, n, units(count, self.bits))
        pieces = torch.index_select(x, 0, order, out=compute.empty_like(x)).view(n, count, SUPER)
        total = yield from self._ring(bucket, pieces, rows)
        x.index_copy_(0, order, total.view(-1, SUPER)).div_(n).add_(means)
        return x.view(-1)[:d].to(bucket.grads.dtype)

    def _ring(self, bucket: Bucket, own: Tensor, rows: Rows) -> Exchange[Tensor]:
        """Sum over ranks, float32 [n, R, 256]. Every rank encodes every piece once."""
        world, count = bucket.world, own.shape[1]
        draws = _Draws(bucket, self.rounding, count)
        after, before = (world.rank + 1) % world.size, (world.rank - 1) % world.size
        message = encode(own[world.rank], rows, *draws.of(world.rank))
        for hop in range(1, world.size):
            came = yield from world.send_recv(message, "gradient-hop", to=after, source=before)
            assert came is not None
            piece = (world.rank - hop) % world.size
            message = encode(decode(came, rows).add_(own[piece]), rows, *draws.of(piece))
        out = compute.empty_like(own)
        for rank, sums in enumerate((yield from world.gather(message, "gradient-down"))):
            out[(rank + 1) % world.size] = decode(sums, rows)
        return out


def _statistics(bucket: Bucket, x: Tensor) -> Exchange[tuple[Tensor, Tensor]]:
    """Mean and sum of squares of each super-group over all ranks.

    Args:
        x: float32 [nR, 256], padded with zeros.

    Returns:
        Means, float32 [nR, 1]; sums of squares, float32 [nR], -1 for those without an element.
    """
    n, device = bucket.world.size, x.device
    elements = (bucket.d - SUPER * torch.arange(len(x), device=device)).clamp(0, SUPER)
    mean = x
    while mean.shape[-1] > 1:  # in a fixed order
        halves = mean.chunk(2, -1)
        mean = torch.add(*halves, out=compute.empty(halves[0].shape, torch.float32, device)).mul_(0.5)
    own = compute.empty((len(x), 2), torch.bfloat16, device)
    own[:, 0] = mean.view(-1) * (SUPER / elements.clamp(min=1).to(torch.float32))
    own[:, 1] = fixed_sum(x, "wide square")
    came = yield from bucket.world.all_to_all(own.view(-1), "statistics-up")
    sums = compute.zeros(came.shape[1:], torch.float32, device)
    for one in came:
        sums.add_(one)
    sums.view(-1, 2)[:, 0].div_(n)
    agreed = yield from bucket.world.gather(sums.to(torch.bfloat16), "statistics-down")
    found = agreed.view(-1, 2).to(torch.float32)
    return found[:, :1], torch.where(elements > 0, found[:, 1], -1.0)


class _Draws:
    """Uniform numbers of a rank for the pieces that it encodes."""

    def __init__(self, bucket: Bucket, rounding: Rounding, rows: int) -> None:
        self._n, self._rows, self._device = bucket.world.size, rows, bucket.grads.device
        self._own, self._scales = bucket.key("gradient-dither"), bucket.key("gradient-scales")
        self._rotation = bucket.key("gradient-rotation", shared=True) if rounding == "correlated" else None
        order = bucket.key("gradient-order", shared=True).bits(self._n, self._device).argsort(stable=True)
        self._place = order[bucket.world.rank].to(torch.float32)

    def of(self, piece: int) -> tuple[Tensor, Tensor]:
        """In [0, 1]: of elements, float32 [R, 256], and of groups, [R, 16]."""
        first, count = piece * self._rows * SUPER, self._rows * SUPER
        draw = self._own.at(first).uniform(count, self._device)
        if self._rotation is not None:
            rotation = self._rotation.at(first).uniform(count, self._device)
            _correlate(rotation, self._place, torch.full_like(self._place, self._n), draw)
        by_group = self._scales.at(first // GROUP).uniform(count // GROUP, self._device)
        return draw.view(-1, SUPER), by_group.view(-1, GROUPS)


@compute.compiled
def _correlate(rotation: Tensor, place: Tensor, n: Tensor, draw: Tensor) -> None:
    turned = (rotation * n).floor() + place
    draw.copy_((torch.where(turned >= n, turned - n, turned) + draw) / n)


# ---- widths ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rows:
    """What the R rows of all pieces are.

    Args:
        kind: int64 [R]: 0, 1, 2 for widths of 2, 4, 8.
        place: int64 [U]: the row of each unit.
        shift: int32 [U, 1]: the lowest bit of its codes.
    """

    kind: Tensor
    place: Tensor
    shift: Tensor


def units(rows: int, bits: float) -> int:
    """U, the units of a piece within `bits` bits a coordinate, all included."""
    return int(rows * (bits - OVERHEAD) / 2)


def deal(squares: Tensor, n: int, room: int) -> tuple[Tensor, Rows]:
    """Widths, and who has what.

    Args:
        squares: F, float [nR]; the same on all ranks.
        n: Pieces.
        room: U, units of a piece; R at least.

    Returns:
        The super-groups of the first piece, of the second, and so on, int64 [nR]; the rows.
    """
    found, order = squares.nan_to_num(torch.inf, torch.inf).sort(descending=True, stable=True)
    by_row = found.clamp(min=0).to(torch.float64).view(-1, n).sum(-1)
    count = len(by_row)
    gains = torch.cat([by_row * ((4.0**-2 - 4.0**-4) / 2), by_row * ((4.0**-4 - 4.0**-8) / 4)])
    first = gains.sort(descending=True, stable=True).indices
    cost = 1 + (first >= count).to(torch.int64)
    taken = torch.zeros_like(first)
    taken[first] = (cost.cumsum(0) <= room - count).to(torch.int64)
    kind = taken[:count] + taken[count:]
    ends = (1 << kind).cumsum(0)
    unit = torch.arange(room, device=squares.device)
    place = torch.searchsorted(ends, unit, right=True).clamp_(max=count - 1)
    shift = 2 * (unit - (ends - (1 << kind))[place])
    return order.view(count, n).t().reshape(-1), Rows(kind, place, shift.to(torch.int32).unsqueeze(-1))


# ---- codes -----------------------------------------------------------------------------------------------------------


def levels(bits: int, epsilon: float) -> tuple[float, ...]:
    """f(r) for r = 0 .. 2^(bits-1) - 1: from 0 to 1, denser towards 0."""
    top, base = (1 << (bits - 1)) - 1, 1 + 2 * epsilon**2
    return tuple((base**r - 1) / (base**top - 1) for r in range(top + 1))


_SIZE: Final = 128
_CELLS: Final = 512  # of [0, 1]; none has two levels
_BY_KIND: Final = [levels(bits, epsilon) for bits, epsilon in zip(WIDTHS, EPSILONS, strict=True)]
_LEVELS: Final = tuple(level for own in _BY_KIND for level in (*own, *[1.0] * (_SIZE - len(own))))
"""Those of each kind, filled up to 128."""
_BELOW: Final = tuple(
    float(sum(level <= cell / _CELLS for level in own) - 1) for own in _BY_KIND for cell in range(_CELLS + 1)
)
"""Index of the largest level up to where a cell begins."""
_SHARES: Final = tuple(r / 255 for r in range(256))


def _top(kind: Tensor) -> Tensor:
    """L: 1, 7, 127."""
    return (1 << ((2 << kind) - 1)) - 1


def _encode(
    x: Tensor, most: Tensor, kind: Tensor, draw: Tensor, level: Tensor, below: Tensor, out: Tensor
) -> None:
    y = x.abs() / most
    y = torch.where(y != y, 0.0, y).clamp(0, 1)
    index = kind * _SIZE + below[kind * (_CELLS + 1) + (y * _CELLS).to(torch.int64)]
    last = kind * _SIZE + _top(kind)
    index = index + (y >= level[(index + 1).minimum(last)]).to(torch.int64)
    index = index.minimum(last)
    low = level[index]
    up = draw * (level[(index + 1).minimum(last)] - low) < y - low
    out.copy_((index + up - kind * _SIZE) | torch.where(x < 0, _top(kind) + 1, 0))


def _decode(codes: Tensor, kind: Tensor, scale: Tensor, level: Tensor, out: Tensor) -> None:
    value = level[kind * _SIZE + (codes & _top(kind))] * scale
    out.copy_(torch.where(codes > _top(kind), -value, value))


def _cut(codes: Tensor, shift: Tensor, out: Tensor) -> None:
    out.copy_((codes >> shift) & 3)


_encoder, _decoder, _cutter = (
    Compiled(_encode, tiles=True),
    Compiled(_decode, tiles=True),
    Compiled(_cut, tiles=True),
)


def encode(x: Tensor, rows: Rows, draw: Tensor, by_group: Tensor) -> Tensor:
    """Rows of a piece -> its message.

    Args:
        x: float32 [R, 256].
        rows: Their widths.
        draw: Uniform, float32 [R, 256].
        by_group: Uniform, float32 [R, 16], for scales.

    Returns:
        uint8 [64 U + 18 R].
    """
    count, device = len(x), x.device
    most = largest(x.view(-1, GROUP)).view(count, GROUPS)
    above = _bf16_above(most.amax(-1))
    share = most.div(above.to(torch.float32).unsqueeze(-1)).nan_to_num_(0.0, 0.0).mul_(255)
    share = share.floor().add_(by_group < share - share.floor()).clamp_(max=255)
    codes = compute.empty((count, GROUPS, GROUP), torch.int32, device)
    _encoder(
        x.view(codes.shape), most.unsqueeze(-1), rows.kind.view(-1, 1, 1), draw.view(codes.shape),
        constant(_LEVELS, torch.float32, device), constant(_BELOW, torch.int64, device), codes,
    )  # fmt: skip
    message = compute.empty(UNIT * len(rows.place) + SCALES * count, torch.uint8, device)
    bits, shares, scales = _parts(message, rows)
    parts = compute.empty((len(rows.place), SUPER), torch.int32, device)
    torch.index_select(codes.view(count, SUPER), 0, rows.place, out=parts)
    _cutter(parts, rows.shift, parts)
    packing.pack(parts.view(-1), 2, bits)
    shares.copy_(share.view(-1))
    scales.copy_(above.view(torch.uint8))
    return message


def decode(message: Tensor, rows: Rows) -> Tensor:
    """A piece's message -> float32 [R, 256]."""
    bits, shares, scales = _parts(message, rows)
    count, device = len(rows.kind), message.device
    parts = compute.empty((len(rows.place), SUPER), torch.int32, device)
    packing.unpack(bits, 2, parts.view(-1))
    codes = compute.zeros((count, SUPER), torch.int32, device)
    codes.index_add_(0, rows.place, parts.bitwise_left_shift_(rows.shift))
    share = constant(_SHARES, torch.float32, device).index_select(0, shares.to(torch.int32))
    above = scales.clone().view(torch.bfloat16).to(torch.float32)
    scale = share.view(count, GROUPS).mul_(above.unsqueeze(-1))
    out = compute.empty((count, GROUPS, GROUP), torch.float32, device)
    _decoder(
        codes.view(out.shape), rows.kind.view(-1, 1, 1), scale.unsqueeze(-1), constant(_LEVELS, torch.float32, device), out
    )  # fmt: skip
    return out.view(count, SUPER)


def _parts(message: Tensor, rows: Rows) -> tuple[Tensor, Tensor, Tensor]:
    """Codes, scales of groups, scales of super-groups."""
    codes = UNIT * len(rows.place)
    shares = codes + GROUPS * len(rows.kind)
    return message[:codes], message[codes:shares], message[shares:]


def _bf16_above(x: Tensor) -> Tensor:
    """The least bf16 that is not below x >= 0, float32."""
    return ((x.view(torch.int32) + 0xFFFF) >> 16).to(torch.int16).view(torch.bfloat16)
