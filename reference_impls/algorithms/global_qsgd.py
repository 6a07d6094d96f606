"""Means by dithering on a scale that all ranks share: Global-QSGD, QSGD-MaxNorm, TernGrad.

One mechanism: M, the norm over all ranks; codes of equal levels of M, rounded at random without bias; an integer sum on any
transport (`aggregators.integer_sum`). The methods differ in how many levels a rank has, in what carries the sum, and in what M
is. Unbiased, no state.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from itertools import count
from typing import Literal

import torch
from torch import Tensor

from reference_impls.aggregators import folds
from reference_impls.aggregators.integer_sum import (
    WIDTHS,
    Scaling,
    Transport,
    integer_sum,
    shared_scale,
    standard_mean,
)
from reference_impls.aggregators.majority import unanimous
from reference_impls.compressors import dithering
from reference_impls.compressors.sums import fixed_mean
from reference_impls.core import compute
from reference_impls.core.algorithm import Bucket, option
from reference_impls.core.collectives import Exchange, Group
from reference_impls.core.errors import UnsupportedError, one_of
from reference_impls.core.optimizers import WithLocalOptimizer

SUMS = ("all-reduce", "two-phase")
BY_ALL_REDUCE = (4, 8, 16)


@dataclass(frozen=True)
class DitheredMean(WithLocalOptimizer):
    """g <- M / (s n) times the sum of codes sign(g_i) sr(s |g_i| / M); then the local optimizer's step."""

    @property
    @abstractmethod
    def scaling(self) -> Scaling:
        """What M is, and how many there are."""

    @property
    @abstractmethod
    def transport(self) -> Transport:
        """How codes travel."""

    @abstractmethod
    def levels_of(self, n: int) -> int:
        """s, the levels of one of n ranks."""

    @abstractmethod
    def width(self, n: int) -> int:
        """Bits of a sum over n ranks."""

    def dithered(self, bucket: Bucket) -> Tensor:
        """What is sent, float32 [d]."""
        return bucket.grads.to(torch.float32)

    def reduce(self, bucket: Bucket) -> Exchange[Tensor]:
        n = bucket.world.size
        return (
            yield from standard_mean(
                bucket, self.dithered(bucket), "gradient", bits=self.width(n), levels=self.levels_of(n),
                scaling=self.scaling, transport=self.transport,
            )
        )  # fmt: skip


