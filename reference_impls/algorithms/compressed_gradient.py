"""One composition of which many methods are made: a compressor x a way to carry its messages x a local optimizer.

p_i = g_i + e_i -> message_i = C(p_i) -> mean over workers of what messages decode to -> the local optimizer's step;
e_i <- p_i - decoded message_i with error feedback (arXiv 1901.09847), else e_i = 0. A method of this kind is its options and
the `compressor` C; forms, error feedback, warm-up in full precision, scales a bucket or a tensor, full precision
for small tensors are written here once and go with any compressor.

Small tensors: biases and norms are a small share of a model and a large share of its sensitivity, so QSGD's and CGX's
implementations leave them alone. They travel in full precision, in one all-reduce; the large tensors of a bucket are put
behind one another and compressed as one vector; random streams, blocks and, in two phases, the pieces that ranks serve count
in that vector.

Differences of all: one worker compresses nothing. Error feedback on both ways in the two-phase form (worker and server), as in
1-bit Adam. Without error feedback a biased compressor is biased: nothing is corrected in silence.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar, Literal

from torch import Tensor

from reference_impls.aggregators.coded_mean import gather_mean, joined, spread, two_phase_mean
from reference_impls.compressors.compressor import Compressor, PerTensor
from reference_impls.compressors.levels import GeometricLevels, MinMax, Natural, UniformLevels
from reference_impls.compressors.signs import ScaledSigns
from reference_impls.compressors.sparse import TopK
from reference_impls.core.algorithm import (
    DEFAULT,
    FOREVER,
    Bucket,
    StateSpec,
    Timed,
    TrainState,
    option,
    owned,
    per_rank,
)
from reference_impls.core.collectives import Exchange, Group
from reference_impls.core.errors import UnsupportedError
from reference_impls.core.optimizers import WithLocalOptimizer

_GEOMETRIC_BITS = 7  # 63 powers of two


@dataclass(frozen=True)
class CompressedGradient(WithLocalOptimizer):
    """Kinds of step: ``warm-up`` (fp32 all-reduce of gradients) and ``compressed``."""

    form: Literal["gather", "two-phase"] = option(
        "gather", "gather (all messages to everybody) or two-phase (a server for each piece, coded twice)"
    )
    granularity: Literal["bucket", "tensor"] = option(
        "bucket", "what a compressor sees at once: a bucket, or one tensor (form=gather)"
    )
    error_feedback: bool = option(False, "add what the last message lost to the next one")
    warmup_steps: int = option(0, "first steps, in full precision", ge=0)

    @abstractmethod
    def compressor(self, n: int) -> Compressor:
        """C, the compressor for n workers; `UnsupportedError` for impossible options."""

    @property
    def smallest(self) -> int:
        """Tensors of fewer elements, or of one dimension, stay in fp32; 0: none do. An option where a paper has it so."""
        return 0

    def _is_small(self, shape: Sequence[int]) -> bool:
        return self.smallest > 0 and (len(shape) <= 1 or prod(shape) < self.smallest)

    @property
    def state(self) -> Mapping[str, StateSpec]:
        if not self.error_feedback:
            return {}
        if self.form == "gather":
            return {"worker_error": per_rank()}
        # of large tensors alone a rank serves a piece that is not the one that slots can own
        return {"worker_error": per_rank(), "server_error": per_rank() if self.smallest else owned()}

    def check(self, world: Group) -> None:
        if self.granularity == "tensor" and self.form != "gather":
            raise UnsupportedError(
                "granularity='tensor' needs form='gather': the pieces of form='two-phase' cut through tensors"
            )
        self.compressor(world.size)
        if self.smallest and self.granularity != "bucket":
            raise UnsupportedError("smallest > 0 goes with granularity='bucket'")

    def plan(self, train_state: TrainState) -> str:
        return "warm-up" if train_state.step < self.warmup_steps else "compressed"

    def reduce(self, bucket: Bucket) -> Exchange[Tensor]:
        if bucket.kind == "warm-up":
            return (yield from bucket.world.mean(bucket.grads, "gradient"))
        if self.smallest and bucket.world.size > 1:
            return (yield from self._large_tensors(bucket))
        compressor = self.compressor(bucket.world.size)
        if self.granularity == "tensor":
            compressor = PerTensor(compressor, tuple(v.param.numel() for v in bucket.views))
        error = bucket.state["worker_error"] if self.error_feedback else None
        return (yield from self._coded(bucket, bucket.grads, compressor, error))

    def _large_tensors(self, bucket: Bucket) -> Exchange[Tensor]:
        """The mean of small tensors in full precision, and of the large ones behind one another by the compressor."""
        small = [v.part for v in bucket.views if self._is_small(v.param.shape)]
        large = [v.part for v in bucket.views if not self._is_small(v.param.shape)]
        out = bucket.scratch("mean", bucket.d, bucket.grads.dtype)
        if small:
            spread(out, small, (yield from bucket.world.mean(joined(bucket.grads, small), "small")))
        if large:
            x = joined(bucket.grads, large)
            error = joined(bucket.state["worker_error"], large) if self.error_feedback else None
            spread(out, large, (yield from self._coded(bucket, x, self.compressor(bucket.world.size), error)))
            if error is not None:
                spread(bucket.state["worker_error"], large, error)
        return out

    def _coded(
        self, bucket: Bucket, x: Tensor, compressor: Compressor, error: Tensor | None
    ) -> Exchange[Tensor]:
        """The mean of the messages C(x + e), gathered or in two phases."""
        if self.form == "gather":
            return (yield from gather_mean(bucket, x, compressor, "gradient", worker_error=error))
        server = bucket.state["server_error"] if self.error_feedback else None
        return (
            yield from two_phase_mean(
                bucket, x, compressor, "gradient", worker_error=error, server_error=server
            )
        )

    timed: ClassVar[Timed] = {
        "compressed": {"warmup_steps": DEFAULT},
        "warm-up": {"warmup_steps": FOREVER},
    }


# ---- the methods ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EFSignSGD(CompressedGradient):
    """EF-signSGD: one bit a coordinate and one scale, with error feedback. arXiv 1901.09847.

    g <- mean of sign(p_i) |p_i|_1 / d, p_i = g_i + e_i: the composition of that compressor, error feedback and any form.

    Differences: the paper's abstract and its authors' code could be read, not its body. That code is for a single worker;
    averaging the messages is how others make it distributed. It puts the learning rate inside p, so that e holds steps; here e
    holds gradients: the same at a constant rate, and when the rate changes what was kept back is applied at the new one. Any
    local optimizer may follow (the code's own step is SGD's, the default). Scales are per tensor, as there; ``bucket`` has one
    a bucket, hence depends on its size. The two-phase form, which cuts through tensors, needs that.
    """

    granularity: Literal["bucket", "tensor"] = option("tensor", "what has a scale: a tensor, or a bucket")
    error_feedback: bool = option(True, "add what the last message lost to the next one")
    norm: Literal["l1", "l2"] = option("l1", "scale: l1 (contraction, the paper's) or l2 (keeps the norm)")

    def compressor(self, n: int) -> Compressor:
        return ScaledSigns(self.norm)


@dataclass(frozen=True)
class Levels(CompressedGradient):
    """QSGD: each worker rounds its gradient at random onto s levels of a norm of each block. arXiv 1610.02132.

    Options of a compressor that rounds onto levels of a norm of each block.

    q = sign(g) sr(s |g| / N), N the norm of the element's block of B; everybody gathers all messages (codes and norms) and
    averages what they decode to. Unbiased, no state. ``linf`` is the paper's practical variant. ``natural-dithering`` (arXiv
    1905.10988) and ``nuqsgd`` (arXiv 1908.06077) are the same with powers of two of N as levels.

    Differences: messages have a fixed length, b bits a coordinate (s = 2^(b-1) - 1 and its negatives, 2 s + 1 values; with
    `levels` s is given, and b is what 2 s needs): the paper's own GPU code does not use its Elias coding either, and here
    the bits that it would save are not saved. The last block of a bucket is shorter. Gather is the paper's form; two-phase
    codes the mean once more. GRACE's code divides by zero on a zero block; here it is zeros. The paper sends tensors of fewer
    than 10,000 elements uncompressed: ``smallest`` does that, and is off.

    ``qsgd-published`` is not QSGD: it is what Global-QSGD's repository compares itself with. It divides by n before rounding
    onto 127 levels of one maximum a bucket, though it gathers, and so uses 127 / n levels. It exists to measure what that
    costs.

    NUQSGD's and natural dithering's bodies: the first could not be read, its code was; that has no level at zero, here there
    is one, as in the theorem. Both take k = 2^(b-1) - 1 levels above zero.
    """

    smallest: int = option(
        0, "tensors of fewer elements, or of one dimension, stay in fp32; 0: none do", ge=0
    )
    bits: int = option(4, "bits of a code, with its sign: 2 to 16", ge=2, le=16)
    levels: int = option(0, "s, levels above zero; 0: as many as bits hold, 2^(bits-1) - 1", ge=0)
    norm: Literal["l2", "linf"] = option("l2", "what scales a block: l2, or linf (its largest magnitude)")
    block_size: int = option(512, "elements of a block; 0: one block a message", ge=0)

    def _levels(self, widest: int) -> int:
        if self.levels:
            return self.levels
        if not 2 <= self.bits <= widest:
            raise UnsupportedError(
                f"bits must be 2 to {widest} (a sign and at least one level), got {self.bits}"
            )
        return int(2 ** (self.bits - 1)) - 1


@dataclass(frozen=True)
class QSGD(Levels):
    """g <- mean of N sign(g_i) sr(s |g_i| / N) / s: the composition of QSGD's quantiser and any form."""

    divide_first: bool = option(False, "divide by n before rounding (a published defect, for comparison)")

    def compressor(self, n: int) -> Compressor:
        return UniformLevels(self._levels(16), self.norm, self.block_size, n if self.divide_first else 1)


