"""Global-QSGD on simulated workers: unbiased, within its variance, equal on all ranks, and of the size that it claims."""

from __future__ import annotations

import math
from functools import partial

import torch

from reference_impls.algorithms.global_qsgd import head_room
from reference_impls.compressors import dithering
from tests.reference_impls import averages
from tests.reference_impls.averages import normal
from tests.support import each

RANKS = (1, 3, 4)
STANDARD = {"dithering": "standard"}
TREE = {"dithering": "exponential", "form": "tree"}
HALVING = {"dithering": "exponential", "form": "halving-doubling"}


mean = partial(averages.mean, "global-qsgd")


def forms(n):
    return [STANDARD, TREE, HALVING] if n & (n - 1) == 0 else [STANDARD, TREE]


CASES = [(n, options) for n in RANKS for options in forms(n)]


@each(("n", "norm", "d"), [(4, "linf", 4000), (2, "l2", 50), (8, "l2", 4000)])
def test_standard_variance(n, norm, d):
    x = normal(n, d, seed=n)
    s = dithering.levels(8, n)
    error = sum(float((mean(x, norm=norm, seed=k) - x.mean(0)).square().sum()) for k in range(8)) / 8
    if norm == "linf":
        bound = d * float(x.abs().max()) ** 2 / (4 * n * s**2)
    else:
        theta = min(n * d / s**2, math.sqrt(n * d) / s) / n
        bound = theta / n * float(x.square().sum())
    assert bound / 100 < error <= bound


@each(("n", "options"), [*CASES, (16, TREE), (16, HALVING), (16, STANDARD), (64, STANDARD)])
def test_all_ranks_at_the_maximum_do_not_overflow(n, options):
    x = torch.tensor([1.7, -1.7, 0.0, 1.7] * 3).expand(n, 12).clone()
    exact = n & (n - 1) == 0 or options is STANDARD
    got = mean(x, **options)
    if exact:  # integer sums are; so are powers of two that meet only their like
        assert torch.allclose(got, x[0], rtol=1e-6)
    else:
        assert torch.equal(got.sign(), x[0].sign())
        assert float((got / 1.7).abs().max()) <= 2 ** head_room(n) / n * 1.000001


@each(
    ("n", "bits", "scaling"),
    [(2, 5, {}), (3, 11, {"norm": "l2"}), (3, 8, {"scale": "block", "block_size": 9}), (8, 16, {})],
)
def test_codes_sum_to_the_same_bits_however_they_travel(n, bits, scaling):
    """All-reduce, two phases, the non-zero codes alone: the same levels, so the same result."""
    x = normal(n, 100, seed=bits)
    packed = mean(x, bits=bits, form="two-phase", **scaling)
    assert torch.equal(packed, mean(x, bits=bits, **scaling))
    assert torch.equal(packed, mean(x, bits=bits, sparse=True, **scaling))


@each("n", [1, 3])
def test_the_sparse_branch_sends_as_much_as_the_fullest_rank_has(n):
    d, bits = 300, 6
    s = dithering.levels(bits, n)
    x = torch.zeros(n, d)
    for rank in range(n):  # multiples of the step: nothing is random
        x[rank, : 5 + 3 * rank] = torch.arange(1, 6 + 3 * rank) % s + 1.0
    x[0, 0] = s
    most = 5 + 3 * (n - 1)
    entries = math.ceil(9 * most / 8) + math.ceil((2 * s).bit_length() * most / 8)
    cluster = averages.stepped("global-qsgd", x, bits=bits, sparse=True)
    for rank in range(n):
        found = averages.sent(cluster, rank)
        assert found["codes-count"] == (1, 4, 2 * (n - 1) * 4 / n)
        assert found["codes"] == (1, entries, (n - 1) * entries)
    assert torch.allclose(mean(x, bits=bits, sparse=True), x.mean(0), rtol=1e-6)


def test_exponential_error_does_not_fall_with_the_number_of_ranks():
    """Equal gradients: the last addition rounds the whole sum. The spec's simulation found 0.081 from 4 ranks on."""
    for n in (4, 16):
        x = normal(1, 4000).expand(n, 4000).clone()
        error = float((mean(x, **TREE) - x[0]).square().sum() / x[0].square().sum())
        assert 0.06 < error < 0.1
