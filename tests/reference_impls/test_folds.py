"""Folds: every rank's message combined once, for any number of ranks, in the rounds and bytes that are claimed."""

from __future__ import annotations

import pytest
import torch

from reference_impls.collectives import Group
from reference_impls.reducers import folds
from tests.reference_impls.exchanges import run
from tests.support import each

FORMS = ("tree", "doubling")


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
@each("n", range(1, 20))
def test_every_rank_is_counted_once_and_all_have_the_result(n, form):
    results, _, accounted = folded(n, form)
    assert [int(r) for r in results] == [(1 << n) - 1] * n
    pairs = [pair for own in accounted for pair in own]
    assert len(pairs) == n - 1
    assert len({frozenset(pair) for pair in pairs}) == n - 1
    assert all(a & b == 0 for a, b in pairs)


@each("form", FORMS)
@each("n", range(1, 20))
def test_bytes_and_messages_are_those_of_the_formula(n, form):
    _, ledgers, _ = folded(n, form, lambda rank: torch.ones(3))
    sent = [sum(row["wire_bytes"] for row in ledger.rows()) for ledger in ledgers]
    assert sum(sent) / n == pytest.approx(folds.wire_bytes(12, n, form))
    assert max(sent) == 12 * folds.most_messages(n, form)


@each("form", FORMS)
@each("n", [2, 3, 5, 8, 13])
def test_float_sums_have_the_same_bits_on_all_ranks(n, form):
    rows = torch.randn(n, 100, generator=torch.Generator().manual_seed(n))
    results, _ = run(
        [
            folds.fold(Group("world", r, n), rows[r].clone(), lambda a, b, _: a + b, "x", form)
            for r in range(n)
        ]
    )
    assert all(torch.equal(results[0], other) for other in results)
    torch.testing.assert_close(results[0], rows.sum(0), rtol=0, atol=1e-5)


def test_both_forms_pair_alike_for_powers_of_two():
    for n in (2, 4, 8, 16):
        rows = torch.randn(n, 50, generator=torch.Generator().manual_seed(n))
        tree, doubling = (
            run(
                [
                    folds.fold(Group("world", r, n), rows[r].clone(), lambda a, b, _: a + b, "x", form)
                    for r in range(n)
                ]
            )[0][0]
            for form in FORMS
        )
        assert torch.equal(tree, doubling)
