"""Figures of papers that no run decides: what methods declare to send, bounds of codecs, and papers' own models.

Most of what papers prove or count stands in the tests of each method; here is what belongs to none of them alone.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from math import log2

import pytest
import torch
from torch import Tensor

from reference_impls import wire
from reference_impls.algorithm import Clock, Cost
from reference_impls.codecs import dithering
from reference_impls.codecs.levels import Natural
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


@pytest.mark.parametrize(
    ("ratio", "others", "least", "most"),
    [(6.81, (5.33, 6.53, 6.53), 4.11, 21.73), (6.73, (5.33, 5.93, 5.11), 11.89, 24.07)],
)
def test_the_savings_of_dq_sgd_follow_from_its_table(
    ratio: float, others: tuple[float, ...], least: float, most: float
) -> None:
    """DQ-2: percent less than the others that reach the accuracy (AG-News, CIFAR-100), from times fewer bits than fp32."""
    found = [100 * (1 - other / ratio) for other in others]
    assert (min(found), max(found)) == pytest.approx((least, most), abs=0.01)


@pytest.mark.parametrize(("rank", "printed"), [(1, 243), (2, 136), (4, 72)])
def test_volume_of_powersgd_on_resnet_18(rank: int, printed: int) -> None:
    """As its table prints them, to 1 %; every matrix is compressed."""
    shapes = resnet_18()
    assert wire.elements(shapes) == 11_173_962
    method = create("powersgd", rank=rank, min_compression_rate=0.0).algorithm
    ratio = wire.all_reduce(4 * wire.elements(shapes), 2) / single(method.wire_bytes(shapes, 2)["compressed"])
    assert (printed - 0.5) / 1.01 < ratio < (printed + 0.5) * 1.01


def resnet_18() -> list[tuple[int, ...]]:
    """With a first convolution of 3 x 3, as for images of 32 x 32 in ten classes."""
    found: list[tuple[int, ...]] = [(64, 3, 3, 3), (64,), (64,)]
    before = 64
    for width in (64, 128, 256, 512):
        for block in range(2):
            found += [(width, before, 3, 3), (width,), (width,), (width, width, 3, 3), (width,), (width,)]
            if block == 0 and before != width:
                found += [(width, before, 1, 1), (width,), (width,)]
            before = width
    return [*found, (10, before), (10,)]


def test_natural_compression_by_enumeration() -> None:
    """All mantissas of 9 bits, all draws: no bias, and a variance of 1/8 of the square in the worst case, not less."""
    step, every = 1 << 14, torch.arange(1 << 9, dtype=torch.int32)
    draws = every * step
    x = (draws | (127 << 23))[:, None].expand(-1, len(draws))
    codec = Natural()
    got = codec.value(codec.code(x, (), lambda: draws), ()).double()
    exact = x[:, :1].contiguous().view(torch.float32).double()
    assert float((got.mean(-1, keepdim=True) / exact - 1).abs().max()) <= 1e-12
    assert float(((got - exact) / exact).square().mean(-1).max()) == pytest.approx(1 / 8, abs=1e-4)


@pytest.mark.parametrize("d", [64, 512, 4096])
@pytest.mark.parametrize("s", [1, 4, 16, 64])
def test_the_lemma_of_qsgd(d: int, s: int) -> None:
    """Lemma 3.1: variance of at most min(d/s^2, sqrt(d)/s) |v|^2, at most s (s + sqrt(d)) non-zeros on average."""
    source, grid = torch.Generator().manual_seed(0), (torch.arange(256) + 0.5) / 256
    for _ in range(4):
        normal = torch.randn(2, d, generator=source)
        v = normal[0] * torch.exp(normal[1])  # heavy tails
        codes = dithering.rounded(v[:, None], v.norm(), s, grid).double()
        error = (codes * float(v.norm()) / s - v[:, None].double()).square().mean(1).sum()
        assert float(error) <= min(d / s**2, math.sqrt(d) / s) * float(v.double().square().sum())
        assert float((codes != 0).double().mean(1).sum()) <= s * (s + math.sqrt(d))


@pytest.mark.parametrize("n", [4, 16, 64])
def test_one_norm_over_all_workers_saves_root_n_non_zeros_and_costs_root_n_of_variance(n: int) -> None:
    """Global-QSGD against QSGD at one level, 2-norms: both halves of its claim of sqrt(n), so that nothing is gained."""
    x = torch.randn(n, 4000, generator=torch.Generator().manual_seed(n)).double().abs()
    norms, norm = x.norm(dim=1, keepdim=True), x.norm()

    def variance(z: Tensor, scale: Tensor) -> float:
        part = z - z.floor()
        return float((part * (1 - part) * scale**2).sum())

    fewer = float((x / norms).sum() / (x / norm).sum())
    worse = variance(x / norm, norm) / variance(x / norms, norms)
    assert (fewer, worse) == pytest.approx((math.sqrt(n), math.sqrt(n)), rel=0.1)


@pytest.mark.parametrize(("beta", "speedup"), [(53.9e9, 1.96), (5.4e9, 3.62), (160e9, 1.0)])
def test_where_codes_pay_in_the_model_of_global_qsgd(beta: float, speedup: float) -> None:
    """Its section 5: 2 S / beta + S / gamma seconds in fp32, a quarter with exponential codes, which add 79 times slower."""
    gamma, slower = 2e12, 79.0
    assert 4 * (2 / beta + 1 / gamma) / (2 / beta + slower / gamma) == pytest.approx(speedup, abs=0.01)
    assert 2 * 3 * gamma / (slower - 4) == pytest.approx(160e9), "bytes a second below which they pay"


# ---- Streaming DiLoCo's table 4 (arXiv 2501.18512, appendix): which bandwidth keeps a share of the time for computing
#
# A step is a chain of layers, forward and then backward. A layer's part of the message is ready when its backward is, and parts
# go over the link one after the other. What has not arrived `overlap` steps after the step has ended is waited for.
# Our choices: a third of a step is forward; a parameter is 16 bits in one direction; layers are equal, embeddings not counted.

MODELS = {"1B": (1e9, 24, 0.1), "10B": (1e10, 48, 0.8), "100B": (1e11, 108, 4.9)}
"""Parameters, layers, seconds of a step."""
WAYS = {"data parallel": (1, 0, 0, 16), "DiLoCo": (100, 0, 0, 16), "streaming": (100, 3, 0, 16),
        "overlapped": (100, 3, 1, 16), "4 bits": (100, 3, 1, 4)}  # fmt: skip
"""Steps of a round, layers of a fragment (0: all at once), steps of overlap, bits a parameter."""
TABLE_4 = [
    ("data parallel", "1B", (86.8, 152.6, 184.2, 222.3, 569.0), 0),
    ("data parallel", "10B", (104.8, 222.3, 222.3, 268.3, 471.5), 0),
    ("data parallel", "100B", (184.2, 323.8, 390.7, 390.7, 471.5), 0),
    ("DiLoCo", "1B", (1.4, 6.2, 13.3, 23.3, 86.8), 0),
    ("DiLoCo", "10B", (1.7, 7.5, 16.0, 33.9, 104.8), 0),
    ("DiLoCo", "100B", (3.0, 11.0, 23.3, 49.4, 184.2), 0),
    ("streaming", "1B", (1.4, 5.2, 9.1, 16.0, 28.1), 0),
    ("streaming", "10B", (1.7, 5.2, 9.1, 13.3, 19.3), 1),
    ("streaming", "100B", (2.4, 6.2, 9.1, 11.0, 19.3), 1),
    ("overlapped", "1B", (1.4, 4.3, 6.2, 9.1, 11.0), 0),
    ("overlapped", "10B", (1.7, 3.6, 5.2, 6.2, 7.5), 0),
    ("overlapped", "100B", (1.7, 3.6, 4.3, 5.2, 5.2), 0),
    ("4 bits", "1B", (0.4, 0.9, 1.7, 2.0, 3.0), 0),
    ("4 bits", "10B", (0.4, 0.9, 1.4, 1.4, 1.7), 0),
    ("4 bits", "100B", (0.5, 0.9, 1.1, 1.1, 1.4), 0),
]
"""Way, model, Gbit/s for 50, 80, 90, 95 and 99 % of the time computing, and how many of them our reading misses."""


@pytest.mark.parametrize(("way", "model", "printed", "missed"), TABLE_4)
def test_bandwidths_of_streaming_diloco(
    way: str, model: str, printed: tuple[float, ...], missed: int
) -> None:
    """Within one step of the paper's grid of bandwidths, 1.207 apart, and half of the last digit."""
    outside = 0
    for share, value in zip((0.5, 0.8, 0.9, 0.95, 0.99), printed, strict=True):
        found = needed(way, model, share) / 1e9
        outside += not (value - 0.05) / 1.207 <= found <= (value + 0.05) * 1.207
    assert outside == missed


def needed(way: str, model: str, share: float) -> float:
    """Bits a second, by bisection: waiting falls as the link gets faster."""
    (size, layers, step), (period, each, overlap, bits) = MODELS[model], WAYS[way]
    count = layers // each if each else 1
    low, high = 1.0, 1e15
    for _ in range(100):
        rate = math.sqrt(low * high)
        waited = sum(
            exposed(range(first, layers, count), size * bits / rate, layers, step, overlap)
            for first in range(count)
        )
        low, high = (low, rate) if period * step / (period * step + waited) >= share else (rate, high)
    return high


def exposed(sent: Iterable[int], whole: float, layers: int, step: float, overlap: int) -> float:
    """Seconds from the end of the step, or of `overlap` steps later, to the arrival of the last layer. whole: of all layers."""
    arrived = 0.0
    for layer in sorted(sent, reverse=True):
        ready = step / 3 + (layers - layer) * (2 / 3) * step / layers
        arrived = max(arrived, ready) + whole / layers
    return max(0.0, arrived - (1 + overlap) * step)
