"""Local updates: workers step by themselves and meet at the end of a round. Local SGD and QSR: arXiv 1805.09767, 2310.14423.

Workers keep an anchor A, the parameters with which the round began. Each takes local steps from there, to x; they average
what they made of it, D = mean(A - x), compressed or not; an outer optimizer moves the anchor along D, and all go on from A.
So a method is a rule of when to meet (`reference_impls.core.schedules`), an outer optimizer (`Outer`), a compression
(`Compression`) and what becomes of the local optimizers' states, and any of these goes with any other. Where the outcome
is the plain mean in full precision (fp32, outer sgd of rate 1), parameters themselves are averaged and there is no anchor.

QSR sets the length of a round from the learning rate of its first step, H = max(H_base, floor((alpha / lr)^2)), so
that rounds grow as the learning rate decays.

Of all presets: there is one anchor a worker, in the dtype and on the device of the parameters (published codes keep it on the
host or on one rank). What is compressed is always A - x, never x; inner states travel in full precision. A model wrapped in
DistributedDataParallel would broadcast its buffers at every forward pass, and average gradients besides.

Differences: parameters of all trainable tensors are averaged, also of those without gradient (the official code skips
them). Optimizer states stay local unless `inner_state` says otherwise; the official code can average Adam's m and v
apart. During the warm-up H = H_base as in its examples; the paper takes the first value after it, which a method that
sees one learning rate at a time cannot know: give it as `warmup_period`. Buffers are not touched (there, BatchNorm statistics are
estimated anew before each evaluation). With `total_steps` the last round is cut so that the last average is exactly at
the end, as in the official code; without it training is open-ended, and what follows the last whole round stays local.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import ClassVar, Final, Literal

import torch
from torch import Tensor

from reference_impls.aggregators.coded_mean import gather_mean, two_phase_mean
from reference_impls.aggregators.integer_sum import standard_mean
from reference_impls.compressors import dithering
from reference_impls.compressors.bins import DeviationBins
from reference_impls.compressors.compressor import Compressor, PerTensor
from reference_impls.compressors.levels import GeometricLevels, MinMax
from reference_impls.compressors.signs import ScaledSigns
from reference_impls.compressors.sparse import ChunkTopK
from reference_impls.core import compute
from reference_impls.core.algorithm import (
    DEFAULT,
    Bucket,
    OptimizerFactory,
    StateSpec,
    Timed,
    TrainState,
    View,
    option,
    owned,
    per_rank,
    replicated,
)
from reference_impls.core.collectives import Exchange, Group
from reference_impls.core.errors import UnsupportedError
from reference_impls.core.optimizers import WithLocalOptimizer
from reference_impls.core.schedules import QSR, Constant, Rule

ROUNDS: Final = (1, 4, 16, 64)
"""Lengths of the rounds that are timed, in steps."""
TIMED_ROUNDS: Final[Timed] = {f"round-{h}": {"total_steps": DEFAULT, "period": h} for h in ROUNDS}
"""`Algorithm.timed` of a method whose rounds are not those of local SGD, and which has an option `period`."""

OuterKind = Literal["sgd", "heavy-ball", "nesterov", "slowmo", "bmuf", "bmuf-nesterov"]


@dataclass(frozen=True)
class Outer:
    """What is done with the mean progress D of a round.

    A is the anchor, u the outer momentum (zeros at first), a = `lr`, b = `momentum`, g the learning rate of the step that
    ends the round, parameter group by parameter group:

    sgd            A <- A - a D                              a = 1 is the plain average of the parameters
    heavy-ball     u <- b u + D;    A <- A - a u
    nesterov       u <- b u + D;    A <- A - a (D + b u)     torch's form; DiLoCo (2311.08105)
    slowmo         u <- b u + D/g;  A <- A - a g u           SlowMo (1910.00643): u outlives changes of the learning rate
    bmuf           u <- b u + a D;  A <- A - u               blockwise model-update filtering (Chen & Huo 2016)
    bmuf-nesterov  u <- b u + a D;  A <- A - u - b u         the look-ahead point is the next anchor

    With constant rates `slowmo`, `heavy-ball` and `bmuf` are the same; `bmuf-nesterov` is not `nesterov`. Where g = 0,
    `slowmo` takes the limit g -> 0: u <- b u, A <- A - a D. Raises `UnsupportedError` for a momentum that sgd has not.
    """

    kind: OuterKind = "sgd"
    lr: float = 1.0
    momentum: float = 0.0

    def __post_init__(self) -> None:
        if self.kind == "sgd" and self.momentum:
            raise UnsupportedError(
                "outer='sgd' has no momentum: choose heavy-ball, nesterov, slowmo or bmuf, or outer_momentum=0"
            )

    @property
    def keeps_momentum(self) -> bool:
        """Whether there is a u."""
        return self.kind != "sgd"

    @property
    def is_average(self) -> bool:
        """Whether the next anchor is the mean of the parameters and nothing else."""
        return self.kind == "sgd" and self.lr == 1

    def step(
        self, anchor: Tensor, progress: Tensor, momentum: Tensor | None, inner_lr: float | Tensor
    ) -> None:
        """Move `anchor` and `momentum` (None for sgd), in place. progress: D; it may be consumed."""
        if momentum is None:
            anchor.sub_(progress, alpha=self.lr)
            return
        momentum.mul_(self.momentum)
        if self.kind == "slowmo":
            if inner_lr == 0:
                anchor.sub_(progress, alpha=self.lr)
                return
            momentum.add_(progress.div_(inner_lr))
            compute.add_scaled(anchor, momentum, -self.lr * inner_lr)
        elif self.kind in ("bmuf", "bmuf-nesterov"):
            momentum.add_(progress, alpha=self.lr)
            anchor.sub_(momentum)
            if self.kind == "bmuf-nesterov":
                anchor.sub_(momentum, alpha=self.momentum)
        else:
            momentum.add_(progress)
            if self.kind == "nesterov":
                progress.add_(momentum, alpha=self.momentum)
                anchor.sub_(progress, alpha=self.lr)
            else:
                anchor.sub_(momentum, alpha=self.lr)


# ---- how a mean over workers travels -----------------------------------------------------------------------------------


class Compression(ABC):
    """A way to average."""

    @property
    def state(self) -> Mapping[str, StateSpec]:
        """State that it keeps, which must be among the method's."""
        return {}

    def check(self, n: int) -> None:  # noqa: B027 - most serve any number of ranks
        """Raise `UnsupportedError` where n ranks cannot be served."""

    @abstractmethod
    def mean(self, bucket: Bucket, x: Tensor, stage: str) -> Exchange[Tensor]:
        """Mean of `x` [d] over all ranks, a tensor of the dtype of x that nothing else uses; x is consumed."""


