"""Methods of sharded data-parallel training whose gradients go in 4 bits to the owners of their pieces: SDP4Bit and LoCo.

Rank r owns the r-th piece of each bucket. Gradients travel as in the first phase of `two_phase_mean`: an all-to-all of codes, and
the owner averages what it decodes of its piece. What then goes to everybody is each method's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from reference_impls.aggregators.coded_mean import decode_into, gather_pieces, scatter_mean
from reference_impls.algorithms.compressed_gradient import CompressedGradient
from reference_impls.compressors.compressor import Compressor
from reference_impls.compressors.levels import Rounding, UniformLevels
from reference_impls.compressors.sums import fixed_sum
from reference_impls.compressors.transforms import Rotated
from reference_impls.core import compute
from reference_impls.core.algorithm import Algorithm, Bucket, StateSpec, View, option, owned, per_tensor
from reference_impls.core.collectives import Exchange, Group
from reference_impls.core.errors import UnsupportedError
from reference_impls.core.optimizers import WithLocalOptimizer, local_optimizer


@dataclass(frozen=True)
class RotatedCodes(Algorithm):
    """Options of SDP4Bit's code of a gradient: integers of -7 to 7 by block, after a Hadamard transform of short chunks."""

    rotation: int = option(
        32, "elements of a chunk that is transformed, a power of two; 1: no transform", ge=1
    )
    block_size: int = option(128, "elements of a gradient that share a scale; 0: one block a message", ge=0)
    rounding: Rounding = option("nearest", "nearest (biased) or stochastic (unbiased)")

    def levels(self, block_size: int) -> UniformLevels:
        """4 bits: N / 7 times -7 to 7, N the largest magnitude of a block."""
        return UniformLevels(7, "linf", block_size, rounding=self.rounding)

    @property
    def gradient_code(self) -> Compressor:
        """C; `UnsupportedError` for impossible options."""
        levels = self.levels(self.block_size)
        return levels if self.rotation == 1 else Rotated(levels, self.rotation)


@dataclass(frozen=True)
class SDP4Bit(RotatedCodes, WithLocalOptimizer):
    """SDP4Bit: 4-bit gradients to the owner of each piece, and 4-bit changes of its weights to everybody. arXiv 2410.15526.

    With w the parameters that all ranks share and W_r the weights of rank r's piece, which it keeps in full precision:
      up      q_i = C(H g_i), H Hadamard chunks of 32, C codes of -7 to 7 times |max| / 7 of each block of 128, to the owners;
              g = H mean(q_i) / 32, of rank r's piece alone
      update  W_r <- step of the local optimizer from W_r along g
      down    every rank r: w_r <- w_r + C(W_r - w_r), blocks of 2048, on all ranks, r included
    W_r - w_r holds what earlier messages lost: error feedback without a buffer.

    Differences: ranks have no nodes here, so that all of them exchange gradients in 4 bits (there in 8 bits within a
    node, then in 4 between nodes). Rows are rotated back before they are added (there their sum is; the same but for
    rounding). How the published kernels round could not be told: ``nearest`` is our choice, ``stochastic`` an option, for
    gradients and weights alike. w has the parameters' dtype, float32 or float64 (there bfloat16). Blocks count from the
    beginning of a rank's piece, and the last ones are shorter (there sizes must divide). Every rank runs the local optimizer
    over all parameters, with a gradient of zeros outside of its piece, and what comes of that is overwritten. So the owners'
    states are those of sharded training, but neither time nor memory is saved; optimizers of whole matrices are refused, and
    one that is given as a function must go by the element. `max_grad_norm` takes the norm of the mean gradient over all
    pieces, one number on the wire. w is what is evaluated. One worker compresses nothing.
    """

    weight_block_size: int = option(2048, "elements of weights that share a scale", ge=0)
    max_grad_norm: float | None = option(
        None, "clip the mean gradient to this norm over the whole model (waits for all of it)", gt=0
    )

    clipping: ClassVar[str] = "max_grad_norm"
    reduces_gradient: ClassVar[bool] = False
    state: ClassVar[Mapping[str, StateSpec]] = {"master": owned()}
    local_steps: ClassVar[bool] = True  # the local optimizer's states are each rank's own

    def check(self, world: Group) -> None:
        self.gradient_code  # noqa: B018 - refuses impossible options
        if not local_optimizer(self.optimizer).by_element:
            raise UnsupportedError(
                f"optimizer={self.optimizer!r} steps whole matrices, of which an owner has the gradient of a piece: choose "
                "adamw, lion or sgd, or sdp4bit-gradients"
            )

    def reduce(self, bucket: Bucket) -> Exchange[Tensor]:
        """The mean gradient of this rank's piece, as long as that."""
        if bucket.world.size == 1:
            mean = bucket.grads
        else:
            if bucket.train_state.choice(lambda now: now.step == 0):
                bucket.state["master"].copy_(bucket.params[bucket.chunk()])
            mean = yield from scatter_mean(bucket, bucket.grads, self.gradient_code, "gradient")
        if self.max_grad_norm is not None:
            square = yield from bucket.world.sum(fixed_sum(mean, "square").view(1), "norm")
            mean.mul_(torch.clamp(self.max_grad_norm / (square.sqrt() + 1e-6), max=1.0))
        return mean

    def update(self, bucket: Bucket, reduced: Tensor) -> None:
        if bucket.world.size == 1:
            super().update(bucket, reduced)
            return
        mine = bucket.chunk()
        self._shared(bucket).copy_(bucket.params)
        bucket.params[mine] = bucket.state["master"]
        bucket.grads.zero_()
        bucket.grads[mine] = reduced

    def synchronize(self, bucket: Bucket) -> Exchange[None]:
        if bucket.world.size == 1:
            return
        mine, code = bucket.params[bucket.chunk()], self.levels(self.weight_block_size)
        master = bucket.state["master"].copy_(mine)
        bucket.params.copy_(self._shared(bucket))
        change = torch.sub(master, mine, out=compute.empty_like(master))
        bucket.params.add_((yield from gather_pieces(bucket, change, bucket.d, code, "weights")))

    def _shared(self, bucket: Bucket) -> Tensor:
        """w, while the local optimizer steps from W."""
        return bucket.scratch("shared", bucket.d, bucket.params.dtype)


