"""Learning rates and synchronisation rules against the official QSR code's numbers. arXiv 2310.14423."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from reference_impls.errors import UnsupportedError
from reference_impls.schedules import QSR, Constant, LearningRate, sync_steps

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


@pytest.mark.parametrize("case", ROWS)
def test_rounds_fill_the_training_and_grow(case: str) -> None:
    rate, _, h_base, *_ = ROWS[case]
    lengths = [h for _, h in rounds(syncs(ROWS[case][1], h_base, **rate))]
    assert sum(lengths) == rate["total"]
    assert all(
        h == h_base for (start, h) in rounds(syncs(ROWS[case][1], h_base, **rate)) if start < rate["warmup"]
    )
    assert min(lengths[:-1]) == h_base
    assert all(a <= b for a, b in pairwise(lengths[:-1]))


def test_neighbouring_readings_of_the_rule_give_other_lists() -> None:
    """The traps: the rate of the last completed step; H asked again at every step; the rule during warm-up."""

    def late(alpha: float, h_base: int, rate: dict[str, Any]) -> list[int]:
        rule = QSR(alpha, h_base, warmup=rate["warmup"], total=rate["total"])
        lr = LearningRate("cosine", **rate)
        return sync_steps(rule, lambda t: lr(max(t - 1, 0)), rate["total"])

    def at_every_step(alpha: float, h_base: int, rate: dict[str, Any]) -> int:
        rule, lr = QSR(alpha, h_base, warmup=rate["warmup"]), LearningRate("cosine", **rate)
        count = since = 0
        for t in range(rate["total"]):
            since += 1
            if since >= rule.period(t, lr(t)) or t == rate["total"] - 1:
                count, since = count + 1, 0
        return count

    assert [len(late(0.0175, 4, VIT)), len(late(0.25, 4, RESNET))] == [9_711, 12_540]
    assert late(0.0175, 4, VIT) != syncs(0.0175, 4, **VIT)  # the count alone would not tell
    assert [at_every_step(0.0175, 4, VIT), at_every_step(0.25, 4, RESNET)] == [9_703, 12_532]
    for rate, alpha in ((VIT, 0.0175), (RESNET, 0.25)):
        assert sync_steps(
            QSR(alpha, 4, total=rate["total"]), LearningRate("cosine", **rate), rate["total"]
        ) == [rate["total"]]


@pytest.mark.parametrize(
    ("schedule", "case", "count"),
    [
        ("linear", "R2", 27_887),
        ("linear", "R4", 14_079),
        ("linear", "V4", 8_741),
        ("linear", "V8", 6_418),
        ("cosine_step", "R2", 25_117),
        ("cosine_step", "R4", 12_620),
        ("cosine_step", "V4", 9_880),
        ("cosine_step", "V8", 6_275),
    ],
)
def test_other_schedules(schedule: str, case: str, count: int) -> None:
    rate, alpha, h_base, *_ = ROWS[case]
    assert len(syncs(alpha, h_base, schedule, **rate)) == count


@pytest.mark.parametrize(
    ("rate", "h_base", "power", "counts"),
    [
        (VIT, 4, 1, {0.02: 16_183, 0.03: 14_108, 0.04: 11_342}),
        (VIT, 4, 3, {0.0075: 13_899, 0.01: 11_920, 0.0125: 9_690, 0.015: 6_731}),
        (RESNET, 2, 1, {0.2: 26_936, 0.3: 25_948, 0.4: 25_101}),
        (RESNET, 2, 3, {0.2: 23_791, 0.3: 21_994, 0.4: 20_405}),
    ],
)
def test_linear_and_cubic_rules(
    rate: dict[str, Any], h_base: int, power: float, counts: dict[float, int]
) -> None:
    assert {alpha: len(syncs(alpha, h_base, power=power, **rate)) for alpha in counts} == counts


def test_a_step_schedule_other_floors_and_another_length() -> None:
    step = {**RESNET, "total": 28_080, "milestones": (30 * 312, 60 * 312)}
    assert len(syncs(0.2, 2, "step", **step)) == 6_255
    assert [len(syncs(0.0175, 4, **{**VIT, "min": m})) for m in (0.0, 1e-5, 1e-4)] == [9_711, 9_717, 9_771]
    assert len(syncs(0.0175, 4, **{**VIT, "total": 300 * 313})) == 9_737


@pytest.mark.parametrize(
    ("total", "warmup", "ratio", "h_base", "count"),
    [
        (15_600, 390, 0.125, 2, 6_682),
        (15_600, 390, 0.125, 4, 3_424),
        (23_400, 2_500, 0.0175 / 0.016, 4, 3_771),
        (23_400, 2_500, 0.01 / 0.016, 8, 2_292),
    ],
)
def test_counts_at_the_larger_batch(total: int, warmup: int, ratio: float, h_base: int, count: int) -> None:
    """Arithmetic alone: settings that fit known percentages, not settings read in the paper."""
    peak = 1.6 if ratio == 0.125 else 0.016
    assert len(syncs(ratio * peak, h_base, total=total, warmup=warmup, peak=peak, min=1e-6)) == count


@pytest.mark.parametrize("case", ROWS)
def test_the_closed_form_without_floor_bounds_the_count_from_below(case: str) -> None:
    rate, alpha, h_base, count, *_ = ROWS[case]
    r, free = alpha / rate["peak"], rate["total"] - rate["warmup"]
    argument = 2 * r / math.sqrt(h_base) - 1
    x = math.acos(argument) if argument < 1 else 0.0
    tail = 3 * (math.pi - x) / 8 - math.sin(x) / 2 - math.sin(2 * x) / 16
    bound = (rate["warmup"] + free * x / math.pi) / h_base + free / (math.pi * r**2) * tail
    assert 0.92 * count < bound < count


# ---- the rules --------------------------------------------------------------------------------------------------------


def test_limits_and_scaling_of_alpha() -> None:
    rate = {"total": 4_000, "warmup": 400, "peak": 0.5, "min": 0.0}
    assert syncs(0.0, 4, **rate) == syncs(1e-9, 4, **rate) == list(range(4, 4_001, 4))
    assert syncs(1e9, 4, **rate) == [*range(4, 401, 4), 4_000]
    scaled = {**rate, "peak": 0.125}
    assert syncs(0.3, 4, **rate) == syncs(0.075, 4, **scaled)


def test_a_round_that_starts_in_warm_up_keeps_its_length() -> None:
    rule = QSR(100.0, 4, warmup=10, total=1000)
    assert [rule.period(t, 1.0) for t in (0, 8, 9, 10)] == [4, 4, 4, 990]


def test_warm_up_has_a_period_of_its_own() -> None:
    """The paper's choice is the first length after the warm-up, which its caller computes."""
    peak = 0.1
    after = QSR(0.5, 4).period(10, peak)
    rule = QSR(0.5, 4, warmup=10, h_warmup=after)
    assert [rule.period(t, lr) for t, lr in ((0, 1e-9), (9, 0.09), (10, peak))] == [25, 25, 25]
    assert QSR(0.0, 4, h_warmup=7).period(50, peak) == 7


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


