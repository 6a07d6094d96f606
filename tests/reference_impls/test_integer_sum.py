"""Sums in two phases: any width, exact at the extreme point for every number of ranks, and as many bytes as said."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from reference_impls.collectives import Group
from reference_impls.errors import UnsupportedError
from reference_impls.reducers import integer_sum as sums
from tests.reference_impls.exchanges import run
from tests.support import each

LENGTHS = (1, 2, 9, 31, 32, 67, 257)


def codes_of(n: int, d: int, limit: int, seed: int = 0) -> Tensor:
    """[n, d] in -limit .. limit; all ranks agree on the extremes somewhere."""
    codes = torch.randint(-limit, limit + 1, (n, d), generator=torch.Generator().manual_seed(seed))
    codes[:, 0] = limit
    codes[:, d // 2] = -limit
    return codes


def everywhere(codes: Tensor, bits: int, limit: int, form: sums.Form) -> tuple[list[Tensor], float]:
    narrow = torch.int8 if limit < 128 else torch.int16 if limit < 1 << 15 else torch.int32
    found, ledgers = run(
        [
            sums.integer_sum(Group("world", rank, len(codes)), row.to(narrow), bits, limit, "votes", form)
            for rank, row in enumerate(codes)
        ]
    )
    return found, sum(row["wire_bytes"] for row in ledgers[0].rows())


@each("n", [1, 2, 3, 5, 8])
@each("bits", range(2, 17))
def test_any_width_in_two_phases_is_the_sum_and_costs_what_is_said(bits: int, n: int) -> None:
    limit = ((1 << (bits - 1)) - 1) // n
    if limit < 1:
        with pytest.raises(UnsupportedError, match="more bits"):
            everywhere(torch.zeros(n, 4, dtype=torch.int64), bits, 1, "two-phase")
        return
    for d in LENGTHS:
        codes = codes_of(n, d, limit, seed=bits)
        found, sent = everywhere(codes, bits, limit, "two-phase")
        for total in found:
            assert total.dtype == torch.int32
            assert total.tolist() == codes.sum(0).tolist()
        up, down = math.ceil(math.log2(2 * limit + 1)), math.ceil(math.log2(2 * n * limit + 1))
        assert up <= down <= bits
        assert down == bits  # the sum needs what was paid for, a rank's own codes do not
        piece = math.ceil(d / n)
        assert sent == pytest.approx((n - 1) * (math.ceil(up * piece / 8) + math.ceil(down * piece / 8)))
        assert sent == pytest.approx(sums.bytes_sent(d, n, bits, limit, "two-phase"))


@each(("bits", "n"), [(4, 7), (8, 16), (8, 64), (8, 127), (16, 100)])
def test_both_forms_agree_where_all_ranks_send_their_most(bits: int, n: int) -> None:
    limit = ((1 << (bits - 1)) - 1) // n
    codes = codes_of(n, 67, limit)
    one, _ = everywhere(codes, bits, limit, "all-reduce")
    other, _ = everywhere(codes, bits, limit, "two-phase")
    assert one[0].tolist() == other[n - 1].tolist() == codes.sum(0).tolist()


@each("n", [1, 2, 3, 8])
@each("limit", [1, 7, 127, 32767])
def test_the_sign_of_a_sum_takes_two_bits_down(n: int, limit: int) -> None:
    for d in LENGTHS:
        codes = codes_of(n, d, limit, seed=limit)
        if d > 2:
            codes[:, 1] = 0
        found, ledgers = run(
            [
                sums.sign_of_sum(Group("world", rank, n), row.to(torch.int16), limit, "votes")
                for rank, row in enumerate(codes)
            ]
        )
        for signs in found:
            assert signs.tolist() == codes.sum(0).sign().tolist()
        up, piece = math.ceil(math.log2(2 * limit + 1)), math.ceil(d / n)
        for ledger in ledgers:
            sent = sum(row["wire_bytes"] for row in ledger.rows())
            assert sent == pytest.approx((n - 1) * (math.ceil(up * piece / 8) + math.ceil(2 * piece / 8)))
            assert sent == pytest.approx(sums.sign_bytes_sent(d, n, limit))