@dataclass(frozen=True)
class Plain(Compression):
    """All-reduce, in the vector's own dtype or in bfloat16."""

    half: bool = False

    def mean(self, bucket: Bucket, x: Tensor, stage: str) -> Exchange[Tensor]:
        if not self.half or bucket.world.size == 1:
            return (yield from bucket.world.mean(x, stage))
        message = compute.empty_like(x, torch.bfloat16).copy_(x)
        return x.copy_((yield from bucket.world.sum(message, stage))).div_(bucket.world.size)


@dataclass(frozen=True)
class Integers(Compression):
    """Dithered integers of `bits`, summed on the way, on one scale a bucket: the largest magnitude over all ranks."""

    bits: int

    def check(self, n: int) -> None:
        dithering.levels(self.bits, n)

    def mean(self, bucket: Bucket, x: Tensor, stage: str) -> Exchange[Tensor]:
        if bucket.world.size == 1:
            return x
        mean = yield from standard_mean(bucket, x, stage, bits=self.bits)
        return x.copy_(mean)  # the answer lies in a buffer that the next call reuses


@dataclass(frozen=True)
class Coded(Compression):
    """Messages of a compressor, gathered; or with `feedback` in two phases, what a message lost being added to the next one."""

    compressor: Compressor
    feedback: bool = False

    @property
    def state(self) -> Mapping[str, StateSpec]:
        return {"compression_error": per_rank(), "server_error": owned()} if self.feedback else {}

    def mean(self, bucket: Bucket, x: Tensor, stage: str) -> Exchange[Tensor]:
        if not self.feedback:
            return (yield from gather_mean(bucket, x, self.compressor, stage))
        worker, server = bucket.state["compression_error"], bucket.state["server_error"]
        return (
            yield from two_phase_mean(
                bucket, x, self.compressor, stage, worker_error=worker, server_error=server
            )
        )


