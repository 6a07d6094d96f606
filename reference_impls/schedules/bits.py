"""How many bits a coordinate: rules of quantisers that change their width during training. Plain Python.

DQ-SGD (arXiv 2107.14575): B bits are a sign and s = 2^(B-1) - 1 levels of the norm |g|. Least sum of weight_n |g_n|^2 /
s_n^2 for a given sum of B_n, for many levels: s_n = factor |g_n| sqrt(weight_n), so B_n = 1 + log2(1 + s_n), and the step
|g_n| / s_n of the quantiser does not depend on the gradient. Weights: 1 (non-convex), or contraction^(N-n) with N-n steps
to go (strongly convex; contraction = 1 - 2 mu lr + L mu lr^2 there).

AdaQS: twice as many levels, one bit more, whenever the ratio of the gradient's mean to its deviation has halved.
"""

from __future__ import annotations

import math

__all__ = [
    "doubled",
    "factor_for",
    "levels",
    "nominal_bits",
    "wanted_levels",
    "whole_bits",
]

_SAMPLES = 64


def levels(bits: int) -> int:
    """s = 2^(bits-1) - 1, levels beside zero; one bit would leave none, so at least two (`ValueError`)."""
    if bits < 2:
        raise ValueError(f"{bits} bits hold a sign and no level: use at least 2")
    return int((1 << (bits - 1)) - 1)


def wanted_levels(factor: float, norm: float, contraction: float = 1.0, left: float = 0.0) -> float:
    """s of the rule, a real number: factor contraction^(left/2) |g|."""
    return float(factor * contraction ** (left / 2) * norm)


def nominal_bits(wanted: float) -> float:
    """B = 1 + log2(1 + s), before rounding."""
    return 1 + math.log2(1 + wanted)


def whole_bits(nominal: float, least: int, most: int) -> int:
    """Up to the next integer, within least .. most; `most` for what is not a number."""
    return max(least, math.ceil(min(nominal, most))) if nominal == nominal else most


def factor_for(
    bits: float,
    norm: float,
    contraction: float = 1.0,
    left: int = 1,
    least: float = 1,
    most: float = math.inf,
) -> float:
    """The factor by which the next `left` steps, if |g| stays at `norm`, take `bits` nominal bits on average.

    Each step's bits are cut to least .. most, so `bits` must lie strictly between. Steps are sampled. 0 where the norm is 0
    or not finite.
    """
    if not 0 < norm < math.inf:
        return 0.0
    if contraction == 1:
        return math.expm1((bits - 1) * math.log(2)) / norm
    count = min(left, _SAMPLES)
    logs = [0.5 * math.log(contraction) * (left - (i + 0.5) * left / count) for i in range(count)]

    def mean(log_factor: float) -> float:
        total = 0.0
        for log_weight in logs:
            log_s = log_factor + log_weight
            nominal = 1 + (log_s / math.log(2) if log_s > 40 else math.log1p(math.exp(log_s)) / math.log(2))
            total += min(max(nominal, least), most)
        return total / count

    low, high = -60.0, 60.0 - min(logs)
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if mean(middle) < bits else (low, middle)
    return math.exp(min(high, 600.0)) / norm


def doubled(bits: int, ratio: float, reference: float, fall: float) -> tuple[int, float]:
    """AdaQS's (bits, reference) after a look at `ratio`; reference: the highest ratio since the last bit was added.

    One bit more, and a new reference, if the ratio has fallen to reference / fall.
    """
    return (bits + 1, ratio) if ratio * fall <= reference else (bits, max(ratio, reference))
