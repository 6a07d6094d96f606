"""All-reduce of the gradient in full precision, with any local optimizer: the uncompressed baseline.

Methods that replace this mean by a cheaper one derive from `WithLocalOptimizer` as it does: `reduce` answers the mean
gradient, the local optimizer is stepped with it, and all replicas stay equal.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from reference_impls.core.algorithm import Bucket
from reference_impls.core.collectives import Exchange
from reference_impls.core.optimizers import WithLocalOptimizer


@dataclass(frozen=True)
class AllReduce(WithLocalOptimizer):
    """g <- mean over workers of g, in fp32; then the local optimizer's step. Sends 2 (n-1)/n x 32 bits a parameter.

    The mean consumes the local gradient in place: the answer is the bucket's own gradient buffer.
    """

    def reduce(self, bucket: Bucket) -> Exchange[Tensor]:
        return (yield from bucket.world.mean(bucket.grads, "gradient"))
