"""Global-QSGD: gradients dithered on one global scale, so that codes may be added on the way. arXiv 2305.18627.

M = norm over all ranks (a 4-byte all-reduce); every rank rounds g_i / M without bias to a few levels; the codes are
summed inside an all-reduce; everybody decodes the mean and steps the local optimizer. No error feedback, no state.

``standard``: s = floor((2^(b-1) - 1) / n) equal levels, a b-bit integer sum. ``exponential``: levels 2^-k, one byte, a
randomised addition of bytes on a tree, which rounds the sum itself: its error does not fall with n.

Differences: the body of the paper could not be read; its authors' code was. That code divides by n before rounding,
127 / n levels, and overflows when ranks agree on the maximum; here s is an integer and no sum can overflow. Its 4-bit
form is right for n = 4 only; here 4 bits work up to n = 7. Its exponential head-room is log2 n for rings too; here
additions are balanced and the head-room is the real depth. A zero gradient gives zeros (there NaN). Halving-doubling, at
2 (n-1)/n bytes an element, stands beside the paper's tree; n need not be a power of two on the tree. The paper's
optional sparse branch (sending only non-zero codes) is left out, as in its code; its baselines are not part of this.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from reference_impls.algorithm import Shard, option
from reference_impls.algorithms.all_reduce import WithLocalOptimizer
from reference_impls.codecs import dithering
from reference_impls.collectives import Exchange, Group
from reference_impls.errors import UnsupportedError, nearest
from reference_impls.reducers.global_qsgd import (
    FORMS,
    NORMS,
    SCALES,
    Scaling,
    exponential_mean,
    form_for,
    standard_mean,
)

DITHERINGS = ("standard", "exponential")


@dataclass(frozen=True)
class GlobalQSGD(WithLocalOptimizer):
    """g <- unbiased estimate of the mean over workers of g; then the local optimizer's step."""

    dithering: Literal["standard", "exponential"] = option(
        "standard", "standard (equal levels, integer sum) or exponential (powers of two)"
    )
    bits: int = option(8, "bits of a code and of its sum: 4, 8 or 16 (standard), 8 (exponential)")
    norm: Literal["linf", "l2"] = option("linf", "norm over all ranks: linf (largest magnitude) or l2")
    scale: Literal["bucket", "tensor", "block"] = option(
        "bucket", "one scale a bucket, a tensor, or a block of block_size elements"
    )
    block_size: int = option(512, "elements of a block (scale=block)")
    form: Literal["auto", "tree", "halving-doubling"] = option(
        "auto", "exponential addition: tree, halving-doubling (n a power of two), auto"
    )

    def check(self, world: Group) -> None:
        for name, value, known in (
            ("dithering", self.dithering, DITHERINGS),
            ("norm", self.norm, NORMS),
            ("scale", self.scale, SCALES),
            ("form", self.form, FORMS),
        ):
            if value not in known:
                raise UnsupportedError(
                    f"{name} must be one of {', '.join(known)}; got {value!r}{nearest(value, known)}"
                )
        widths = (4, 8, 16) if self.dithering == "standard" else (8,)
        if self.bits not in widths:
            raise UnsupportedError(
                f"{self.dithering} dithering takes bits of {', '.join(map(str, widths))}, not {self.bits}"
            )
        if self.block_size < 1:
            raise UnsupportedError(f"block_size must be at least 1, got {self.block_size}")
        if self.dithering == "standard":
            dithering.levels(self.bits, world.size)
        else:
            form_for(self.form, world.size)

    def reduce(self, shard: Shard) -> Exchange[Tensor]:
        scaling = Scaling(self.norm, self.scale, self.block_size)
        if self.dithering == "standard":
            return (yield from standard_mean(shard, shard.grads, "gradient", bits=self.bits, scaling=scaling))
        return (yield from exponential_mean(shard, shard.grads, "gradient", scaling=scaling, form=self.form))