@dataclass(frozen=True)
class GlobalQSGD(DitheredMean):
    """Global-QSGD: gradients dithered on one global scale, so that codes may be added on the way. arXiv 2305.18627.

    g <- unbiased estimate of the mean over workers of g; then the local optimizer's step.

    M = norm over all ranks (an all-reduce of 4 bytes a scale, of 8 for l2); every rank rounds g_i / M without bias to a few
    levels; the codes are summed inside an all-reduce; everybody decodes the mean and steps the local optimizer. No error
    feedback, no state.

    ``standard``: s = floor((2^(b-1) - 1) / n) equal levels, a b-bit integer sum. ``exponential``: levels 2^-k, one byte, a
    randomised addition of bytes on a tree, which rounds the sum itself: its error does not fall with n.

    Differences: the body of the paper could not be read; a reader's notes of it and its authors' code were. That code
    divides by n before rounding, 127 / n levels, and overflows when ranks agree on the maximum; here s is an integer and no
    sum can overflow. Its 4-bit form is right for n = 4 only; here 4 bits work up to n = 7. Its exponential head-room is
    log2 n for rings too; here additions are balanced and the head-room is the real depth. A zero gradient gives zeros
    (there NaN). Halving-doubling, at 2 (n-1)/n bytes an element, stands beside the paper's tree; n need not be a power of
    two on the tree. Widths other than 4, 8 and 16 bits go in two phases, packed. The paper's optional sparse branch
    (``sparse``: the non-zero codes alone, with their places, gathered), known from a reader's notes and not in its code,
    has the same levels and so the same result to the bit; for exponential codes it would save nothing, since hardly one of
    them is zero, and is refused. Of its baselines ours is `qsgd-published`, which is not QSGD.
    """

    dithering: Literal["standard", "exponential"] = option(
        "standard", "standard (equal levels, integer sum) or exponential (powers of two)"
    )
    bits: int = option(8, "bits of a code and of its sum: 2 to 16 (standard), 8 (exponential)", ge=2, le=16)
    norm: Literal["linf", "l2"] = option("linf", "norm over all ranks: linf (largest magnitude) or l2")
    scale: Literal["bucket", "tensor", "block"] = option(
        "bucket", "one scale a bucket, a tensor, or a block of block_size elements"
    )
    block_size: int = option(512, "elements of a block (scale=block)", ge=1)
    form: Literal["auto", "tree", "halving-doubling", "all-reduce", "two-phase"] = option(
        "auto",
        "exponential: tree, halving-doubling (n a power of two); standard: all-reduce (4, 8, 16 bits), two-phase",
    )
    sparse: bool = option(False, "gather the non-zero codes alone, with their places (standard)")

    def check(self, world: Group) -> None:
        standard = self.dithering == "standard"
        one_of("form", self.form, ("auto", *(SUMS if standard else ("tree", "halving-doubling"))))
        if not standard and self.bits != 8:
            raise UnsupportedError(f"exponential dithering takes bits of 8, not {self.bits}")
        if self.form == "all-reduce" and self.bits not in BY_ALL_REDUCE:
            raise UnsupportedError(
                f"an all-reduce adds 4, 8 or 16 bits, not {self.bits}: use form='two-phase'"
            )
        if self.sparse and not standard:
            raise UnsupportedError(
                "sparse goes with standard dithering: exponential codes are hardly ever zero"
            )
        if self.sparse and self.form != "auto":
            raise UnsupportedError(f"sparse codes are gathered: leave out form={self.form!r}")
        if standard:
            dithering.levels(self.bits, world.size)
        else:
            halves(self.form, world.size)

    @property
    def scaling(self) -> Scaling:
        return Scaling(self.norm, self.scale, self.block_size)

    @property
    def transport(self) -> Transport:
        if self.sparse:
            return "sparse"
        wide = self.form == "two-phase" or (self.form == "auto" and self.bits not in BY_ALL_REDUCE)
        return "two-phase" if wide else "all-reduce"

    def levels_of(self, n: int) -> int:
        return dithering.levels(self.bits, n)

    def width(self, n: int) -> int:
        return self.bits

    def reduce(self, bucket: Bucket) -> Exchange[Tensor]:
        if self.dithering == "standard":  # equal levels of M, an integer sum
            return (yield from super().reduce(bucket))
        n = bucket.world.size
        depth, halving = head_room(n), halves(self.form, n)
        x = bucket.grads.to(torch.float32)
        shared = yield from shared_scale(bucket, x, "gradient", self.scaling)  # M, the same on all ranks
        padded = n * -(-bucket.d // n) if halving else bucket.d
        codes = bucket.scratch("gradient-codes", padded, torch.uint8)
        codes[bucket.d :].zero_()
        dithering.encode_powers(x, shared, depth, bucket.key("gradient-dither"), codes[: bucket.d])
        if halving:
            yield from _halving_doubling_sum(bucket, codes, "gradient")
        else:
            codes = yield from _tree_sum(bucket, codes, "gradient")
        mean = bucket.scratch("gradient-mean", bucket.d, torch.float32)
        dithering.decode_powers(codes[: bucket.d], shared, depth, n, mean)
        return mean


def head_room(size: int) -> int:
    """Depth of the balanced addition over `size` ranks: ceil(log2 size)."""
    return (size - 1).bit_length()


def halves(form: str, size: int) -> bool:
    """Whether `size` ranks add by halving-doubling and not on a tree; `UnsupportedError` if they cannot."""
    power_of_two = size & (size - 1) == 0
    if form == "halving-doubling" and not power_of_two:
        raise UnsupportedError(
            f"halving-doubling needs a power of two of ranks, not {size}: use form='tree' or 'auto'"
        )
    return power_of_two and form != "tree"


def _tree_sum(bucket: Bucket, codes: Tensor, stage: str) -> Exchange[Tensor]:
    """Sum of all ranks' codes on a tree whose root is the last rank; its layers draw apart."""
    layers = count()

    def add(mine: Tensor, came: Tensor, _: bool) -> Tensor:
        dithering.add_powers(mine, came, bucket.key(f"{stage}-add-{next(layers)}"), mine)
        return mine

    return (yield from folds.tree(bucket.world, codes, add, stage, from_last=True))


def _halving_doubling_sum(bucket: Bucket, codes: Tensor, stage: str) -> Exchange[None]:
    """Sum of all ranks' codes, in place; n a power of two, `codes` uint8 [n * piece].

    Halving: partners at distance n/2, n/4, ..., 1 give each other the half that the other will own. Doubling: back in
    the reverse order, the sums are passed on as bytes.
    """
    world = bucket.world
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
        dithering.add_powers(mine, came, bucket.key(f"{stage}-add-{distance}"), mine)
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


@dataclass(frozen=True)
class QSGDMaxNorm(DitheredMean):
    """QSGD-MaxNorm: levels of the largest magnitude over all workers, s of them to each worker, summed. arXiv 2109.12497.

    M = largest |g| over all ranks (a max all-reduce); q = sign(g) sr(s |g| / M) with s = 2^bits - 1, whatever n is; codes are
    added as integers and decoded as sum(q) M / (s n). It came before Global-QSGD, whose standard dithering is the same with s
    = floor((2^(b-1) - 1) / n), to the bit where the two agree on s. Here a worker's precision is fixed and the width of the
    sum grows with n; there it is the other way round. Unbiased, no state.

    With `fine_bits` there are two grids (their multi-scale form): s' = 2^fine_bits - 1 levels where the codes of all ranks
    then still fit -s .. s, else s. Which one it is travels as one bit a coordinate, in two phases.

    Differences: the paper could not be read; its code was. There, codes of 7 bits travel as int8, and two of them overflow.
    Here sums have the bits that they need: packed, in two phases, or an all-reduce of 4, 8, 16 or 32 bits, the least that
    holds n s.
    """

    bits: int = option(4, "q: 2^q - 1 levels above zero, the sign not counted; 1 to 15", ge=1, le=15)
    fine_bits: int = option(
        0, "q' > q: levels where all codes then still fit q bits; 0: one grid", ge=0, le=20
    )
    form: Literal["two-phase", "all-reduce"] = option("two-phase", "two-phase (packed) or all-reduce")
    scale: Literal["bucket", "tensor"] = option("bucket", "one maximum a bucket, or a tensor")

    def check(self, world: Group) -> None:
        if 0 < self.fine_bits <= self.bits:
            raise UnsupportedError(f"fine_bits must be above bits, {self.bits}, or 0; got {self.fine_bits}")

    @property
    def scaling(self) -> Scaling:
        return Scaling("linf", self.scale)

    @property
    def transport(self) -> Transport:
        return self.form

    def levels_of(self, n: int) -> int:
        return (1 << self.bits) - 1

    def width(self, n: int) -> int:
        needed = (n * self.levels_of(n)).bit_length() + 1
        return needed if self.form == "two-phase" else next(w for w in WIDTHS if w >= needed)

    def reduce(self, bucket: Bucket) -> Exchange[Tensor]:
        if not self.fine_bits:
            return (yield from super().reduce(bucket))
        n = bucket.world.size
        levels = self.levels_of(n)
        x = bucket.grads.to(torch.float32)
        largest = yield from shared_scale(bucket, x, "gradient", self.scaling)
        fine = (1 << self.fine_bits) - 1
        fits = yield from unanimous(bucket.world, x.abs() / largest * fine <= levels, "gradient-grid")
        # s levels of M s / s' are the fine grid where it fits
        step = torch.where(fits, largest * (levels / fine), largest)
        codes = torch.empty(bucket.d, dtype=torch.int32, device=x.device)
        dithering.encode(x, step, levels, bucket.key("gradient-dither"), codes)
        total = yield from integer_sum(
            bucket.world, codes, self.width(n), levels, "gradient-codes", self.form
        )
        mean = bucket.scratch("gradient-mean", bucket.d, torch.float32)
        dithering.decode(total, step, levels, n, mean)
        return mean


@dataclass(frozen=True)
class TernGrad(DitheredMean):
    """TernGrad: gradients of three values, -1, 0 and 1 times a scale that all workers share. arXiv 1705.07878.

    g <- s times the mean of ternary codes.

    s = largest |g| of a tensor over all ranks (a max all-reduce); each rank sends sign(g) b, b = 1 with probability |g| / s;
    what is applied is s times the mean of the codes. Sums of codes are integers in -n .. n, so they may be added on the way:
    ``two-phase``: 2 bits up, ceil(log2(2 n + 1)) down, added by the owner of a piece, the paper's server spread over all
    ranks; ``all-reduce``: added by it in 4 bits (to 7 ranks) or 8; ``gather``: 2 bits to everybody. All have
    the same result to the bit. Unbiased unless clipped; no state.

    Differences: the paper's abstract, readers' notes of it and its authors' code could be read, not its body. Clipping at c
    sigma (2.5 there, for ImageNet) is an option and off, since it is biased. sigma is taken about the mean, as in the
    published code, but what is cut is |g|, also where the mean is not 0; a tensor of equal numbers has no sigma and is not
    clipped. The published code then scales by c sigma, here by what is left as largest. The paper keeps the last layer in
    full precision and reduces dropout and weight decay: that is the user's affair. GRACE's code has one scale a worker, and
    its sums are not sums of integers.
    """

    form: Literal["two-phase", "all-reduce", "gather"] = option(
        "two-phase", "how codes are added: two-phase, all-reduce or gather"
    )
    scale: Literal["tensor", "bucket"] = option("tensor", "one scale a tensor, or a bucket")
    clip: float = option(
        0.0, "standard deviations at which gradients are cut, tensor by tensor; 0: never", ge=0
    )

    def check(self, world: Group) -> None:
        if self.form == "all-reduce" and world.size > 127:
            raise UnsupportedError("8 bits add up to 127 ranks: use form='two-phase'")

    @property
    def scaling(self) -> Scaling:
        return Scaling("linf", self.scale)

    @property
    def transport(self) -> Transport:
        return self.form

    def levels_of(self, n: int) -> int:
        return 1

    def width(self, n: int) -> int:
        needed = n.bit_length() + 1
        return needed if self.form != "all-reduce" else 4 if needed <= 4 else 8

    def dithered(self, bucket: Bucket) -> Tensor:
        x = super().dithered(bucket)
        if not self.clip:
            return x
        cut = compute.empty_like(x)
        for view in bucket.views:
            cut[view.part] = clipped(x[view.part], self.clip)
        return cut


def clipped(x: Tensor, deviations: float) -> Tensor:
    """x [d] cut at +-`deviations` population standard deviations (about the mean); as it is if all are equal."""
    wide = compute.empty_like(x, torch.float64).copy_(x)
    sigma = fixed_mean(wide.sub_(fixed_mean(wide)).square_()).sqrt()
    bound = torch.where(sigma == 0, torch.inf, deviations * sigma).to(x.dtype)
    out = torch.minimum(x, bound, out=compute.empty_like(x))
    return torch.maximum(out, -bound, out=out)