@dataclass(frozen=True)
class DecayingFeedback(Compression):
    """Messages of a `compressor`, tensor by tensor, gathered, with decaying error feedback.

    e <- b e + x on every rank, b = `decay`; its message is C(e); e <- e - decoded, so that decoded + e_new = b e_old + x holds
    element by element. The answer is the mean of the decoded messages. One worker compresses nothing.
    """

    compressor: Compressor
    decay: float

    state: ClassVar[Mapping[str, StateSpec]] = {"compression_error": per_rank()}

    def mean(self, bucket: Bucket, x: Tensor, stage: str) -> Exchange[Tensor]:
        if bucket.world.size == 1:
            return x
        compressor = PerTensor(self.compressor, tuple(view.param.numel() for view in bucket.views))
        error = bucket.state["compression_error"].mul_(self.decay)
        return (yield from gather_mean(bucket, x, compressor, stage, worker_error=error))


_NAMED: Final[Mapping[str, Compression]] = {
    "fp32": Plain(),
    "bf16": Plain(half=True),
    "int16": Integers(16),
    "int8": Integers(8),
    "int4": Integers(4),
    "e3m0": Coded(GeometricLevels(7, "linf", 512)),
    "sign": Coded(ScaledSigns("l1"), feedback=True),
}
COMPRESSIONS: Final = tuple(_NAMED)


def compression(which: str | Compressor) -> Compression:
    """A compression by its name in `COMPRESSIONS`, or a compressor whose messages are gathered."""
    return _NAMED[which] if isinstance(which, str) else Coded(which)