@pytest.mark.parametrize("lr", [-0.1, math.nan])
def test_a_rate_that_is_none_is_refused(lr: float) -> None:
    with pytest.raises(UnsupportedError, match="learning rate"):
        QSR(1.0, 4, total=100).period(30, lr)


@pytest.mark.parametrize(
    "build",
    [
        lambda: Constant(0),
        lambda: QSR(0.1, 0),
        lambda: QSR(-0.1, 4),
        lambda: QSR(math.nan, 4),
        lambda: QSR(0.1, 4, power=0.0),
        lambda: QSR(0.1, 4, h_warmup=0),
        lambda: LearningRate("cosin", peak=1.0, total=10),
        lambda: LearningRate(peak=1.0, min=2.0, total=10),
        lambda: LearningRate(peak=math.inf, total=10),
        lambda: LearningRate(peak=1.0, total=0),
        lambda: LearningRate(peak=1.0, total=10, warmup=11),
        lambda: LearningRate("cosine_step", peak=1.0, total=10, base=1.0),
        lambda: LearningRate("step", peak=1.0, total=10, gamma=-0.1),
    ],
)
def test_impossible_numbers_are_refused(build: Callable[[], object]) -> None:
    with pytest.raises(UnsupportedError):
        build()


def test_an_unknown_schedule_names_the_nearest() -> None:
    with pytest.raises(UnsupportedError, match="did you mean 'cosine'"):
        LearningRate("cosin", total=10)


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


def test_milestones_count_from_the_step_at_which_they_are_reached() -> None:
    rate = LearningRate("step", peak=1.0, total=30, milestones=(10, 20), gamma=0.1)
    assert [rate(t) for t in (0, 9, 10, 19, 20, 29)] == pytest.approx([1, 1, 0.1, 0.1, 0.01, 0.01])


@pytest.mark.parametrize("schedule", ["cosine", "linear", "cosine_step"])
def test_beyond_the_end_a_rate_stays_where_it_ended(schedule: str) -> None:
    """Neither a cosine that rises again nor a line that goes on below 0."""
    rate = LearningRate(schedule, peak=1.0, min=0.125, total=10)
    assert [rate(t) for t in (10, 11, 15, 1000)] == [0.125] * 4


def test_a_training_of_warm_up_alone() -> None:
    rate = LearningRate("cosine", peak=1.0, total=4, warmup=4)
    assert [rate(t) for t in range(4)] == [0.0, 0.25, 0.5, 0.75]
