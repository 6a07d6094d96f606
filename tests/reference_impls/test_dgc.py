"""Deep Gradient Compression against its rule written down, and its special cases."""

from __future__ import annotations

import math

import pytest
import torch

from reference_impls import SimulatedCluster
from reference_impls.algorithms.sparsifiers import DGC
from reference_impls.compressors.sparse import kept


def cluster(name, n, sizes, *, lr=0.1, **options):
    start = [normal(d, seed=100 + i) for i, d in enumerate(sizes)]
    return SimulatedCluster(name, start, n, lr=lr, **options)


def normal(*shape, seed=0):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (x * 1024).round() / 1024


def advance(workers, rows, sizes):
    workers.step([list(row.split(sizes)) for row in rows])
    return torch.cat(workers.parameters(0)).clone()


def slot(workers, n, name):
    return torch.stack([torch.cat(workers.state(r, name)) for r in range(n)])


@pytest.mark.parametrize(
    ("nesterov", "granularity", "clip"),
    [(True, "tensor", 0.0), (False, "model", 3.0), (False, "tensor", 3.0)],
)
def test_the_rule_written_down_gives_the_same(nesterov, granularity, clip):
    n, sizes, ratio, m, decay, lr = 3, [40, 7, 60], 0.1, 0.9, 0.01, 0.1
    d = sum(sizes)
    cuts = sizes if granularity == "tensor" else [d]
    workers = cluster(
        "dgc", n, sizes, lr=lr, ratio=ratio, nesterov=nesterov, granularity=granularity,
        local_clip=clip, momentum=m, weight_decay=decay,
    )  # fmt: skip
    x = torch.cat(workers.parameters(0)).clone()
    u, v = torch.zeros(n, d, dtype=torch.float64), torch.zeros(n, d, dtype=torch.float64)
    for t in range(5):
        g = normal(n, d, seed=t)
        given = g.clone()
        if clip:
            g = g * (clip / math.sqrt(n) / g.norm(dim=1, keepdim=True)).clamp(max=1)
        total = torch.zeros(d, dtype=torch.float64)
        for i in range(n):
            local = g[i] + decay * x
            u[i] = m * u[i] + local
            v[i] += local + m * u[i] if nesterov else u[i]
            first = 0
            for length in cuts:
                part = v[i, first : first + length]
                places = part.abs().topk(kept(ratio, length)).indices + first
                total[places] += v[i, places].float().double() / n
                v[i, places] -= v[i, places].float().double()
                u[i, places] = 0
                first += length
        x = x - lr * total
        torch.testing.assert_close(advance(workers, given, sizes), x, rtol=0, atol=1e-9)
        torch.testing.assert_close(slot(workers, n, "momentum"), u, rtol=0, atol=1e-9)
        torch.testing.assert_close(slot(workers, n, "velocity"), v, rtol=0, atol=1e-9)


def test_the_warm_up_falls_as_in_the_paper():
    method = DGC(ratio=0.001, warmup_steps=8, warmup_stages=4)
    shares = [method.share(t) for t in range(10)]
    assert shares == pytest.approx(
        [0.25119] * 2 + [0.0631] * 2 + [0.01585] * 2 + [0.00398] * 2 + [0.001] * 2, rel=1e-3
    )
    assert len(method.timed) == 5
    assert all(method.steadily(kind).warmup_steps == 0 for kind in method.timed)
    workers = cluster("dgc", 2, [1000], ratio=0.001, warmup_steps=4)
    for t in range(5):
        advance(workers, normal(2, 1000, seed=t), [1000])
        assert workers.kind == f"ratio-{DGC(ratio=0.001, warmup_steps=4).share(t):.4g}"
