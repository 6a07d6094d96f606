"""EF-signSGD: one bit a coordinate and one scale, with error feedback. arXiv 1901.09847.

p_i = g_i + e_i is sent as sign(p_i) |p_i|_1 / d; everybody averages the n messages and steps the local optimizer;
e_i <- p_i - message.

Differences: the paper's abstract and its authors' code could be read, not its body. That code is for a single worker;
averaging the messages is how others make it distributed. It puts the learning rate inside p, so that e holds steps; here e
holds gradients: the same at a constant rate, and when the rate changes what was kept back is applied at the new one. Any
local optimizer may follow (the code's own step is SGD's, the default). Scales are per tensor, as there; ``bucket`` has one
a bucket, hence depends on its size. The two-phase form, which cuts through tensors, needs that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from reference_impls.algorithm import option
from reference_impls.algorithms.compressed_gradient import CompressedGradient
from reference_impls.codecs.codec import Codec
from reference_impls.codecs.signs import ScaledSigns


@dataclass(frozen=True)
class EFSignSGD(CompressedGradient):
    """g <- mean of sign(p_i) |p_i|_1 / d, p_i = g_i + e_i: the composition of that codec, error feedback and any form."""

    granularity: Literal["bucket", "tensor"] = option("tensor", "what has a scale: a tensor, or a bucket")
    error_feedback: bool = option(True, "add what the last message lost to the next one")
    norm: Literal["l1", "l2"] = option("l1", "scale: l1 (contraction, the paper's) or l2 (keeps the norm)")

    def codec(self, n: int) -> Codec:
        return ScaledSigns(self.norm)
