"""APMSqueeze: Adam for a while, then its variance frozen as preconditioner and the momentum sent in one bit. 2008.11343.

Warm-up (T_w steps): g = mean g_i; m <- b1 m + (1-b1) g; v <- b2 v + (1-b2) g^2; x <- x - lr m / (sqrt(v) + eps).
Compressed: u_i = b1 m + (1-b1) g_i from the agreed m; m <- CAR(u_i) with worker and server errors; same x with v frozen.
The body of the paper could not be read; its first author's prototype and DeepSpeed's first 1-bit Adam were.

``apmsqueeze`` is our reading of the paper. ``apmsqueeze-prototype`` fixes what the first author's prototype does: v
starts at 1, no bias corrections, weight decay as L2 in the gradient before the momentum, a scale a chunk over its
non-zeros, eps outside the root. Not repeated there, on purpose: it books a sign of 0 where it sent +1, which leaves an
error uncompensated every step; it compresses tensor by tensor, whose last chunk can have a negative length, and never
those of fewer than 8 n elements, whose variance then never freezes; a chunk of zeros gives NaN; it counts T_w in epochs.

Differences: weight decay is decoupled (the prototype adds it to the gradient). v starts at 0, as in DeepSpeed (there at
1). Coordinates whose frozen variance is 0 are not moved, since +-scale / eps would be enormous. A bucket is compressed
as one vector (the prototype compresses tensor by tensor, and never those of fewer than 8 n elements), with the scale
over all elements of a piece (there over those that are not 0); the scale is per bucket, so results depend on the bucket
size. T_w is 15 % of the training unless given, borrowed from 1-bit Adam (the paper's value was not readable), and never
before the learning rate's warm-up ends. The abstract speaks of compressing gradients, all code compresses the momentum:
so does this; ``compress="gradient"`` is the other reading. Clipping is our own reading: only local gradients exist in
compressed steps, so their root mean square norm, which is never below the norm of the mean, stands in for it. One
worker compresses nothing. No bias correction, as in both codes, unless asked for.
"""

from __future__ import annotations

from dataclasses import dataclass

from reference_impls.algorithms.frozen_variance import FrozenVariance


@dataclass(frozen=True)
class APMSqueeze(FrozenVariance):
    """Kinds of step: ``warm-up`` (fp32 all-reduce of gradients) and ``compressed`` (1-bit momentum)."""
