"""Top-k and random-k on simulated workers: what is applied, what is kept, what theory says of both."""

from __future__ import annotations

import pytest
import torch

from reference_impls import SimulatedCluster
from reference_impls.compressors.sparse import kept


def cluster(name, n, sizes, *, dtype=torch.float64, seed=0, lr=1.0, **options):
    return SimulatedCluster(
        name, [torch.zeros(d, dtype=dtype) for d in sizes], n, lr=lr, seed=seed, **options
    )


def normal(*shape, seed=0, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def step(workers, rows, sizes=None):
    """One step on gradients [n, d]; minus the update, as rank 0 has it."""
    sizes = sizes or [rows.shape[-1]]
    before = torch.cat(workers.parameters(0)).clone()
    workers.step([list(row.split(sizes)) for row in rows])
    return before - torch.cat(workers.parameters(0))


def errors(workers, n):
    return torch.stack([torch.cat(workers.state(r, "worker_error")) for r in range(n)])


def without_the_rest(row, k):
    out = torch.zeros_like(row)
    places = row.abs().topk(k).indices
    out[places] = row[places]
    return out


@pytest.mark.parametrize(("n", "d", "ratio"), [(3, 67, 0.3), (5, 3, 0.01)])
def test_top_k_averages_the_largest_coordinates_of_each_worker(n, d, ratio):
    """Four steps against the rule written down; float32 numbers, so that messages lose nothing."""
    workers, e = cluster("top-k", n, [d], ratio=ratio), torch.zeros(n, d, dtype=torch.float64)
    for t in range(4):
        p = (normal(n, d, seed=t).float().double() * 1024).round() / 1024 + e
        sent = torch.stack([without_the_rest(row, kept(ratio, d)) for row in p])
        got = step(workers, p - e)
        e = p - sent
        torch.testing.assert_close(got, sent.mean(0), rtol=0, atol=1e-12)
        torch.testing.assert_close(errors(workers, n), e, rtol=0, atol=1e-12)


@pytest.mark.parametrize("d", [1, 100])
def test_random_k_draws_exactly_k_different_places_alike_on_all_ranks(d):
    seen = set()
    for s in range(20):
        workers = cluster("random-k", 3, [d], ratio=0.1, seed=s)
        got = step(workers, torch.ones(3, d, dtype=torch.float64))
        k = kept(0.1, d)
        assert int((got != 0).sum()) == k
        assert got.max() == pytest.approx(d / k)
        assert all(torch.equal(workers.parameters(0)[0], workers.parameters(r)[0]) for r in (1, 2))
        seen.add(tuple(got.nonzero().view(-1).tolist()))
    assert len(seen) == 1 if d == 1 else len(seen) > 4


def test_random_k_with_feedback_is_unscaled_and_loses_nothing():
    n, d = 3, 60
    workers = cluster("random-k", n, [d], ratio=0.1, error_feedback=True)
    applied, given = torch.zeros(d), torch.zeros(d, dtype=torch.float64)
    for t in range(30):
        g = normal(n, d, seed=t)
        p = g.mean(0) + errors(workers, n).mean(0)
        got = step(workers, g)
        sent = got != 0
        assert int(sent.sum()) == kept(0.1, d)
        torch.testing.assert_close(got[sent], p[sent], rtol=0, atol=1e-12)
        applied, given = applied + got, given + g.mean(0)
    torch.testing.assert_close(applied + errors(workers, n).mean(0), given, rtol=0, atol=1e-11)
