"""Top-k sparsification with error feedback: every worker sends its k largest coordinates. arXiv 1704.05021, 1809.10505.

p_i = g_i + e_i; the k = max(1, floor(ratio d)) largest coordinates of p_i are sent with their places, the others count as 0;
everybody averages the n messages and steps the local optimizer; e_i keeps what was not sent.

Differences: selection is exact; the first paper (gradient dropping) takes a threshold from a sample. Ties go to the lowest
index, where published codes leave the choice to the library. Places travel in ceil(log2 d) bits;
published codes send 32 or 64. k is of a bucket, or of a tensor with ``granularity="tensor"`` (GRACE's choice), so results
depend on the bucket size in the first case. In the two-phase form k is of a piece, and the server selects once more. A
value that is not finite counts as the largest, so it is sent.
"""

from __future__ import annotations

from dataclasses import dataclass

from reference_impls.algorithm import option
from reference_impls.algorithms.compressed_gradient import CompressedGradient
from reference_impls.codecs.codec import Codec
from reference_impls.codecs.sparse import TopK


@dataclass(frozen=True)
class TopKGradient(CompressedGradient):
    """g <- mean of top_k(g_i + e_i): the composition of the codec that keeps the k largest, error feedback and any form."""

    error_feedback: bool = option(True, "add what the last message left out to the next one")
    ratio: float = option(0.01, "share of the coordinates that is sent", gt=0, le=1)

    def codec(self, n: int) -> Codec:
        return TopK(self.ratio)
