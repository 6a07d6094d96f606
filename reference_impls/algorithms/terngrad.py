"""TernGrad: gradients of three values, -1, 0 and 1 times a scale that all workers share. arXiv 1705.07878.

s = largest |g| of a tensor over all ranks (a max all-reduce); each rank sends sign(g) b, b = 1 with probability |g| / s;
what is applied is s times the mean of the codes. Sums of codes are integers in -n .. n, so they may be added on the way:
``two-phase``: 2 bits up, ceil(log2(2 n + 1)) down, added by the owner of a piece, the paper's server spread over all
ranks; ``all-reduce``: added by it in 4 bits (to 7 ranks) or 8; ``gather``: 2 bits to everybody; ``gather-base3``: five
codes a byte. All have the same result to the bit. Unbiased unless clipped; no state.

Differences: the paper's abstract, readers' notes of it and its authors' code could be read, not its body. Clipping at c
sigma (2.5 there, for ImageNet) is an option and off, since it is biased. sigma is taken about the mean, as in the
published code, but what is cut is |g|, also where the mean is not 0; a tensor of equal numbers has no sigma and is not
clipped. The published code then scales by c sigma, here by what is left as largest. The paper keeps the last layer in
full precision and reduces dropout and weight decay: that is the user's affair. GRACE's code has one scale a worker, and
its sums are not sums of integers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from reference_impls import buffers
from reference_impls.algorithm import Shard, option
from reference_impls.algorithms.all_reduce import WithLocalOptimizer
from reference_impls.codecs.sums import fixed_mean
from reference_impls.collectives import Exchange, Group
from reference_impls.errors import UnsupportedError
from reference_impls.reducers.integer_sum import Scaling, standard_mean

FORMS = ("two-phase", "all-reduce", "gather", "gather-base3")
SCALES = ("tensor", "bucket")


@dataclass(frozen=True)
class TernGrad(WithLocalOptimizer):
    """g <- s times the mean of ternary codes."""

    form: Literal["two-phase", "all-reduce", "gather", "gather-base3"] = option(
        "two-phase", "how codes are added: two-phase, all-reduce, gather, gather-base3"
    )
    scale: Literal["tensor", "bucket"] = option("tensor", "one scale a tensor, or a bucket")
    clip: float = option(
        0.0, "standard deviations at which gradients are cut, tensor by tensor; 0: never", ge=0
    )

    def check(self, world: Group) -> None:
        if self.form == "all-reduce" and world.size > 127:
            raise UnsupportedError("8 bits add up to 127 ranks: use form='two-phase'")

    def reduce(self, shard: Shard) -> Exchange[Tensor]:
        x = shard.grads.to(torch.float32)
        if self.clip:
            cut = buffers.empty_like(x)
            for view in shard.views:
                cut[view.part] = clipped(x[view.part], self.clip)
            x = cut
        return (
            yield from standard_mean(
                shard, x, "gradient", bits=self._bits(shard.world.size), levels=1,
                scaling=Scaling("linf", self.scale), transport=self.form,
            )
        )  # fmt: skip

    def _bits(self, n: int) -> int:
        """Of a sum of n codes: what is needed, and for an all-reduce what can be had."""
        needed = n.bit_length() + 1
        return needed if self.form != "all-reduce" else 4 if needed <= 4 else 8


def clipped(x: Tensor, deviations: float) -> Tensor:
    """x [d] cut at +-`deviations` population standard deviations (about the mean); as it is if all are equal."""
    wide = buffers.empty_like(x, torch.float64).copy_(x)
    sigma = fixed_mean(wide.sub_(fixed_mean(wide)).square_()).sqrt()
    bound = torch.where(sigma == 0, torch.inf, deviations * sigma).to(x.dtype)
    out = torch.minimum(x, bound, out=buffers.empty_like(x))
    return torch.maximum(out, -bound, out=out)