@dataclass(frozen=True)
class GeometricQSGD(Levels):
    """g <- mean of the workers' gradients, rounded to powers of two of N: the same composition with these levels."""

    def compressor(self, n: int) -> Compressor:
        return GeometricLevels(self._levels(_GEOMETRIC_BITS), self.norm, self.block_size)


@dataclass(frozen=True)
class NaturalCompression(CompressedGradient):
    """Natural compression: gradients travel as signs and powers of two, 9 bits a coordinate. arXiv 1905.10988.

    g <- C(mean of C(g_i)), C rounding each number to a power of two: the composition of that compressor and any form.

    Every number goes to one of its two neighbouring powers of two, at random and without bias: E|C(x) - x|^2 <= |x|^2 / 8.
    ``two-phase`` is the paper's bidirectional form: whoever holds the mean compresses it once more. No scale, no state.

    Differences: 9 bits are really sent (GRACE's variant sends 8, with exponents clipped to 2^-108 .. 2^18). Subnormal numbers
    are rounded without bias to 0 or 2^-126, numbers from 2^127 on down to 2^127. The master is spread over all ranks, piece
    by piece.
    """

    form: Literal["gather", "two-phase"] = option(
        "two-phase", "two-phase (bidirectional, the paper's) or gather (all messages to everybody)"
    )

    def compressor(self, n: int) -> Compressor:
        return Natural()


