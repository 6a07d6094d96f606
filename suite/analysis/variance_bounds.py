"""What theory says that an unbiased code's mean may lose at most, in the units of the table `rate-distortion`.

Codes of n workers that are independent and gathered have theta = n x squared error of the mean / sum of the workers' squared
norms of at most omega, where E |Q(v) - v|^2 <= omega |v|^2 for one vector. Codes that share a norm, sum on the way or round
twice obey no such bound, and nothing is said of them.

- QSGD, lemma 3.1 (arXiv 1610.02132): omega = min(d / s^2, sqrt(d) / s), s levels of the 2-norm of blocks of d.
- Natural dithering (arXiv 1905.10988), whose levels are NUQSGD's here: omega = 1/8 + c min(1, c), c = sqrt(d) 2^(1 - s),
  s powers of two of the 2-norm of blocks of d.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from reference_impls.algorithms.qsgd import QSGD, GeometricQSGD
from reference_impls.registry import create


def uniform_omega(levels: int, block: int) -> float:
    """QSGD's, of one block under its 2-norm."""
    return min(block / levels**2, math.sqrt(block) / levels)


def geometric_omega(levels: int, block: int) -> float:
    """Natural dithering's."""
    rest = math.sqrt(block) * 2.0 ** (1 - levels)
    return 1 / 8 + rest * min(1.0, rest)


def theta_bound(algorithm: str, options: Mapping[str, Any]) -> float | None:
    """The bound of a configured method; None where its paper proves none in this form."""
    own = create(algorithm, **options).algorithm
    if not isinstance(own, QSGD) or own.norm != "l2" or not own.block_size or own.form != "gather":
        return None
    levels = own.levels or 2 ** (own.bits - 1) - 1
    return (geometric_omega if isinstance(own, GeometricQSGD) else uniform_omega)(levels, own.block_size)
