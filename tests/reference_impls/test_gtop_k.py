"""gTop-k: its tree of merges written down, and nothing lost; folds over any number of ranks."""

from __future__ import annotations

import torch

from reference_impls import SimulatedCluster
from reference_impls.aggregators import folds
from reference_impls.compressors.sparse import kept
from reference_impls.core.collectives import Group
from tests.reference_impls.exchanges import run
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


@each("n", [2, 5, 8])
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
@each("n", [2, 5, 8])
def test_nothing_is_lost(n, form):
    """n answer + sum of errors after = sum of gradients + sum of errors before, element by element."""
    d = 300
    workers = cluster(n, d, ratio=0.05, form=form)
    for t in range(6):
        g, before = normal(n, d, seed=t), errors(workers, n).sum(0)
        got = step(workers, g)
        torch.testing.assert_close(n * got + errors(workers, n).sum(0), g.sum(0) + before, rtol=0, atol=1e-5)
        assert int((got != 0).sum()) <= kept(0.05, d)


def test_by_the_published_mask_a_worker_keeps_what_did_not_come_out():
    """k = 1: worker 0's 3 at place 0 loses to worker 1's 4 at place 1; by either rule 3 is sent again later."""
    for put_back in ("mask", "merger"):
        workers = SimulatedCluster("gtop-k", [torch.zeros(10)], 2, lr=1.0, ratio=0.1, put_back=put_back)
        workers.step([[3.0 * torch.eye(10)[0]], [4.0 * torch.eye(10)[1]]])
        assert workers.parameters(0)[0].tolist() == [0, -2.0, *[0] * 8]
        errors = [workers.state(rank, "worker_error")[0].tolist() for rank in range(2)]
        assert errors == [[3.0, *[0] * 9], [0] * 10]


# ---- folds -----------------------------------------------------------------------------------------------------------------


def folded(n, form, message=lambda rank: torch.tensor([1 << rank])):
    accounted = [[] for _ in range(n)]

    def combine(rank):
        def both(mine, came, accounts):
            if accounts:
                accounted[rank].append((int(mine[0]), int(came[0])))
            return mine + came

        return both

    results, ledgers = run(
        [folds.fold(Group("world", r, n), message(r), combine(r), "x", form) for r in range(n)]
    )
    return results, ledgers, accounted


@each("form", FORMS)
@each("n", (1, 2, 3, 6, 8, 13))
def test_every_rank_is_counted_once_and_all_have_the_result(n, form):
    results, _, accounted = folded(n, form)
    assert [int(r) for r in results] == [(1 << n) - 1] * n
    pairs = [pair for own in accounted for pair in own]
    assert len(pairs) == n - 1
    assert len({frozenset(pair) for pair in pairs}) == n - 1
    assert all(a & b == 0 for a, b in pairs)


@each("form", FORMS)
@each("n", (1, 2, 3, 6, 8, 13))
def test_bytes_and_messages_are_those_of_the_formula(n, form):
    _, ledgers, _ = folded(n, form, lambda rank: torch.ones(3))
    sent = [sum(row["wire_bytes"] for row in ledger.rows()) for ledger in ledgers]
    core = 1 << (n.bit_length() - 1)
    messages = 2 * (n - 1) if form == "tree" else 2 * (n - core) + core * (core.bit_length() - 1)
    assert sum(sent) == 12 * messages
    most = (n - 1).bit_length() if form == "tree" else core.bit_length() - 1 + (n > core)
    assert max(sent) == 12 * most