@dataclass(frozen=True)
class CGX(CompressedGradient):
    """CGX: equal steps between the least and greatest value of each block, summed by scatter, reduce, gather. arXiv 2111.08617.

    g <- mean of the workers' gradients, coded between the ends of each block, twice.

    Rank r averages what it receives of the r-th piece, codes the mean once more, and everybody, rank r included, takes the
    decoded codes. Vectors and tensors under 1024 elements travel in fp32. Metadata: two float32 a block.

    Differences: the paper could not be read; its code (torch_cgx) was. Rounding is at random and unbiased by default, which
    is a build flag there (default: to nearest, biased; ``rounding="nearest"``). Rank r's own piece is coded like the others'
    before it is added (there it stays in full precision). Blocks of 512 count within a piece of the joined large tensors,
    not within one layer. Means are divided by n after the sum, there before. Optional error feedback is off, as there.
    """

    form: Literal["gather", "two-phase"] = option(
        "two-phase", "two-phase (scatter, reduce, gather) or gather (all messages to everybody)"
    )
    smallest: int = option(
        1024, "tensors of fewer elements, or of one dimension, stay in fp32; 0: none do", ge=0
    )
    bits: int = option(4, "bits of a code: 1 to 8; for more see allreduce-bf16", ge=1, le=8)
    block_size: int = option(512, "elements of a block; 0: one block a message", ge=0)
    rounding: Literal["nearest", "stochastic"] = option(
        "stochastic", "stochastic (unbiased) or nearest (biased, the published default)"
    )

    def compressor(self, n: int) -> Compressor:
        return MinMax(self.bits, self.block_size, self.rounding)


@dataclass(frozen=True)
class TopKGradient(CompressedGradient):
    """Top-k sparsification with error feedback: every worker sends its k largest coordinates. arXiv 1704.05021, 1809.10505.

    g <- mean of top_k(g_i + e_i): the composition of the compressor that keeps the k largest, error feedback and any form.

    p_i = g_i + e_i; the k = max(1, floor(ratio d)) largest coordinates of p_i are sent with their places, the others count as 0;
    everybody averages the n messages and steps the local optimizer; e_i keeps what was not sent.

    Differences: selection is exact; the first paper (gradient dropping) takes a threshold from a sample. Ties go to the lowest
    index, where published codes leave the choice to the library. Places travel in ceil(log2 d) bits;
    published codes send 32 or 64. k is of a bucket, or of a tensor with ``granularity="tensor"`` (GRACE's choice), so results
    depend on the bucket size in the first case. In the two-phase form k is of a piece, and the server selects once more. A
    value that is not finite counts as the largest, so it is sent.
    """

    error_feedback: bool = option(True, "add what the last message left out to the next one")
    ratio: float = option(0.01, "share of the coordinates that is sent", gt=0, le=1)

    def compressor(self, n: int) -> Compressor:
        return TopK(self.ratio)
