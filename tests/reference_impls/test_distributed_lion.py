"""Distributed Lion against its algorithm box, and what its transports cost. Signum and signSGD: `test_equal_methods`."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from reference_impls import create
from reference_impls.runtime.alone import traced
from tests.reference_impls.averages import point
from tests.reference_impls.test_lion_cub import DECAY, RATE, D, advance, cluster, gradient, parameters, vector
from tests.support import each

BOTH = ("distributed-lion-mavo", "distributed-lion-avg")


def lazily(size: int, steps: int, average: bool) -> Tensor:
    """The algorithm box, word by word: the direction of the last step is applied before the next gradient."""
    x = [vector(parameters(torch.float64)) for _ in range(size)]
    m = [torch.zeros(D, dtype=torch.float64) for _ in range(size)]
    direction = None
    for t in range(steps + 1):
        sent = []
        for i in range(size):
            if t > 0:
                x[i] = x[i] - RATE * (direction + DECAY * x[i])
            if t == steps:
                continue
            g = vector(gradient(t, i, torch.float64))
            sent.append(torch.sign(0.9 * m[i] + 0.1 * g))
            m[i] = 0.99 * m[i] + 0.01 * g
        if t < steps:
            total = torch.stack(sent).sum(0)
            direction = total / size if average else total.sign()
    return x[0]


@each("size", [1, 3, 4])
@each("name", BOTH)
def test_the_paper_s_lazy_form_is_the_same_trajectory(name: str, size: int) -> None:
    options = {"tie_policy": "zero"} if name == "distributed-lion-mavo" else {}
    trained = cluster(name, size, torch.float64, **options)
    advance(trained, 30, lambda step, rank: gradient(step, rank, torch.float64))
    found = point(trained, size - 1)
    torch.testing.assert_close(found, lazily(size, 30, average="avg" in name), rtol=0, atol=1e-12)


# ---- what it costs: payload bits that a worker sends for a parameter -------------------------------------------------

LARGE = ((1 << 20,),)


def bits(name: str, n: int, kind: str = "step", **options: Any) -> float:
    return 8 * traced(create(name, **options), LARGE, n)[kind] / LARGE[0][0]


@each("n", [2, 5, 127])
def test_the_table_of_costs(n: int) -> None:
    """Exact but for padding: 8 n bits a bucket and one vote for what is not finite."""
    share, b = (n - 1) / n, math.ceil(math.log2(n + 1))
    apart = {"momentum_sync": "never"}
    expected: list[tuple[str, dict[str, Any], float]] = [
        ("allreduce-lion", {}, 64 * share),
        ("lion-update-mean", {}, 32 * share),
        ("lion-sign-sum", {}, 16 * share),
        ("lion-sign-sum-fp32", {}, 64 * share),
        ("lion-sign-gather", {}, n - 1),
        ("distributed-lion-mavo", {}, 2 * share),
        ("signsgd", {}, 2 * share),
        ("distributed-lion-avg", {}, (1 + b) * share),
        ("lion-cub-1bit", apart, 2 * share),
        ("lion-cub-pbit", apart, 16 * share),
        ("lion-cub-pbit", {**apart, "bits": 16}, 32 * share),
    ]
    coded = {**apart, "bits": 5, "form": "two-phase", "levels": "code"}
    expected.append(("lion-cub-pbit", coded, (5 + (30 * n).bit_length()) * share))
    if n <= 7:
        expected.append(("lion-cub-pbit", {**apart, "bits": 4}, 8 * share))
    for name, options, exact in expected:
        assert bits(name, n, **options) == pytest.approx(exact, abs=1e-3, rel=1e-3), (name, options)
    sync = bits("lion-cub-1bit", n, "sync") - bits("lion-cub-1bit", n)
    assert sync / 100 == pytest.approx(64 * share / 100)
