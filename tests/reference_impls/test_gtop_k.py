"""gTop-k: k entries on every edge, the exact answer where there is one, and nothing lost."""

from __future__ import annotations

import pytest
import torch

from reference_impls import SimulatedCluster
from reference_impls.algorithms.gtop_k import merge
from reference_impls.codecs.selection import kept
from reference_impls.codecs.sparse import TopK, unpack_pairs
from reference_impls.errors import UnsupportedError
from reference_impls.randomness import Key
from reference_impls.reducers import folds
from tests.support import each

FORMS = ("tree", "doubling")


def cluster(n, d, *, dtype=torch.float64, **options):
    return SimulatedCluster("gtop-k", [torch.zeros(d, dtype=dtype)], n, lr=1.0, **options)


def normal(*shape, seed=0):
    """Multiples of 1/1024: sums of a few are exact in float32."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (x * 1024).round() / 1024


def step(workers, rows):
    before = workers.parameters(0)[0].clone()
    workers.step([[row] for row in rows])
    return before - workers.parameters(0)[0]


def errors(workers, n):
    return torch.stack([workers.state(r, "worker_error")[0] for r in range(n)])


def largest_of(x, k):
    order = sorted(range(x.numel()), key=lambda i: (-abs(float(x[i])), i))[:k]
    out = torch.zeros_like(x)
    out[order] = x[order]
    return out


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


@each("n", [2, 3, 4, 5, 6, 7, 8])
def test_a_tree_of_merges_written_down_gives_the_same(n):
    d, ratio = 120, 0.1
    k = kept(ratio, d)
    workers, e = cluster(n, d, ratio=ratio), torch.zeros(n, d, dtype=torch.float64)
    for t in range(3):
        g = normal(n, d, seed=t)
        total, dropped = reference(g + e, k)
        e = g + e - torch.stack([largest_of(row, k) for row in g + e]) + dropped
        got = step(workers, g)
        torch.testing.assert_close(got, total / n, rtol=0, atol=1e-6)
        torch.testing.assert_close(errors(workers, n), e, rtol=0, atol=1e-12)


@each("form", FORMS)
@each("n", [2, 3, 5, 8])
def test_equal_supports_give_the_exact_top_k_of_the_sum(n, form):
    d, k = 200, 10
    g = torch.zeros(n, d, dtype=torch.float64)
    places = torch.randperm(d, generator=torch.Generator().manual_seed(n))[:k]
    g[:, places] = normal(n, k, seed=n) + 1
    workers = cluster(n, d, ratio=k / d, form=form)
    got = step(workers, g)
    torch.testing.assert_close(got, largest_of(g.sum(0), k) / n, rtol=0, atol=1e-6)
    assert errors(workers, n).abs().max() == 0


@each("form", FORMS)
@each("n", [2, 3, 4, 5, 7, 8])
def test_nothing_is_lost(n, form):
    """n answer + sum of errors after = sum of gradients + sum of errors before, element by element."""
    d = 300
    workers = cluster(n, d, ratio=0.05, form=form)
    for t in range(6):
        g, before = normal(n, d, seed=t), errors(workers, n).sum(0)
        got = step(workers, g)
        torch.testing.assert_close(n * got + errors(workers, n).sum(0), g.sum(0) + before, rtol=0, atol=1e-5)
        assert int((got != 0).sum()) <= kept(0.05, d)


@each("n", [2, 4, 8])
def test_both_forms_are_the_same_for_powers_of_two(n):
    a, b = (cluster(n, 500, ratio=0.02, form=form, dtype=torch.float32) for form in FORMS)
    for t in range(4):
        g = normal(n, 500, seed=t).float()
        assert torch.equal(step(a, g), step(b, g))
        torch.testing.assert_close(errors(a, n).sum(0), errors(b, n).sum(0))


@each("ratio", [1.0, 0.3, 0.01])
@each("d", [1, 2, 3, 40])
def test_short_vectors_and_many_workers(d, ratio):
    workers, g = cluster(9, d, ratio=ratio), normal(9, d)
    got = step(workers, g)
    if kept(ratio, d) == d:
        torch.testing.assert_close(got, g.mean(0), rtol=0, atol=1e-6)
    torch.testing.assert_close(got * 9 + errors(workers, 9).sum(0), g.sum(0), rtol=0, atol=1e-5)


def test_a_merge_is_the_same_from_both_sides_and_adds_up():
    d, k, codec = 100, 10, TopK(0.1)
    a, b = normal(2, d, seed=5).float()
    messages = []
    for x in (a, b):
        wire = torch.zeros(codec.wire_bytes(d), dtype=torch.uint8)
        codec.encode(x, Key.of(seed=0, step=0, stage="t"), wire)
        messages.append(wire)
    (one, left), (other, _) = merge(*messages, d, k), merge(*messages[::-1], d, k)
    assert torch.equal(one, other)
    places, values = unpack_pairs(one, d, k)
    total = torch.zeros(d).index_add(0, places, values).index_add(0, *left)
    expected = largest_of(a, k) + largest_of(b, k)
    torch.testing.assert_close(total, expected, rtol=0, atol=0)
    assert left[0].numel() == int((expected != 0).sum()) - k


@each("bad", [float("nan"), float("inf")])
@each("form", FORMS)
@each("rank", [0, 2, 4])
def test_what_is_not_finite_on_one_rank_shows_on_all(bad, form, rank):
    workers, g = cluster(5, 100, ratio=0.01, form=form), normal(5, 100) * 1e20
    g[rank, 42] = bad
    step(workers, g)
    assert all(not torch.isfinite(workers.parameters(r)[0][42]) for r in range(5))


@each("n", [2, 4, 8, 16])
def test_a_message_has_k_entries_on_every_edge(n):
    """Per worker log2 n messages of k places and values, whatever comes together; dense sums would grow to n k."""
    d, k = 4096, 40
    message = k * 12 // 8 + 4 * k
    for form in FORMS:
        workers = cluster(n, d, ratio=k / d, form=form)
        step(workers, normal(n, d))
        sent = [float(workers.ledger.frame(r)["wire_bytes"].sum()) for r in range(n)]
        assert max(sent) == message * (n.bit_length() - 1)
        assert sum(sent) / n == folds.wire_bytes(message, n, form)
        if form == "doubling":
            assert min(sent) == max(sent)


def test_impossible_options_are_refused():
    for options in ({"form": "ring"}, {"put_back": "all"}, {"ratio": 0}):
        with pytest.raises(UnsupportedError):
            cluster(2, 10, **options)


def test_by_the_published_mask_a_worker_keeps_what_did_not_come_out():
    """k = 1: worker 0's 3 at place 0 loses to worker 1's 4 at place 1; by either rule 3 is sent again later."""
    for put_back in ("mask", "merger"):
        workers = SimulatedCluster("gtop-k", [torch.zeros(10)], 2, lr=1.0, ratio=0.1, put_back=put_back)
        workers.step([[3.0 * torch.eye(10)[0]], [4.0 * torch.eye(10)[1]]])
        assert workers.parameters(0)[0].tolist() == [0, -2.0, *[0] * 8]
        errors = [workers.state(rank, "worker_error")[0].tolist() for rank in range(2)]
        assert errors == [[3.0, *[0] * 9], [0] * 10]
