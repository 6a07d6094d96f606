"""Figures of papers that no run decides: what methods send, bounds of compressors, and papers' own models.

Most of what papers prove or count stands in the tests of each method; here is what belongs to none of them alone.
"""

from __future__ import annotations

import math
from collections import Counter
from math import log2

import pytest
import torch

from reference_impls.compressors import dithering
from reference_impls.compressors.levels import Natural
from reference_impls.core.collectives import AllReduce
from reference_impls.core.registry import create
from reference_impls.runtime.alone import traced
from tests.reference_impls.exchanges import kinds_of

MATRIX = [(1000, 1000)]
STEPS, WARM_UP, VARIANCE_PHASE, GROWTH = 125_000, 23_000, 12_500, 32_678
"""The published BERT-Large configurations of 1-bit Adam and 0/1 Adam (sequence length 128)."""


def costs(name: str, n: int, **options: object) -> dict[str, float]:
    """Bytes that a rank sends in a step of each kind, mean over ranks; none here depends on data."""
    return traced(create(name, **options), MATRIX, n)


def one_bit_ratio(name: str, warm_up: float, n: int) -> float:
    """Traffic of an fp16 all-reduce over that of a training whose warm-up, a share of it, also travels as fp16."""
    half = costs("allreduce-fp16", n)["step"]
    return half / (warm_up * half + (1 - warm_up) * costs(name, n, warmup_steps=1)["compressed"])


@pytest.mark.parametrize(("warm_up", "traffic"), [(0.01, 24.43), (0.15, 5.66), (0.25, 3.66)])
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


def test_zero_one_adam_in_its_published_configuration() -> None:
    """ZO-1 and ZO-2: volume and rounds against 1-bit Adam, volume against fp16."""
    published = {"total_steps": STEPS, "variance_steps": VARIANCE_PHASE, "local_growth_steps": GROWTH}
    kinds = Counter(kinds_of("zero-one-adam", STEPS, **published))
    half = costs("allreduce-fp16", 64)["step"]
    coded = costs("zero-one-adam", 64, total_steps=STEPS)["average"]
    volume = kinds["variance"] * half + (kinds["gradient"] + kinds["average"]) * coded
    one_bit = WARM_UP * half + (STEPS - WARM_UP) * coded
    assert kinds == {"variance": 153, "gradient": 12_347, "average": 58_995, "local": 53_505}
    assert volume / one_bit == pytest.approx(0.157, abs=1e-3)
    assert kinds["local"] / STEPS == pytest.approx(0.428, abs=1e-3)
    assert STEPS * half / volume == pytest.approx(27.04, abs=0.01)


@pytest.mark.parametrize("n", [4, 16])
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
    kinds = Counter(kinds_of("diloco", 64_000, period=500))
    assert kinds == {"average": 128, "local": 64_000 - 128}
    assert costs("slowmo-sgd", 8, period=12) == costs("local-sgd", 8, period=12)


@pytest.mark.parametrize(("rank", "printed"), [(1, 243), (2, 136), (4, 72)])
def test_volume_of_powersgd_on_resnet_18(rank: int, printed: int) -> None:
    """As its table prints them, to 1 %; every matrix is compressed."""
    shapes = resnet_18()
    elements = sum(map(math.prod, shapes))
    assert elements == 11_173_962
    method = create("powersgd", rank=rank, min_compression_rate=0.0)
    ratio = AllReduce.sent(4 * elements, 2) / traced(method, shapes, 2)["compressed"]
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
    compressor = Natural()
    got = compressor.value(compressor.code(x, (), lambda: draws), ()).double()
    exact = x[:, :1].contiguous().view(torch.float32).double()
    assert float((got.mean(-1, keepdim=True) / exact - 1).abs().max()) <= 1e-12
    assert float(((got - exact) / exact).square().mean(-1).max()) == pytest.approx(1 / 8, abs=1e-4)


@pytest.mark.parametrize(("d", "s"), [(64, 64), (512, 1), (4096, 16)])
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
