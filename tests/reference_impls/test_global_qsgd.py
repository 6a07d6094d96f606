"""Global-QSGD on simulated workers: unbiased, within its variance, equal on all ranks, and of the size that it claims."""

from __future__ import annotations

import math

import pytest
import torch

from reference_impls import SimulatedCluster
from reference_impls.algorithms.global_qsgd import head_room
from reference_impls.codecs import dithering
from reference_impls.collectives import Group
from reference_impls.drivers.engine import Engine
from reference_impls.drivers.ledger import Ledger, Ledgers
from reference_impls.drivers.lockstep import Lockstep
from reference_impls.errors import UnsupportedError
from reference_impls.reducers.integer_sum import integer_sum
from tests.support import each

RANKS = (1, 2, 3, 4, 5, 8)
STANDARD = {"dithering": "standard"}
TREE = {"dithering": "exponential", "form": "tree"}
HALVING = {"dithering": "exponential", "form": "halving-doubling"}
AUTO = {"dithering": "exponential"}


def cluster(rows, sizes=None, *, seed=0, **options):
    """A cluster that has taken one step of SGD with lr 1 from zero: its parameters are minus the mean."""
    sizes = sizes or [rows.shape[-1]]
    workers = SimulatedCluster(
        "global-qsgd", [torch.zeros(k) for k in sizes], world_size=len(rows), lr=1.0, seed=seed, **options
    )
    workers.step([list(row.split(sizes)) for row in rows])
    return workers


def means(rows, sizes=None, **options):
    """[n, d]: the mean as each rank sees it."""
    workers = cluster(rows, sizes, **options)
    return -torch.stack([torch.cat(workers.parameters(rank)) for rank in range(len(rows))])


def mean(rows, sizes=None, **options):
    """[d], after a check that all ranks see the same bits."""
    seen = means(rows, sizes, **options)
    assert all(torch.equal(seen[0].view(torch.int32), other.view(torch.int32)) for other in seen[1:])
    return seen[0]


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def forms(n):
    return [STANDARD, TREE, HALVING] if n & (n - 1) == 0 else [STANDARD, TREE]


CASES = [(n, options) for n in RANKS for options in forms(n)]
NAMES = [f"{n}-{'-'.join(options.values())}" for n, options in CASES]


@each(("n", "options"), CASES)
def test_unbiased(n, options):
    """Each column holds the same n numbers; the mean over many columns is within five standard errors of their mean."""
    d = 20_000
    values = torch.tensor([1.0, -0.3, 0.77, 0.05, -0.6, 0.011, 0.4, -0.93])[:n]
    got = mean(values[:, None].expand(n, d).clone(), **options).double()
    truth = float(values.double().mean())
    assert float(got.std()) > 0 or n == 1
    assert abs(float(got.mean()) - truth) <= 5 * float(got.std()) / math.sqrt(d) + 1e-6


@each("n", [2, 4, 8])
@each(("norm", "d"), [("linf", 4000), ("l2", 50), ("l2", 4000)])
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


@each(("n", "form"), [(2, TREE), (3, TREE), (4, TREE), (8, TREE), (4, HALVING), (8, HALVING)])
@each("equal", [False, True])
def test_exponential_variance(n, form, equal):
    """The derived worst case: theta = sum over layers of (9/4)^l / (8 n); error <= theta / n * |X|^2."""
    d = 4000
    x = normal(1, d).expand(n, d).clone() if equal else normal(n, d, seed=n)
    error = sum(float((mean(x, seed=k, **form) - x.mean(0)).square().sum()) for k in range(4)) / 4
    theta = sum((9 / 4) ** layer for layer in range(head_room(n) + 1)) / (8 * n)
    assert error <= theta / n * float(x.square().sum())


def test_exponential_error_does_not_fall_with_the_number_of_ranks():
    """Equal gradients: the last addition rounds the whole sum. The spec's simulation found 0.081 from 4 ranks on."""
    for n in (4, 16):
        x = normal(1, 4000).expand(n, 4000).clone()
        error = float((mean(x, **TREE) - x[0]).square().sum() / x[0].square().sum())
        assert 0.06 < error < 0.1


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


