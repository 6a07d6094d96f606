"""PULSELoCo: its rounds written out, and the gate."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from reference_impls import SimulatedCluster, create
from reference_impls.algorithms.pulse_loco import visible
from reference_impls.runtime.alone import traced
from tests.reference_impls.local_training import Alone, D, advance, cluster, point, sent, start
from tests.support import each

SMALL = 1e-3
"""A rate at which some entries fire after a round, and some wait."""


def rounded(x: Tensor) -> Tensor:
    """To bfloat16, to nearest, ties to even, by the bits of float32: int32, where both zeros are 0."""
    bits = x.float().view(torch.int32)
    kept = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return torch.where(kept == -0x8000, 0, kept)


def errors(ours: SimulatedCluster, rank: int) -> Tensor:
    return torch.cat(ours.state(rank, "compression_error")).clone()


@each(("period", "a", "b"), [(3, 0.7, 0.9), (1, 1.0, 0.0), (2, 0.5, 0.5)])
def test_rounds_of_three_workers_written_out(period: int, a: float, b: float) -> None:
    """Lone optimizers; each entry tested, added and forgotten by itself; bytes by the largest count."""
    n, rounds = 3, 6
    alone = Alone("adamw", n)
    anchor, u = start(), torch.zeros(D, dtype=torch.float64)
    e = torch.zeros(n, D, dtype=torch.float64)
    ours = cluster("pulse-loco", n, period=period, outer_lr=a, outer_momentum=b, bucket_bytes=1 << 20)
    fired = 0
    for step in range(rounds * period):
        ends = alone.step(step, SMALL)
        advance(ours, step, step + 1, lambda step: SMALL)
        if step % period < period - 1:
            assert not sent(ours, step)
            continue
        total, counts = torch.zeros(D, dtype=torch.float64), []
        for rank in range(n):
            s = e[rank] + (anchor - ends[rank])
            fires = rounded(anchor) != rounded(anchor - s)
            for i in range(D):
                total[i] += s[i] if fires[i] else 0.0
                e[rank, i] = 0.0 if fires[i] else s[i]
            counts.append(int(fires.sum()))
        d = total / n
        u = b * u + d
        anchor = anchor - a * (d + b * u)
        alone.begin(anchor)
        for rank in range(n):
            torch.testing.assert_close(point(ours, rank), anchor, rtol=0, atol=1e-13)
            torch.testing.assert_close(errors(ours, rank), e[rank], rtol=0, atol=1e-13)
            most = max(counts)
            assert sent(ours, step, rank) == {
                "progress-count": pytest.approx(2 * (n - 1) / n * 4),
                "progress-places": (n - 1) * 4 * most,
                "progress-values": (n - 1) * 8 * most,  # of float64
            }
        fired += sum(counts)
    assert 0.1 < fired / (n * D * rounds) < 0.9
    assert e.abs().max() > 0


@each("dtype", [torch.float32, torch.float64])
def test_half_of_the_step_between_neighbours_is_not_yet_seen(dtype: torch.dtype) -> None:
    """Below 1 numbers of bfloat16 are 2^-8 apart, above it 2^-7; ties go to 1, which is even."""
    nan, inf = float("nan"), float("inf")
    cases = [
        (1.0, 0.0, False), (1.0, 2**-9, False), (1.0, 2**-9 + 2**-20, True), (1.0, -(2**-8), False),
        (1.0, -(2**-8) - 2**-20, True), (0.0, 2**-130, True), (0.0, -0.0, False), (-0.0, 0.0, False),
        (1.0, nan, True), (nan, 0.0, True), (1.0, inf, True), (inf, 1.0, False), (256.0, 0.4, False), (256.0, 0.6, True),
    ]  # fmt: skip
    anchor, move, fires = zip(*cases, strict=True)
    found = visible(torch.tensor(anchor, dtype=dtype), torch.tensor(move, dtype=dtype))
    assert found.tolist() == list(fires)


@each("n", [2, 5])
def test_a_rank_alone_tells_the_most_that_is_sent(n: int) -> None:
    found = traced(create("pulse-loco"), [(30, 20), (20,)], n)
    assert found == {"local": 0.0, "average": pytest.approx(8 * 620 * (n - 1) + 2 * (n - 1) / n * 4)}
