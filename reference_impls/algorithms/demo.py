"""DeMo: workers share only the strongest cosine coefficients of their momenta. arXiv 2411.19870.

Each worker: d <- b d + lr g; of every block of d's cosine transform the k largest coefficients are sent, and what they
stand for leaves d; all gather the coefficients, average each over the workers that sent it, and transform back: G. Then
x <- (1 - lr wd) x - lr sign(G). Momenta differ between workers for good.

Differences: the paper could not be read; its authors' code was, and the abstract of its second version (2026): the same
steps, for any optimizer with a momentum, while the code, unchanged, has the sign step alone, as here. Blocks are 64 x
64 with smaller ones at the edges: that code takes the largest divisor of a dimension up to 64, which for a prime
dimension is 1, and then nothing is compressed. Tensors of more than two axes are matrices of their first axis, vectors
have blocks of 64 and k of each. Places travel in log2 of the block's size instead of 64 bits. Whoever sends an exact 0
is no sender (there it is). sign(NaN) is NaN, so what is not finite shows on all workers. Weight decay is that of sgd, which
with sign(G) is the decoupled one. Equal parameters need machines whose float32 matrix products agree to the bit, as there.
Gradients are not clipped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from reference_impls.algorithms.lion import sign_of
from reference_impls.compressors.transforms import BlockDCT
from reference_impls.core import compute
from reference_impls.core.algorithm import Bucket, StateSpec, View, option, per_rank
from reference_impls.core.collectives import Exchange
from reference_impls.core.optimizers import WithLocalOptimizer


@dataclass(frozen=True)
class DeMo(WithLocalOptimizer):
    """Decoupled momentum; every step is alike."""

    decay: float = option(0.999, "b: what the momentum keeps of itself a step", ge=0, le=1)
    side: int = option(64, "side of a block", ge=1)
    k: int = option(32, "coefficients of a block that are sent", ge=1)

    reduces_gradient: ClassVar[bool] = False
    state: ClassVar[Mapping[str, StateSpec]] = {"momentum": per_rank()}

    def reduce(self, bucket: Bucket) -> Exchange[Tensor]:
        momentum = bucket.state["momentum"].mul_(self.decay)
        for part, h in bucket.groups():
            compute.add_scaled(momentum[part], bucket.grads[part], h["lr"])
        compressors = [self._compressor(view) for view in bucket.views]
        sizes = [compressor.wire_bytes() for compressor in compressors]
        message = compute.empty(sum(sizes), torch.uint8, momentum.device)
        for view, compressor, own in zip(bucket.views, compressors, torch.split(message, sizes), strict=True):
            compressor.encode(momentum[view.part].to(torch.float32), own)
            momentum[view.part].sub_(compressor.inverse(compressor.coefficients(own)))
        rows = yield from bucket.world.gather(message, "coefficients")
        total = compute.empty_like(bucket.grads)
        for view, compressor, own in zip(
            bucket.views, compressors, torch.split(rows, sizes, dim=-1), strict=True
        ):
            total[view.part] = compressor.inverse([self._mean(sent) for sent in compressor.coefficients(own)])
        return sign_of(total)

    def _mean(self, sent: Tensor) -> Tensor:
        """[n, ...] -> [...]; rows added in their order."""
        total, count = (compute.empty_like(sent[0]).zero_() for _ in range(2))
        if sent.is_meta:
            return total
        some = compute.empty_like(total)
        for row in sent:
            total.add_(row)
            count.add_(torch.ne(row, 0, out=some))
        return total.div_(count.clamp_(min=1))

    def _compressor(self, view: View) -> BlockDCT:
        return BlockDCT(tuple(view.param.shape), self.side, self.k)
