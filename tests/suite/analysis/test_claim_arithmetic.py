"""The figures of claims that no run decides: `docs/claim-studies.md` states them, the methods' own `wire_bytes` yield them."""

from __future__ import annotations

from collections import Counter
from math import log2

import pytest

from reference_impls.algorithm import Clock, Cost
from reference_impls.collectives import Group
from reference_impls.registry import create

MATRIX = [(1000, 1000)]
STEPS, WARM_UP, VARIANCE_PHASE, GROWTH = 125_000, 23_000, 12_500, 32_678
"""The published BERT-Large configurations of 1-bit Adam and 0/1 Adam (sequence length 128)."""


def costs(name: str, n: int, **options: object) -> dict[str, float]:
    """Bytes that a rank sends in a step of each kind, mean over ranks; none here depends on data."""
    return {
        kind: single(cost) for kind, cost in create(name, **options).algorithm.wire_bytes(MATRIX, n).items()
    }


def single(cost: Cost) -> float:
    """A cost that is one number."""
    assert isinstance(cost, (int, float))
    return float(cost)


def one_bit_ratio(name: str, warm_up: float, n: int) -> float:
    """Traffic of an fp16 all-reduce over that of a training whose warm-up, a share of it, also travels as fp16."""
    half = costs("allreduce-fp16", n)["step"]
    return half / (warm_up * half + (1 - warm_up) * costs(name, n, warmup_steps=1)["compressed"])


@pytest.mark.parametrize(
    ("warm_up", "traffic"),
    [(0.01, 24.43), (0.02, 19.75), (0.05, 12.55), (0.10, 7.80), (0.15, 5.66), (0.25, 3.66)],
)
def test_warm_up_caps_the_speedup(warm_up: float, traffic: float) -> None:
    """APM-1: fp32 all-reduce over APMSqueeze, all steps together; always below 1/w."""
    sent = costs("apmsqueeze", 4, warmup_steps=1)
    ratio = sent["warm-up"] / (warm_up * sent["warm-up"] + (1 - warm_up) * sent["compressed"])
    assert ratio == pytest.approx(traffic, rel=2e-3)
    assert ratio < 1 / warm_up


@pytest.mark.parametrize(
    ("name", "warm_up", "claimed"),
    [("one-bit-adam", 0.15, 4.92), ("one-bit-adam", 0.25, 3.37), ("one-bit-lamb", 0.165, 4.6)],
)
def test_volume_of_one_bit_methods(name: str, warm_up: float, claimed: float) -> None:
    """OBA-1, OBA-5, LAMB-1: ratios against fp16, by bytes that are really sent; the fp32 scales cost nothing visible."""
    assert one_bit_ratio(name, warm_up, 64) == pytest.approx(claimed, rel=5e-3)


def kinds_of_zero_one_adam() -> Counter[str]:
    """How often each kind of step comes in the published configuration."""
    algorithm = create(
        "zero-one-adam", total_steps=STEPS, variance_steps=VARIANCE_PHASE, local_growth_steps=GROWTH
    ).algorithm
    world, counters, found = Group("world", 0, 8), {}, Counter[str]()
    for step in range(STEPS):
        found[str(algorithm.plan(Clock(world, step=step, counters=counters)))] += 1
    return found


def test_zero_one_adam_in_its_published_configuration() -> None:
    """ZO-1 and ZO-2: volume and rounds against 1-bit Adam, volume against fp16."""
    kinds = kinds_of_zero_one_adam()
    half = costs("allreduce-fp16", 64)["step"]
    coded = costs("zero-one-adam", 64, total_steps=STEPS)["average"]
    volume = kinds["variance"] * half + (kinds["gradient"] + kinds["average"]) * coded
    one_bit = WARM_UP * half + (STEPS - WARM_UP) * coded
    assert kinds == {"variance": 153, "gradient": 12_347, "average": 58_995, "local": 53_505}
    assert volume / one_bit == pytest.approx(0.157, abs=1e-3)
    assert kinds["local"] / STEPS == pytest.approx(0.428, abs=1e-3)
    assert STEPS * half / volume == pytest.approx(27.04, abs=0.01)


@pytest.mark.parametrize("n", [4, 8, 16, 32, 64, 128, 256])
def test_traffic_of_gs_sgd_and_gtop_k(n: int) -> None:
    """Both grow as log2 P from every worker when they double; what differs is a table against 2 k numbers."""
    k, table, fetched = 1_000, 4 * 5 * 9_000, 4 * 4 * 1_000
    assert costs("gs-sgd", n)["step"] == log2(n) * (table + fetched)
    assert costs("gs-sgd", n, form="tree")["step"] == 2 * (n - 1) / n * (table + fetched)
    assert costs("sketched-sgd", n)["step"] == 2 * (n - 1) / n * (table + fetched)
    assert costs("gtop-k", n, ratio=1e-3, form="doubling")["step"] == log2(n) * 6.5 * k
    assert costs("gtop-k", n, ratio=1e-3)["step"] == 2 * (n - 1) / n * 6.5 * k


def test_rounds_of_500_steps_send_500_times_less_and_slow_momentum_adds_nothing() -> None:
    """DiLoCo's D1 and table 2; SlowMo sends what local SGD does."""
    full = costs("allreduce-adamw", 8)["step"]
    assert full == costs("diloco", 8, period=500)["average"]
    algorithm = create("diloco", period=500).algorithm
    world, counters = Group("world", 0, 8), dict[str, int | float]()
    kinds = Counter(str(algorithm.plan(Clock(world, step=step, counters=counters))) for step in range(64_000))
    assert kinds == {"average": 128, "local": 64_000 - 128}
    assert costs("slowmo-sgd", 8, period=12) == costs("local-sgd", 8, period=12)


@pytest.mark.parametrize(("average_bits", "ratio"), [(4.70, 6.81), (4.50, 7.11), (4.75, 6.73)])
def test_the_ratios_of_dq_sgd_are_those_of_its_average_bits(average_bits: float, ratio: float) -> None:
    """Both as printed in its table (AG-News, CIFAR-10, CIFAR-100), to their last digits."""
    assert 32 / average_bits == pytest.approx(ratio, abs=0.01)
