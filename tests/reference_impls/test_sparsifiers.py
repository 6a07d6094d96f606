"""Top-k, random-k, gTop-k and Deep Gradient Compression against their rules written down; folds over any number of ranks."""

from __future__ import annotations

import math

import pytest
import torch

from reference_impls import SimulatedCluster
from reference_impls.aggregators import folds
from reference_impls.algorithms.sparsifiers import DGC
from reference_impls.compressors.sparse import kept
from reference_impls.core.collectives import Group
from tests.reference_impls.averages import grid, held, largest_of, moved
from tests.reference_impls.exchanges import run
from tests.support import each


def cluster(name, n, sizes, *, start=None, lr=1.0, **options):
    start = [torch.zeros(d, dtype=torch.float64) for d in sizes] if start is None else start
    return SimulatedCluster(name, start, n, lr=lr, **options)


# ---- top-k and random-k ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "d", "ratio"), [(3, 67, 0.3), (5, 3, 0.01)])
def test_top_k_averages_the_largest_coordinates_of_each_worker(n, d, ratio):
    workers, e = cluster("top-k", n, [d], ratio=ratio), torch.zeros(n, d, dtype=torch.float64)
    for t in range(4):
        p = grid(n, d, seed=t) + e
        sent = torch.stack([largest_of(row, kept(ratio, d)) for row in p])
        got = moved(workers, p - e)
        e = p - sent
        torch.testing.assert_close(got, sent.mean(0), rtol=0, atol=1e-12)
        torch.testing.assert_close(held(workers, "worker_error"), e, rtol=0, atol=1e-12)


# ---- gTop-k ----------------------------------------------------------------------------------------------------------------

FORMS = ("tree", "doubling")


def reference(p, k):
    """The rule on dense vectors: (sum that comes out, what each merge dropped, by merging rank)."""
    n = len(p)
    have = [largest_of(row, k) for row in p]
    dropped = torch.zeros_like(p)
    distance = 1
    while distance < n:
        for rank in range(0, n - distance, 2 * distance):
            both = have[rank] + have[rank + distance]
            have[rank] = largest_of(both, k)
            dropped[rank] += both - have[rank]
        distance *= 2
    return have[0], dropped


@each("n", [2, 5, 8])
def test_a_tree_of_merges_written_down_gives_the_same(n):
    d, ratio = 120, 0.1
    k = kept(ratio, d)
    workers, e = cluster("gtop-k", n, [d], ratio=ratio), torch.zeros(n, d, dtype=torch.float64)
    for t in range(3):
        g = grid(n, d, seed=t)
        total, dropped = reference(g + e, k)
        e = g + e - torch.stack([largest_of(row, k) for row in g + e]) + dropped
        got = moved(workers, g)
        torch.testing.assert_close(got, total / n, rtol=0, atol=1e-6)
        torch.testing.assert_close(held(workers, "worker_error"), e, rtol=0, atol=1e-12)


def test_by_the_published_mask_a_worker_keeps_what_did_not_come_out():
    """k = 1: worker 0's 3 at place 0 loses to worker 1's 4 at place 1; by either rule 3 is sent again later."""
    for put_back in ("mask", "merger"):
        workers = cluster("gtop-k", 2, [10], ratio=0.1, put_back=put_back)
        got = moved(workers, torch.stack([3.0 * torch.eye(10)[0], 4.0 * torch.eye(10)[1]]).double())
        assert got.tolist() == [0, 2.0, *[0] * 8]
        assert held(workers, "worker_error").tolist() == [[3.0, *[0] * 9], [0] * 10]


def folded(n, form, message):
    accounted = [[] for _ in range(n)]

    def combine(rank):
        def both(mine, came, accounts):
            if accounts:
                accounted[rank].append((int(mine[0]), int(came[0])))
            return mine + came

        return both

    exchanges = [folds.fold(Group("world", r, n), message(r), combine(r), "x", form) for r in range(n)]
    return *run(exchanges), accounted


@each("form", FORMS)
@each("n", (1, 2, 3, 6, 8, 13))
def test_every_rank_is_counted_once_and_all_have_the_result_at_the_bytes_of_the_formula(n, form):
    results, ledgers, accounted = folded(n, form, lambda rank: torch.tensor([1 << rank] * 3))
    assert [int(r[0]) for r in results] == [(1 << n) - 1] * n
    pairs = [pair for own in accounted for pair in own]
    assert len(pairs) == len({frozenset(pair) for pair in pairs}) == n - 1
    assert all(a & b == 0 for a, b in pairs)
    sent = [sum(row["wire_bytes"] for row in ledger.rows()) for ledger in ledgers]
    core = 1 << (n.bit_length() - 1)
    messages = 2 * (n - 1) if form == "tree" else 2 * (n - core) + core * (core.bit_length() - 1)
    assert sum(sent) == 24 * messages
    most = (n - 1).bit_length() if form == "tree" else core.bit_length() - 1 + (n > core)
    assert max(sent) == 24 * most


# ---- Deep Gradient Compression ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nesterov", "granularity", "clip"),
    [(True, "tensor", 0.0), (False, "model", 3.0), (False, "tensor", 3.0)],
)
def test_the_rule_written_down_gives_the_same(nesterov, granularity, clip):
    n, sizes, ratio, m, decay, lr = 3, [40, 7, 60], 0.1, 0.9, 0.01, 0.1
    d = sum(sizes)
    cuts = sizes if granularity == "tensor" else [d]
    workers = cluster(
        "dgc",
        n,
        sizes,
        start=[grid(k, seed=100 + i) for i, k in enumerate(sizes)],
        lr=lr,
        ratio=ratio,
        nesterov=nesterov,
        granularity=granularity,
        local_clip=clip,
        momentum=m,
        weight_decay=decay,
    )
    x = torch.cat(workers.parameters(0)).clone()
    u, v = torch.zeros(n, d, dtype=torch.float64), torch.zeros(n, d, dtype=torch.float64)
    for t in range(5):
        g = grid(n, d, seed=t)
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
        moved(workers, given)
        torch.testing.assert_close(torch.cat(workers.parameters(0)), x, rtol=0, atol=1e-9)
        torch.testing.assert_close(held(workers, "momentum"), u, rtol=0, atol=1e-9)
        torch.testing.assert_close(held(workers, "velocity"), v, rtol=0, atol=1e-9)


def test_the_warm_up_falls_as_in_the_paper():
    method = DGC(ratio=0.001, warmup_steps=8, warmup_stages=4)
    shares = [method.share(t) for t in range(10)]
    paper = [0.25119] * 2 + [0.0631] * 2 + [0.01585] * 2 + [0.00398] * 2 + [0.001] * 2
    assert shares == pytest.approx(paper, rel=1e-3)
    assert len(method.timed) == 5
    assert all(method.steadily(kind).warmup_steps == 0 for kind in method.timed)
    workers = cluster("dgc", 2, [1000], lr=0.1, ratio=0.001, warmup_steps=4)
    for t in range(5):
        moved(workers, grid(2, 1000, seed=t))
        assert workers.kind == f"ratio-{DGC(ratio=0.001, warmup_steps=4).share(t):.4g}"