# ---- the mechanism -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LocalUpdates(WithLocalOptimizer):
    """Kinds of step: ``local``, which sends nothing, and ``average``, which ends a round.

    A preset says by which `rule` workers meet, and has its own defaults and options; the other parts follow from the options
    that all share. A method of other parts sets `rule`, `outer_optimizer`, `compression` or `inner_policy` in its class.
    """

    local_steps: ClassVar[bool] = True
    options_of_state: ClassVar[tuple[str, ...]] = ("outer",)

    carrier: str | Compressor = option(
        "fp32",
        "how the mean travels: fp32, bf16, int16, int8, int4, e3m0, sign (1 bit, error feedback), a compressor",
        choices=COMPRESSIONS,
    )
    outer: OuterKind = option(
        "sgd",
        "outer optimizer: sgd (rate 1: the mean), heavy-ball, nesterov, slowmo, bmuf, bmuf-nesterov",
    )
    outer_lr: float = option(1.0, "learning rate of the outer optimizer", ge=0)
    outer_momentum: float = option(0.0, "momentum of the outer optimizer", ge=0, lt=1)
    inner_state: Literal["keep", "average", "reset"] = option(
        "keep", "states of the local optimizer after an average: keep (local), average, reset"
    )
    total_steps: int | None = option(
        None, "steps of the whole training; the last round then ends exactly there", ge=1
    )

    @property
    @abstractmethod
    def rule(self) -> Rule:
        """When workers meet."""

    def plan(self, train_state: TrainState) -> Exchange[str] | str:
        return self.rule.plan(train_state)

    def reduce(self, bucket: Bucket) -> Tensor:
        if bucket.train_state.choice(lambda now: now.step == 0):
            self.begin_round(bucket)
        return bucket.grads  # a step of the local optimizer

    def synchronize(self, bucket: Bucket) -> Exchange[None]:
        if bucket.kind == "average":
            yield from self.meet(bucket)

    def begin_round(self, bucket: Bucket) -> None:
        """A <- x."""
        if self.anchored:
            bucket.state["anchor"].copy_(bucket.params)

    def meet(self, bucket: Bucket) -> Exchange[None]:
        """D <- mean(A - x); A <- outer(A, D); x <- A. Afterwards anchor and parameters are equal on all ranks."""
        if not self.anchored:
            yield from self.compression.mean(bucket, bucket.params, "parameters")  # x <- mean(x), in place
        elif bucket.world.size > 1 or not self.outer_optimizer.is_average:
            mean = yield from self.compression.mean(bucket, self.progress(bucket), "progress")
            self.outer_step(bucket, mean)
            bucket.params.copy_(bucket.state["anchor"])
        # else: the mean of one is itself, which A - (A - x) need not be
        yield from self.settle_inner_states(bucket)

    def progress(self, bucket: Bucket) -> Tensor:
        """A - x of this worker, in a buffer of the pool."""
        return torch.sub(bucket.state["anchor"], bucket.params, out=compute.empty_like(bucket.params))

    def outer_step(self, bucket: Bucket, mean: Tensor) -> None:
        """Move the anchor along the mean progress, which is consumed."""
        outer, momentum = self.outer_optimizer, bucket.state.get("outer_momentum")
        for part, h in bucket.groups():
            u = None if momentum is None else momentum[part]
            outer.step(bucket.state["anchor"][part], mean[part], u, h["lr"])

    def settle_inner_states(self, bucket: Bucket) -> Exchange[None]:
        """Keep, average or forget what the local optimizer keeps for the bucket's parameters."""
        if self.inner_policy == "reset":
            for view in bucket.views:
                bucket.inner_state(view).clear()
        elif self.inner_policy == "average":
            yield from average_inner_states(bucket)

    @property
    def compression(self) -> Compression:
        """How progress travels."""
        return compression(self.carrier)

    @property
    def outer_optimizer(self) -> Outer:
        """What moves the anchor; `UnsupportedError` if impossible."""
        return Outer(self.outer, self.outer_lr, self.outer_momentum)

    @property
    def inner_policy(self) -> str:
        """What becomes of the states of the local optimizer: keep, average or reset."""
        return self.inner_state

    @property
    def anchored(self) -> bool:
        """Whether there is an anchor: not where the parameters themselves are averaged."""
        return self.compression != compression("fp32") or not self.outer_optimizer.is_average

    @property
    def state(self) -> Mapping[str, StateSpec]:
        """The state of an average: of its compression, the anchor, the outer momentum."""
        found = dict(self.compression.state)
        if self.anchored:
            found["anchor"] = replicated()
        if self.outer_optimizer.keeps_momentum:
            found["outer_momentum"] = replicated()
        return found

    def check(self, world: Group) -> None:
        self.outer_optimizer  # noqa: B018 - refuses impossible options
        self.compression.check(world.size)
        if type(self).compression is not LocalUpdates.compression and self.carrier != "fp32":
            raise UnsupportedError(
                f"{type(self).__name__} has a compression of its own: leave carrier={self.carrier!r} out"
            )


def average_inner_states(bucket: Bucket, names: Collection[str] | None = None) -> Exchange[None]:
    """Average what the local optimizer keeps element by element: all of it, or what has one of the `names`."""
    kept = [x for view in bucket.views for x in _tensors(bucket, view, names)]
    if kept:
        sizes = [x.numel() for x in kept]
        flat = compute.empty(sum(sizes), kept[0].dtype, kept[0].device)
        places = [part.view(x.shape) for x, part in zip(kept, torch.split(flat, sizes), strict=True)]
        torch._foreach_copy_(places, kept)
        yield from bucket.world.mean(flat, "inner-state")
        torch._foreach_copy_(kept, places)


def _tensors(bucket: Bucket, view: View, names: Collection[str] | None) -> list[Tensor]:
    """By name."""
    return [
        value
        for name, value in sorted(bucket.inner_state(view).items())
        if (names is None or name in names)
        and isinstance(value, Tensor)
        and value.shape == view.param.shape
        and value.is_floating_point()
    ]


# ---- presets -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PeriodicAveraging(LocalUpdates):
    """Local SGD / local AdamW with rounds of `period` steps."""

    period: int = option(8, "H: local steps in a round, at least 1", ge=1)

    @property
    def rule(self) -> Constant:
        return Constant(self.period, self.total_steps)