@each("n", [2, 4, 8])
@each("form", [TREE, HALVING])
def test_exponential_is_exact_on_powers_of_two(n, form):
    x = torch.tensor([sign * 2.0**-e for e in range(20) for sign in (1, -1)])
    assert torch.equal(mean(x.expand(n, -1).clone(), **form), x)
    x[1::2] *= -1  # all positive; one half of the ranks holds minus them: opposite codes of distance 0 cancel
    signs = torch.tensor([1.0, -1.0]).repeat(n // 2)
    assert mean(signs[:, None] * x, **form).tolist() == [0.0] * len(x)


def test_the_worked_example_with_two_of_three_levels_in_use():
    """n = 3 and 4 bits make s = 2: 3, -1, 0 give codes 2, -1 or 0 (two thirds to one), 0; the mean is 2/3."""
    draws = 20_000
    got = mean(torch.tensor([3.0, -1.0, 0.0])[:, None].expand(3, draws).clone(), bits=4)
    low, high = (torch.tensor(v) * torch.tensor(3.0) / 6 for v in (1.0, 2.0))
    assert set(got.tolist()) == {low.item(), high.item()}
    assert abs(float((got == low).double().mean()) - 2 / 3) < 5 * math.sqrt(2 / 9 / draws)


@each("bits", [4, 8, 16])
def test_more_bits_err_less(bits):
    n, d = 4, 4000
    x = normal(n, d)
    s = dithering.levels(bits, n)
    error = float((mean(x, bits=bits) - x.mean(0)).square().mean())
    expected = float(x.abs().max()) ** 2 / (n * s**2) / 6  # mean of f (1 - f) over fractions f
    assert 0.5 * expected < error < 1.5 * expected


@each(("n", "options"), CASES)
@each("d", [1, 2, 3, 7, 37])
def test_lengths_that_divide_nothing(n, options, d):
    x = normal(n, d, seed=d)
    got = mean(x, **options)
    assert got.shape == (d,)
    assert float((got - x.mean(0)).abs().max()) <= 2 * float(x.abs().max())
    assert mean(torch.zeros(n, d), **options).tolist() == [0.0] * d


@each("n", [1, 2, 5, 8])
@each("options", [STANDARD, AUTO, {"bits": 16}])
@each("bad", [math.nan, math.inf])
@each("norm", ["linf", "l2"])
def test_what_is_not_finite_on_one_rank_is_so_everywhere(n, options, bad, norm):
    x = normal(n, 30)
    x[n - 1, 17] = bad
    assert not means(x, norm=norm, **options).isfinite().any()
    seen = means(x, [10, 15, 5], norm=norm, scale="tensor", **options)
    assert not seen[:, 10:25].isfinite().any()
    assert seen[:, :10].isfinite().all()
    assert seen[:, 25:].isfinite().all()


@each("options", [STANDARD, AUTO])
@each("norm", ["linf", "l2"])
def test_scales_by_tensor_and_by_block(options, norm):
    """A tensor or block that is a million times smaller keeps its relative precision, and only then."""
    x = normal(4, 64)
    x[:, 32:] *= 1e-6
    truth = x.mean(0)[32:]

    def relative(scale):
        got = mean(x, [32, 32], norm=norm, scale=scale, block_size=32, **options)[32:]
        return float((got - truth).square().sum() / truth.square().sum())

    assert relative("tensor") < 1
    assert relative("block") < 1
    if options is STANDARD:
        assert relative("bucket") == 1 or relative("bucket") > 100


@each("options", [STANDARD, TREE])
def test_with_a_scale_by_tensor_buckets_change_nothing(options):
    x = normal(3, 90)
    whole = mean(x, [40, 20, 30], scale="tensor", **options)
    assert torch.equal(mean(x, [40, 20, 30], scale="tensor", bucket_bytes=100, **options), whole)


def test_draws_differ_by_rank_step_and_seed():
    x = torch.full((1, 2000), 0.3)
    x[:, 0] = 1.0
    assert not torch.equal(mean(x), mean(x, seed=1))
    workers = cluster(x)
    first = torch.cat(workers.parameters(0)).clone()
    workers.step([[x[0]]])
    assert not torch.equal(torch.cat(workers.parameters(0)) - first, first)
    two = x.expand(2, -1).clone()
    assert len(set(mean(two)[1:].tolist())) == 3  # 0, 1 or 2 of two independent ranks round up


def test_permuted_ranks_agree_where_nothing_is_random():
    x = torch.randint(-31, 32, (4, 50), generator=torch.Generator().manual_seed(0)).float()
    x[0, 0] = 31
    assert torch.equal(mean(x), mean(x[[2, 0, 3, 1]]))


def sent(workers):
    """Per rank: {stage: (calls, payload bytes, bytes sent)}."""
    table = [{} for _ in range(workers.world_size)]
    for row in workers.ledger.totals():
        stage = row["stage"].removeprefix("gradient-")
        table[row["rank"]][stage] = (row["calls"], row["payload_bytes"], row["wire_bytes"])
    return table


def ring(n, payload):
    """Bytes that a rank sends in the best all-reduce."""
    return 2 * (n - 1) * payload / n


@each("n", RANKS)
@each("d", [1, 64, 101])
def test_bytes_of_standard_dithering(n, d):
    x = normal(n, d)
    for bits, payload in ((4, math.ceil(d / 2)), (8, d)):
        if bits == 4 and n > 7:
            continue
        for rank in sent(cluster(x, bits=bits)):
            assert rank == {"scale": (1, 4, ring(n, 4)), "codes": (1, payload, ring(n, payload))}
    piece = 2 * math.ceil(d / n)
    for rank in sent(cluster(x, bits=16, norm="l2")):
        assert rank == {
            "scale": (1, 8, ring(n, 8)),
            "codes-up": (1, n * piece, (n - 1) * piece),
            "codes-down": (1, piece, (n - 1) * piece),
        }


@each("n", RANKS)
@each("d", [1, 64, 101])
def test_bytes_of_exponential_dithering(n, d):
    x = normal(n, d)
    depth = math.ceil(math.log2(n))
    table = sent(cluster(x, **TREE))
    up = [rank.get("up", (0, 0, 0)) for rank in table]
    down = [rank.get("down", (0, 0, 0)) for rank in table]
    assert [bytes_ for _, bytes_, _ in up] == [d] * (n - 1) + [0]  # every rank once, but not the root
    assert sum(bytes_ for _, bytes_, _ in down) == (n - 1) * d
    assert {calls for calls, _, _ in (*up, *down)} == {depth}
    if n & (n - 1) == 0:
        piece = math.ceil(d / n)
        for rank in sent(cluster(x, **HALVING)):
            assert sum(rank.get(stage, (0, 0, 0))[2] for stage in ("halve", "double")) == 2 * (n - 1) * piece
        assert sent(cluster(x, **AUTO)) == sent(cluster(x, **HALVING))
    else:
        assert sent(cluster(x, **AUTO)) == table


@each(("per", "scales"), [("bucket", 1), ("tensor", 3), ("block", 7)])
def test_bytes_of_scales(per, scales):
    table = sent(cluster(normal(2, 100), [50, 30, 20], scale=per, block_size=16))
    assert table[0]["scale"] == (1, 4 * scales, 4 * scales)


def test_what_is_refused():
    x = normal(8, 10)
    with pytest.raises(UnsupportedError, match="more bits"):
        cluster(x, bits=4)
    with pytest.raises(UnsupportedError, match="two-phase"):
        cluster(x, bits=5, form="all-reduce")
    for bits in (1, 17):
        with pytest.raises(UnsupportedError, match="2 to 16"):
            cluster(x, bits=bits)
    with pytest.raises(UnsupportedError, match="hardly ever zero"):
        cluster(x, sparse=True, **AUTO)
    with pytest.raises(UnsupportedError, match="form must be one of"):
        cluster(x, form="tree")
    with pytest.raises(UnsupportedError, match="takes bits of 8"):
        cluster(x, bits=16, **AUTO)
    with pytest.raises(UnsupportedError, match="tree"):
        cluster(x[:3], **HALVING)
    with pytest.raises(UnsupportedError, match="block_size"):
        cluster(x, block_size=0)
    for field in ("dithering", "norm", "scale", "form"):
        with pytest.raises(UnsupportedError, match=f"{field} must be one of"):
            cluster(x, **{field: "nonsense"})


@each("n", [1, 2, 3, 8])
@each("bits", [4, 5, 8, 11, 16])
@each("scaling", [{}, {"norm": "l2"}, {"scale": "block", "block_size": 9}])
def test_codes_sum_to_the_same_bits_however_they_travel(n, bits, scaling):
    """All-reduce, two phases, the non-zero codes alone: the same levels, so the same result."""
    if n > 2 ** (bits - 1) - 1:
        return
    x = normal(n, 100, seed=bits)
    packed = mean(x, bits=bits, form="two-phase", **scaling)
    assert torch.equal(packed, mean(x, bits=bits, **scaling))
    assert torch.equal(packed, mean(x, bits=bits, sparse=True, **scaling))


@each("n", [1, 2, 3, 8])
def test_the_sparse_branch_sends_as_much_as_the_fullest_rank_has(n):
    d, bits = 300, 6
    s = dithering.levels(bits, n)
    x = torch.zeros(n, d)
    for rank in range(n):  # multiples of the step: nothing is random
        x[rank, : 5 + 3 * rank] = torch.arange(1, 6 + 3 * rank) % s + 1.0
    x[0, 0] = s
    most = 5 + 3 * (n - 1)
    entries = math.ceil(9 * most / 8) + math.ceil((2 * s).bit_length() * most / 8)
    for rank in sent(cluster(x, bits=bits, sparse=True)):
        assert rank["codes-count"] == (1, 4, ring(n, 4))
        assert rank["codes"] == (1, entries, (n - 1) * entries)
    assert torch.allclose(mean(x, bits=bits, sparse=True), x.mean(0), rtol=1e-6)


@each("value", [0.0, math.nan, math.inf])
def test_the_sparse_branch_of_nothing_and_of_what_is_not_finite(value):
    got = means(torch.full((3, 20), value), sparse=True)
    assert bool((got == 0).all()) if value == 0 else not bool(got.isfinite().any())
    assert "codes" not in sent(cluster(torch.zeros(3, 20), sparse=True))[0]


@each("bits", range(2, 17))
def test_levels_are_the_most_that_the_bits_hold(bits):
    """A sum of n codes of s levels needs 1 + ceil(log2(n s + 1)) bits: s is the last that needs no more than b."""
    for n in (1, 2, 3, 4, 7, 8, 64, 127):
        if n >= 2 ** (bits - 1):
            continue
        s = dithering.levels(bits, n)
        assert 1 + math.ceil(math.log2(n * s + 1)) <= bits < 1 + math.ceil(math.log2(n * (s + 1) + 1))


def test_iterations_lost_to_variance_are_bounded_by_one_plus_theta_n():
    """E|G|^2 <= |mean|^2 + theta / n |X|^2, so equal gradients (|X|^2 = n |mean|^2) give (1 + theta) |mean|^2."""
    n, d = 4, 400
    x = normal(1, d).expand(n, d).clone()
    s = dithering.levels(8, n)
    theta = min(n * d / s**2, math.sqrt(n * d) / s) / n
    second = sum(float(mean(x, norm="l2", seed=k).square().sum()) for k in range(20)) / 20
    plain = float(x[0].square().sum())
    assert plain < second <= (1 + theta) * plain


def run(n, make):
    """One exchange a rank over simulated ranks -> (results, ledger rows)."""
    ledgers = [Ledger(rank) for rank in range(n)]
    results = Engine(Lockstep(n), ledgers).run([make(Group("world", rank, n)) for rank in range(n)])
    return results, Ledgers(ledgers).totals()


@each("n", RANKS)
@each("bits", [4, 8, 16, 32])
@each("d", [1, 2, 9, 67])
def test_integer_sum(n, bits, d):
    limit = (2 ** (bits - 1) - 1) // n
    if limit < 1:
        return
    codes = torch.randint(-limit, limit + 1, (n, d), generator=torch.Generator().manual_seed(n * d + bits))
    codes[:, 0] = limit
    codes[:, d // 2] = -limit
    narrow = {4: torch.int8, 8: torch.int8, 16: torch.int16, 32: torch.int32}[bits]
    results, rows = run(
        n, lambda group: integer_sum(group, codes[group.rank].to(narrow), bits, limit, "votes")
    )
    for total in results:
        assert total.dtype == narrow
        assert total.tolist() == codes.sum(0).tolist()
    padded = n * math.ceil(d / n)
    payload = {4: math.ceil(d / 2), 8: d, 16: 2 * padded, 32: 4 * d}[bits]
    assert sum(row["wire_bytes"] for row in rows if row["rank"] == 0) == pytest.approx(ring(n, payload))


@each(("bits", "limit", "n"), [(4, 1, 8), (4, 2, 4), (8, 64, 2), (8, 0, 2), (16, 16384, 2), (12, 1, 2)])
def test_integer_sum_without_head_room_is_refused(bits, limit, n):
    codes = torch.zeros(4, dtype=torch.int8)
    with pytest.raises(UnsupportedError):
        run(n, lambda group: integer_sum(group, codes.clone(), bits, limit, "votes"))


@each("size", [1e-30, 1e25])
@each("per", ["bucket", "tensor", "block"])
def test_squares_of_a_two_norm_neither_over_nor_underflow(size, per):
    x = normal(2, 40) * size
    got = mean(x, norm="l2", scale=per, bits=16)
    assert float((got - x.mean(0)).abs().max()) < 1e-2 * size
