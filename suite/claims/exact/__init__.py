"""Checks that compute a claim's number from the implementations, the schedules and the codecs: no training, no clock.

A check is a function of keyword arguments, the conditions that the claim names, and answers numbers by name. It never sees
the claim's thresholds, so it cannot answer what is wanted of it. What a method was written to do (its bits, its special cases)
no check can contradict: unit tests hold it, and `docs/claim-studies.md` names them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from suite.claims.exact import bounds, quantisers, schedules, streaming, wire

Numbers = Mapping[str, float | tuple[float, ...]]
"""What a check answers; a tuple where the claim is about a whole column of a table."""

CHECKS: Final[Mapping[str, Callable[..., Numbers]]] = MappingProxyType(
    {
        "break-even": bounds.break_even,
        "covariance-of-the-last-iterate": bounds.last_iterate,
        "dq-sgd-savings": bounds.savings,
        "equal-levels": bounds.equal_levels,
        "error-by-workers": bounds.error_by_workers,
        "error-ratio": bounds.error_ratio,
        "exponential-dithering": quantisers.exponential,
        "integer-headroom": quantisers.headroom,
        "low-rank-volume": wire.low_rank_volume,
        "natural-compression": quantisers.natural,
        "qsgd-lemma": bounds.qsgd_lemma,
        "qsr-schedule": schedules.qsr,
        "ratio-of-traffic": wire.ratio,
        "standard-dithering": quantisers.standard,
        "streaming-bandwidth": streaming.bandwidth,
        "volume-with-warm-up": wire.volume_with_warm_up,
        "warm-up-cap": bounds.warm_up_cap,
        "zero-one-adam": schedules.zero_one_adam,
    }
)


def parameters_of(check: str) -> dict[str, bool] | None:
    """Options of a check -> whether it needs them; None for an unknown check."""
    if check not in CHECKS:
        return None
    found = inspect.signature(CHECKS[check]).parameters
    return {name: one.default is inspect.Parameter.empty for name, one in found.items()}


def run(check: str, options: Mapping[str, Any]) -> Numbers:
    """The numbers of a check."""
    return CHECKS[check](**options)