@dataclass(frozen=True)
class QuadraticSynchronization(LocalUpdates):
    """QSR. `power` 1 and 3 give the linear and the cubic rule."""

    alpha: float = option(
        0.0,
        "growth: H = max(h_base, (alpha / lr)^power); 0: a constant H; to start from: 0.25 (sgd), 2.2 (adamw) peak rates",
        ge=0,
    )
    h_base: int = option(4, "shortest round, also used during warm-up of the learning rate", ge=1)
    power: float = option(2.0, "exponent of the rule", gt=0)
    lr_warmup_steps: int = option(0, "steps of learning-rate warm-up, in which H = warmup_period", ge=0)
    warmup_period: int | None = option(None, "H during the warm-up, and with alpha 0; default: h_base", ge=1)

    @property
    def rule(self) -> QSR:
        return QSR(
            self.alpha, self.h_base, self.power, self.lr_warmup_steps, self.total_steps, self.warmup_period
        )


@dataclass(frozen=True)
class DiLoCo(PeriodicAveraging):
    """DiLoCo: hundreds of local AdamW steps, then a Nesterov step along the mean progress. arXiv 2311.08105.

    Each worker takes H = `period` steps from the shared parameters A; D = mean(A - x) is the outer gradient; u <- b u + D,
    A <- A - a (D + b u) with a = `outer_lr`, b = `outer_momentum`. AdamW's states stay with the workers. Outer sgd of rate 1
    is federated averaging; H = 1 with sgd inside and outside is data-parallel training.

    Differences: with `total_steps` the last round ends exactly there (the published training scripts leave a partial round
    unsynchronised: as here without `total_steps`). Workers have equal weights. Every worker keeps the anchor and the outer
    momentum, on its own device (the published code keeps them on the host). Buffers are not touched.
    """

    optimizer: str | OptimizerFactory = option("adamw", "local optimizer, as of all-reduce")
    period: int = option(500, "H: inner steps in a round, at least 1", ge=1)
    outer: OuterKind = option("nesterov", "outer optimizer")
    outer_lr: float = option(0.7, "learning rate of the outer optimizer", ge=0)
    outer_momentum: float = option(0.9, "momentum of the outer optimizer", ge=0, lt=1)


@dataclass(frozen=True)
class MuLoCo(DiLoCo):
    """MuLoCo: DiLoCo whose workers step with Muon. arXiv 2505.23725.

    Each worker takes H = `period` steps of Muon, hidden matrices, and of AdamW, all else (`core.optimizers.Muon`), then the outer
    step is DiLoCo's. Its momentum is smaller than around AdamW.

    Differences: the paper could not be read; its authors' code was, and their summary. The local optimizer is torch's Muon, not
    theirs: an average of gradients in the place of their sum, Nesterov momentum on (there off), five times one polynomial
    (there five different ones), a step of 0.2 sqrt(max(rows, columns)) (there sqrt(rows / columns), so that rates do not carry
    over), AdamW's beta2 0.999 (there 0.95 or 0.99). As there, Newton-Schulz runs in bfloat16, and weights decay by the learning
    rate without that factor. Who is a matrix say words in names; the published lists send an attention's ``out_proj`` to AdamW.
    H and the outer rates are the class's there; its configurations have 0.9 and 0.8, and an inner momentum of 0.9 (here 0.95).
    The outer rate stands outside the momentum, as in torch; there inside, the same while it is constant. Otherwise as DiLoCo.
    """

    optimizer: str | OptimizerFactory = option("muon", "local optimizer, as of all-reduce")
    period: int = option(30, "H: inner steps in a round, at least 1", ge=1)
    outer_momentum: float = option(0.6, "momentum of the outer optimizer", ge=0, lt=1)