@dataclass(frozen=True)
class SDP4BitGradients(RotatedCodes, CompressedGradient):
    """SDP4Bit's code of gradients both ways: the composition of it and any form. arXiv 2410.15526.

    Differences: the paper's optimizer is sharded, so that no mean gradient goes to everybody (see ``sdp4bit``). Here the
    owner of a piece codes its mean once more, by the same code, and any local optimizer may follow. The code loses up to half
    a level each time, and nothing is fed back unless `error_feedback` asks for it.
    """

    form: Literal["gather", "two-phase"] = option(
        "two-phase", "two-phase (a server for each piece, coded twice) or gather (all messages to everybody)"
    )

    def compressor(self, n: int) -> Compressor:
        return self.gradient_code


@dataclass(frozen=True)
class LoCo(WithLocalOptimizer):
    """LoCo: 4-bit gradients to the owner of each piece, with an error that is kept in 8 bits. arXiv 2407.04480.

    h = g_i + e_i; q_i = C4(h) to the owners; e_i <- C8((1 - b) e_i + b (h - q_i)) with b = `beta`; g = mean(q_i). e_i is set to 0
    after every `reset_every` steps. C4, C8: codes of -7 to 7, and -127 to 127, times |max| / 7, / 127 of a block, to nearest.

    Differences: neither the paper's body nor its authors' code could be read. The formulas are from memory; the defaults, b =
    0.8 and 1024 steps, are those of third parties' notes. Whether b weighs the new error, as here, or the old one is not
    known. Scales by block of 128 elements are our choice; of the error, blocks count within a tensor. The mean gradient goes
    to everybody in full precision, where the paper's optimizer is sharded and parameters go instead: as many bytes, or half
    of them where those are bfloat16. So any local optimizer may follow. There is one exchange and one error (in third
    parties' notes two, within nodes and between them), and tensors of one dimension travel as all others (there in full
    precision). The error does take a byte an element, and 4 bytes a block. One worker compresses nothing.
    """

    beta: float = option(0.8, "b: weight of the new error in the one that is kept", ge=0, le=1)
    reset_every: int = option(1024, "steps after which the error is set to 0; 0: never", ge=0)
    block_size: int = option(128, "elements that share a scale; 0: one block a message", ge=0)

    def levels(self, count: int) -> UniformLevels:
        """Codes of -count to count."""
        return UniformLevels(count, "linf", self.block_size, rounding="nearest")

    @property
    def state(self) -> Mapping[str, StateSpec]:
        return {"error": per_tensor("per_rank", self._error_bytes, dtype=torch.uint8)}

    def _error_bytes(self, view: View, world: Group) -> tuple[int, ...]:
        return (self.levels(127).wire_bytes(view.param.numel()),)

    def check(self, world: Group) -> None:
        self.levels(127)

    def reduce(self, bucket: Bucket) -> Exchange[Tensor]:
        if bucket.world.size == 1:
            return bucket.grads
        kept = compute.empty_like(bucket.grads)
        for view in bucket.views:
            decode_into(bucket.state["error"][view.name], self.levels(127), kept[view.part])
        lost = compute.empty_like(kept).copy_(kept)
        mean = yield from scatter_mean(bucket, bucket.grads, self.levels(7), "gradient-up", worker_error=lost)
        self._keep(bucket, kept.lerp_(lost, self.beta))
        return (yield from gather_pieces(bucket, mean, bucket.d, None, "gradient-down"))

    def _keep(self, bucket: Bucket, error: Tensor) -> None:
        """In 8 bits until the next step; or forget it, as zeros of the scale 0."""
        every = self.reset_every
        if bucket.train_state.choice(lambda now: every > 0 and (now.step + 1) % every == 0):
            for own in bucket.state["error"].values():
                own.zero_()
            return
        exact = compute.as_dtype(error, torch.float32)
        for view in bucket.views:
            self.levels(127).encode(exact[view.part], bucket.key("error"), bucket.state["error"][view.name])
