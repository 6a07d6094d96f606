"""The table of rate and distortion, as it was measured: its columns, its quantisers, and what theory allows.

What theory says that an unbiased code's mean may lose at most: codes of n workers that are independent and gathered have
theta = n x squared error of the mean / sum of the workers' squared norms of at most omega, where E |Q(v) - v|^2 <= omega
|v|^2 for one vector. Codes that share a norm, sum on the way or round twice obey no such bound, and nothing is said of them.

- QSGD, lemma 3.1 (arXiv 1610.02132): omega = min(d / s^2, sqrt(d) / s), s levels of the 2-norm of blocks of d.
- Natural dithering (arXiv 1905.10988), whose levels are NUQSGD's here: omega = 1/8 + c min(1, c), c = sqrt(d) 2^(1 - s),
  s powers of two of the 2-norm of blocks of d.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from reference_impls.algorithms.qsgd import QSGD, GeometricQSGD
from reference_impls.registry import create
from suite.analysis.columns import Table, described

_CELL: Final = (
    *described(
        "text",
        workload="whose training the gradients come from",
        stage="start, middle or end of that training",
    ),
    *described("int", world_size="workers"),
)
_SEEDS: Final = described("int", n="seeds: trainings whose gradients were taken")

RATE_DISTORTION: Final = Table(
    "rate-distortion",
    (
        *_CELL,
        *described("text", quantiser="label of a method with options", algorithm="registry name"),
        *described("flag", unbiased="the expectation of the mean is the mean"),
        *described("float", wire_bits="bits that a rank sends for each coordinate, mean over ranks"),
        *_SEEDS,
        *described(
            "float",
            error="squared error of the mean over the squared norm of the mean; mean over seeds",
            error_low="95 % t interval of it",
            error_high="its upper end",
            theta="n times the squared error over the sum of the workers' squared norms; mean over seeds",
            theta_low="95 % t interval of it",
            theta_high="its upper end",
        ),
    ),
    keys=4,
)


def uniform_omega(levels: int, block: int) -> float:
    """QSGD's, of one block under its 2-norm."""
    return min(block / levels**2, math.sqrt(block) / levels)


def geometric_omega(levels: int, block: int) -> float:
    """Natural dithering's."""
    rest = math.sqrt(block) * 2.0 ** (1 - levels)
    return 1 / 8 + rest * min(1.0, rest)


def theta_bound(algorithm: str, options: Mapping[str, Any]) -> float | None:
    """The bound of a configured method; None where its paper proves none in this form."""
    method = create(algorithm, **options).algorithm
    if (
        not isinstance(method, QSGD)
        or method.norm != "l2"
        or not method.block_size
        or method.form != "gather"
    ):
        return None
    levels = method.levels or 2 ** (method.bits - 1) - 1
    return (geometric_omega if isinstance(method, GeometricQSGD) else uniform_omega)(
        levels, method.block_size
    )


@dataclass(frozen=True)
class Quantiser:
    """A label for a method with options."""

    label: str
    algorithm: str
    options: Mapping[str, Any] = field(default_factory=dict)


QUANTISERS: Final = (
    Quantiser("bf16", "allreduce-bf16"),
    Quantiser("standard-4", "global-qsgd", {"bits": 4}),
    Quantiser("standard-8", "global-qsgd", {"bits": 8}),
    Quantiser("standard-8-block", "global-qsgd", {"bits": 8, "scale": "block"}),
    Quantiser("standard-16", "global-qsgd", {"bits": 16}),
    Quantiser("exponential-8", "global-qsgd", {"dithering": "exponential"}),
    Quantiser("exponential-8-tree", "global-qsgd", {"dithering": "exponential", "form": "tree"}),
    Quantiser("intsgd-8", "intsgd-heuristic"),
    Quantiser("qsgd-maxnorm-3", "qsgd-maxnorm", {"bits": 3}),
    Quantiser("terngrad", "terngrad"),
    Quantiser("thc-4", "thc"),
    Quantiser("natural-9", "natural-compression"),
    Quantiser("qsgd-4-two-phase", "qsgd", {"bits": 4, "form": "two-phase"}),
    Quantiser("cgx-4", "cgx"),
    Quantiser("qsgd-2", "qsgd", {"bits": 2}),
    Quantiser("qsgd-4", "qsgd", {"bits": 4}),
    Quantiser("qsgd-8", "qsgd", {"bits": 8}),
    Quantiser("qsgd-8-linf", "qsgd", {"bits": 8, "norm": "linf", "block_size": 0}),
    Quantiser("qsgd-published-8", "qsgd-published"),
    Quantiser("natural-dithering-4", "natural-dithering"),
    Quantiser("nuqsgd-4", "nuqsgd"),
    Quantiser("sign-1", "ef-signsgd", {"granularity": "bucket"}),
    Quantiser("top-k-1%", "top-k", {"ratio": 0.01}),
    Quantiser("random-k-1%", "random-k", {"ratio": 0.01}),
    Quantiser("powersgd-2", "powersgd", {"rank": 2}),
)