@dataclass(frozen=True)
class CodedMuLoCo(MuLoCo):
    """MuLoCo whose progress travels in a few bits, with error feedback. arXiv 2505.23725.

    After H = `period` local steps: e <- b e + (A - x); its message is q(e), tensor by tensor; e <- e - decoded; all gather all
    messages, and the outer step takes their mean. ``statistical`` bins decode to the mean of what fell into them
    (`compressors.bins`); ``linear`` ones are equal steps from the least value to the greatest.

    Differences: e takes A - x (the published code takes a (A - x), and its outer step multiplies by a once more, so that with
    error feedback its outer rate is a^2: give outer_lr = a^2 for its step). Its configurations have a = 0.8 with momentum 0.9;
    here the defaults are MuLoCo's, so that a comparison differs in the message alone. Codes of a row of a matrix apart, another
    coding of the mean, and uncompressed parameters of norms are options there, not here. Linear codes round halves up. One
    worker compresses nothing. Otherwise as MuLoCo.
    """

    bits: int = option(4, "of a value: 1 to 4 (statistical), to 8 (linear)", ge=1, le=8)
    levels: Literal["statistical", "linear"] = option(
        "statistical", "statistical (bins by the standard deviation), or linear (from least to greatest)"
    )
    error_decay: float = option(0.9, "b: what is kept of the error of earlier rounds", ge=0, le=1)

    @property
    def compression(self) -> Compression:
        """Codes of e, the rest of which stays."""
        linear = self.levels == "linear"
        return DecayingFeedback(
            MinMax(self.bits, 0, "nearest") if linear else DeviationBins(self.bits), self.error_decay
        )

    timed: ClassVar[Timed] = TIMED_ROUNDS


@dataclass(frozen=True)
class BMUF(PeriodicAveraging):
    """BMUF: blockwise model-update filtering, a momentum on the progress of whole rounds. Chen & Huo, ICASSP 2016.

    After each round of `period` local steps: D = mean progress, u <- b u + a D, A <- A - u with b = `outer_momentum` (block
    momentum) and a = `outer_lr` (block learning rate); with Nesterov block momentum the next round begins at the look-ahead
    point A - u - b u, which becomes the anchor. b = 0 and a = 1 is local SGD.

    Differences: the paper could not be read; fairseq's code was. That code lets workers train apart for the first 500
    updates, then takes rank 0's model, throws the others' work away and resets the optimizers; here the first round is like
    all others. Inner states stay local unless `inner_state` says otherwise, as there. Buffers are not touched.
    """

    period: int = option(50, "local steps in a round, at least 1", ge=1)
    outer: OuterKind = option("bmuf", "bmuf (classic block momentum) or bmuf-nesterov")
    outer_momentum: float = option(0.875, "block momentum", ge=0, lt=1)


@dataclass(frozen=True)
class SparseLoCo(PeriodicAveraging):
    """SparseLoCo: DiLoCo whose workers send a few 2-bit values of their progress, with error feedback. arXiv 2508.15706.

    After H = `period` local steps: e <- b e + (A - x); of every chunk of 4096 elements of a tensor the k largest of e are sent
    as 12-bit places and 2-bit values; e keeps what was not sent; A <- A - a mean(sent). Error feedback stands in the place
    of the outer momentum. 14 bits a value: k = 64 is 146 times less than fp32, besides 16 bytes of levels a tensor.

    Differences: the paper could not be read; codes and summaries of others were. Chunks are 4096 neighbouring elements of a
    tensor (there 64 x 64), a short one at its end keeps its share of k, rounded up. The four levels are our choice: by sign
    and by magnitude above or below the mean, each decoded to the mean of its bin (there bins over 6 standard deviations).
    The mean divides by all workers, as in the formula (in the code by those that sent the place, which is up to n times
    larger). e takes A - x (in the code a (A - x), and a is applied again in the outer step). Outer rate and momentum are
    options; buffers are not touched. One worker compresses nothing.
    """

    optimizer: str | OptimizerFactory = option("adamw", "local optimizer, as of all-reduce")
    period: int = option(30, "H: inner steps in a round, at least 1", ge=1)
    k: int = option(64, "values that are sent of a chunk", ge=1)
    chunk: int = option(4096, "elements of a chunk", ge=1)
    value_bits: Literal[2, 32] = option(2, "bits of a value: 2 or 32")
    error_decay: float = option(0.95, "b: what is kept of the error of earlier rounds", ge=0, le=1)

    @property
    def compression(self) -> Compression:
        """The k largest of each chunk of e, the rest of which stays."""
        return DecayingFeedback(ChunkTopK(self.k, self.chunk, self.value_bits), self.error_decay)

    timed: ClassVar[Timed] = TIMED_ROUNDS
