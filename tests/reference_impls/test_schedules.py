"""Learning rates and synchronisation rules against the official QSR code's numbers. arXiv 2310.14423."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from reference_impls.core.errors import UnsupportedError
from reference_impls.core.schedules import QSR, Constant, LearningRate
from tests.support import each, sync_steps

RESNET = {"total": 62_400, "warmup": 1_560, "peak": 0.8, "min": 1e-6}
VIT = {"total": 93_600, "warmup": 10_000, "peak": 0.008, "min": 1e-6}

# case: (rate, alpha, h_base, synchronisations, volume in percent, sha256[:16] of the comma-joined sync counters,
#        first rounds of each larger H as (counter, H), last three rounds as (start, H))
ROWS: dict[str, tuple[dict[str, Any], float, int, int, float, str, list[tuple[int, int]], list[tuple[int, int]]]] = {
    "R2": (RESNET, 0.2, 2, 24_792, 39.731, "5c06cde3431e7b20",
           [(47_306, 3), (48_404, 4), (49_196, 5), (49_806, 6)], [(58_736, 784), (59_520, 2_051), (61_571, 829)]),
    "R4": (RESNET, 0.25, 4, 12_539, 20.095, "e86310f77ef553a6",
           [(47_564, 5), (48_254, 6), (48_812, 7)], [(57_963, 571), (58_534, 990), (59_524, 2_876)]),
    "V4": (VIT, 0.0175, 4, 9_711, 10.375, "c957197f667ac664",
           [(17_876, 5), (27_736, 6), (32_848, 7)], [(81_077, 1_612), (82_689, 2_769), (85_458, 8_142)]),
    "V8": (VIT, 0.0175, 8, 6_461, 6.903, "0c0dc8fb0db6832a",
           [(39_136, 9), (41_332, 10), (43_162, 11)], [(82_347, 2_453), (84_800, 6_461), (91_261, 2_339)]),
}  # fmt: skip


def syncs(alpha: float, h_base: int, schedule: str = "cosine", power: float = 2.0, **rate: Any) -> list[int]:
    rule = QSR(alpha, h_base, power=power, warmup=rate["warmup"], total=rate["total"])
    return sync_steps(rule, LearningRate(schedule, **rate), rate["total"])


def rounds(found: list[int]) -> list[tuple[int, int]]:
    """(start, H) of every round."""
    return [(first, last - first) for first, last in pairwise([0, *found])]


# ---- the table --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ROWS)
def test_the_official_counts_to_the_step(case: str) -> None:
    rate, alpha, h_base, count, volume, digest, larger, last = ROWS[case]
    found = syncs(alpha, h_base, **rate)
    assert len(found) == count
    assert round(100 * count / rate["total"], 3) == volume
    assert hashlib.sha256(",".join(map(str, found)).encode()).hexdigest()[:16] == digest
    assert [next(r for r in rounds(found) if r[1] >= h) for _, h in larger] == larger
    assert rounds(found)[-3:] == last


@each(
    ("rate", "alpha", "h_base", "schedule", "power", "count"),
    [
        (RESNET, 0.25, 4, "linear", 2, 14_079), (VIT, 0.0175, 8, "linear", 2, 6_418),
        (RESNET, 0.25, 4, "cosine_step", 2, 12_620), (VIT, 0.0175, 8, "cosine_step", 2, 6_275),
        (VIT, 0.0075, 4, "cosine", 3, 13_899), (VIT, 0.015, 4, "cosine", 3, 6_731),
        (RESNET, 0.2, 2, "cosine", 1, 26_936), (RESNET, 0.4, 2, "cosine", 1, 25_101),
    ],
)  # fmt: skip
def test_other_schedules_and_powers(rate, alpha, h_base, schedule, power, count):
    assert len(syncs(alpha, h_base, schedule, power, **rate)) == count


# ---- the rules --------------------------------------------------------------------------------------------------------


def test_limits_and_scaling_of_alpha() -> None:
    rate = {"total": 4_000, "warmup": 400, "peak": 0.5, "min": 0.0}
    assert syncs(0.0, 4, **rate) == syncs(1e-9, 4, **rate) == list(range(4, 4_001, 4))
    assert syncs(1e9, 4, **rate) == [*range(4, 401, 4), 4_000]
    scaled = {**rate, "peak": 0.125}
    assert syncs(0.3, 4, **rate) == syncs(0.075, 4, **scaled)


def test_constant_rounds_end_with_the_training() -> None:
    assert sync_steps(Constant(4), lambda t: 0.1, 10) == [4, 8, 10]
    assert sync_steps(Constant(4, total=10), lambda t: 0.1, 10) == [4, 8, 10]
    assert Constant(4).period(8, 0.1) == 4
    assert Constant(4, total=10).period(8, 0.1) == 2
    assert Constant(4, total=10).period(10, 0.1) == 1  # further on: every step on its own


@pytest.mark.parametrize("lr", [0.0, 1e-200, 5e-324])
def test_a_rate_of_nothing_lasts_to_the_end_if_there_is_one(lr: float) -> None:
    assert QSR(1.0, 4, total=100).period(30, lr) == 70
    assert QSR(0.0, 4, total=100).period(30, lr) == 4
    with pytest.raises(UnsupportedError, match="total_steps"):
        QSR(1.0, 4).period(30, lr)


# ---- learning rates ---------------------------------------------------------------------------------------------------


def test_learning_rates_are_those_of_the_official_code() -> None:
    m, peak, warmup, total = 1e-3, 0.8, 10, 110
    rate = {"peak": peak, "min": m, "warmup": warmup, "total": total}
    cosine, linear = LearningRate("cosine", **rate), LearningRate("linear", **rate)
    rounded, constant = LearningRate("cosine_step", **rate, base=2.0), LearningRate("constant", **rate)
    for t in range(total):
        u = (t - warmup) / (total - warmup)
        if t < warmup:
            expected = m + t * (peak - m) / warmup
            assert all(
                f(t) == pytest.approx(expected, rel=1e-14) for f in (cosine, linear, rounded, constant)
            )
            continue
        value = m + 0.5 * (peak - m) * (1 + math.cos(math.pi * u))
        assert cosine(t) == pytest.approx(value, rel=1e-14)
        assert linear(t) == pytest.approx(m + (1 - u) * (peak - m), rel=1e-14)
        assert constant(t) == peak
        assert math.log2(rounded(t)) == int(math.log2(rounded(t)))
        assert 2**-0.5 <= rounded(t) / value <= 2**0.5 + 1e-12
    assert cosine(warmup) == linear(warmup) == peak
    assert cosine(0) == m  # the warm-up starts at the lowest rate, not at 0


@pytest.mark.parametrize(
    "build",
    [
        lambda: LearningRate("cosin", peak=1.0, total=10),
        lambda: LearningRate(peak=1.0, min=2.0, total=10),
        lambda: LearningRate(peak=math.inf, total=10),
        lambda: LearningRate(peak=1.0, total=0),
        lambda: LearningRate(peak=1.0, total=10, warmup=11),
        lambda: LearningRate("cosine_step", peak=1.0, total=10, base=1.0),
    ],
)
def test_impossible_numbers_are_refused(build: Callable[[], object]) -> None:
    with pytest.raises(UnsupportedError):
        build()
