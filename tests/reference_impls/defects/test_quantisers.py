"""What published quantisers get wrong: each defective rule, written out, breaks an identity that ours holds."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from reference_impls import SimulatedCluster
from reference_impls.codecs import dithering, exponential, packed_integers
from reference_impls.codecs.codec import Codec
from reference_impls.codecs.geometric_levels import GeometricLevels
from reference_impls.codecs.min_max import MinMax
from reference_impls.codecs.natural import Natural
from reference_impls.codecs.uniform_levels import UniformLevels
from reference_impls.randomness import Key
from tests.reference_impls.averages import mean, normal, stepped

DRAWS = 4000


def key(rank: int = 0, stage: str = "defect") -> Key:
    return Key.of(seed=1, step=0, stage=stage, rank=rank)


def rounded(z: Tensor, rank: int) -> Tensor:
    """Stochastic rounding of magnitudes."""
    low = z.floor()
    return low + (key(rank).uniform(z.numel()) < z - low).to(z.dtype)


def there_and_back(codec: Codec, x: Tensor) -> Tensor:
    wire = torch.empty(codec.wire_bytes(x.numel()), dtype=torch.uint8)
    codec.encode(x, key(), wire)
    out = torch.empty_like(x)
    codec.decode(wire, out)
    return out


# ---- Global-QSGD's repository --------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [2, 4, 16, 64])
def test_127_over_n_rounded_up_overflows(n: int) -> None:
    """sr(127 / n) is ceil(127 / n) on all ranks at once with positive probability; n ceil(127 / n) = 128 wraps to -128."""
    codes = [rounded(torch.full((DRAWS,), 127 / n), rank).to(torch.int8) for rank in range(n)]
    total = sum(codes[1:], codes[0])  # as int8 adds
    assert n * math.ceil(127 / n) == 128
    lost = float((total < 0).double().mean())
    assert 0.2 < lost < 0.45
    ours = mean("global-qsgd", torch.ones(n, DRAWS))
    assert torch.allclose(ours, torch.ones(DRAWS), rtol=1e-6)


def test_dividing_by_n_before_rounding_costs_n_squared() -> None:
    """Their QSGD gathers, and could use all 127 levels; it uses 127 / n."""
    n, x = 8, normal(8, 2000)
    scale = x.abs().amax(1, keepdim=True)
    published = torch.stack([rounded(x[r].abs() / scale[r] * 127 / n, r) for r in range(n)])
    theirs = (published * x.sign() * scale / 127).sum(0)
    ours = mean("qsgd", x, levels=127, norm="linf", block_size=0)
    ratio = float((theirs - x.mean(0)).square().sum() / (ours - x.mean(0)).square().sum())
    assert 0.7 * n**2 < ratio < 1.4 * n**2
    labelled = mean("qsgd-published", x)
    same = float((labelled - x.mean(0)).square().sum() / (theirs - x.mean(0)).square().sum())
    assert 0.8 < same < 1.25


def test_a_zero_scale_gives_nan() -> None:
    x = torch.zeros(20)
    assert (x / x.abs().max()).isnan().all()
    for options in ({}, {"dithering": "exponential"}, {"norm": "l2"}, {"sparse": True}):
        assert mean("global-qsgd", torch.zeros(2, 20), **options).tolist() == [0.0] * 20


def test_four_bits_are_right_for_four_ranks_only() -> None:
    """Offset codes 0 .. 6 of 3 levels, summed in a nibble and divided by n at the last layer of the tree, clamped at 15.

    n = 2: no division happens; n = 8: sums beyond 15 are clamped before it.
    """

    def theirs(n: int) -> float:
        layers = int(math.log2(n))
        total = 3.0 + 3.0  # every rank holds the maximum
        for layer in range(1, layers + 1):
            total *= 2
            total = total / n if layer == layers and n > 2 else min(total, 15.0)
        return (total - 3) / 3

    assert theirs(4) == 1.0
    assert theirs(2) == 3.0
    assert theirs(8) == 0.25
    for n in (2, 4, 7):
        assert torch.allclose(mean("global-qsgd", torch.ones(n, 6), bits=4), torch.ones(6))


def test_head_room_of_a_tree_is_too_little_for_a_sequence() -> None:
    """L = log2 n doublings, added one after the other: the largest codes reach c = 0, which is the value zero."""
    n, one = 8, torch.ones(DRAWS)
    codes = []
    for rank in range(n):
        wire = torch.empty(DRAWS, dtype=torch.uint8)
        exponential.encode(one, torch.tensor(1.0), 3, key(rank), wire)
        codes.append(wire)
    total, lost = codes[0].clone(), torch.zeros(DRAWS, dtype=torch.bool)
    for rank in range(1, n):
        exponential.add(total, codes[rank], key(rank, "ring"), total)
        lost |= (total & 127) == 0
    assert float(lost.double().mean()) > 0.1
    for form in ("tree", "halving-doubling"):
        ours = mean("global-qsgd", torch.ones(n, 50), dithering="exponential", form=form)
        assert torch.equal(ours, torch.ones(50))


def test_replicas_that_reduce_in_their_own_order_diverge() -> None:
    """Their ring: every rank adds all codes itself, beginning with its own, with its own draws."""
    n, x = 4, normal(4, 500)
    scale = x.abs().max()
    codes = torch.empty(n, 500, dtype=torch.uint8)
    for rank in range(n):
        exponential.encode(x[rank], scale, 3, key(rank), codes[rank])
    seen = []
    for rank in range(n):
        total = codes[rank].clone()
        for distance in range(1, n):
            exponential.add(total, codes[(rank - distance) % n], key(rank, f"ring-{distance}"), total)
        seen.append(total)
    assert not torch.equal(seen[0], seen[1])
    mean("global-qsgd", x, dithering="exponential")  # asserts that all ranks see the same bits


# ---- GRACE, TernGrad, QSGD-MaxNorm, natural compression ----------------------------------------------------------


def test_a_block_of_zeros_gives_nan() -> None:
    """GRACE's QSGD divides by the norm of every bucket of 128."""
    x = torch.cat([normal(128), torch.zeros(128)]).view(2, 128)
    theirs = x.abs() / x.norm(dim=1, keepdim=True) * 127
    assert theirs[1].isnan().all()
    for codec in (UniformLevels(127, "l2", 128), GeometricLevels(7, "l2", 128), MinMax(4, 128)):
        back = there_and_back(codec, x.view(-1))
        assert back.isfinite().all()
        assert back[128:].tolist() == [0.0] * 128


def test_codes_of_a_few_bits_sent_in_whole_words() -> None:
    """GRACE sends one int8 a ternary code, others int64 payloads; shifting and summing uint8 makes int64 unasked."""
    codes = torch.zeros(1000, dtype=torch.uint8)
    assert (codes << torch.arange(1000)).dtype == codes.sum().dtype == torch.int64
    x = normal(2, 1000)
    for name, options, bits in (
        ("terngrad", {"form": "gather"}, 2),
        ("terngrad", {"form": "gather-base3"}, 1.6),
        ("qsgd", {"bits": 3, "block_size": 0}, 3),
        ("natural-compression", {"form": "gather"}, 9),
    ):
        rows = [r for r in stepped(name, x, **options).ledger.totals() if r["collective"] == "all-gather"]
        assert all(row["payload_bytes"] <= bits * 1000 / 8 + 5 for row in rows)
        assert len(rows) == 2


def test_ternary_codes_on_scales_of_their_own_do_not_add_up() -> None:
    """GRACE's TernGrad has a scale a worker: the integer sum, decoded on any one scale, is not the mean."""
    x = torch.stack([torch.full((DRAWS,), 1.0), torch.full((DRAWS,), 0.1)])
    own = [rounded(x[r].abs() / x[r].abs().max(), r) for r in (0, 1)]
    theirs = (own[0] + own[1]) * x[0].abs().max() / 2
    assert float(theirs.mean()) == pytest.approx(1.0)  # 0.55 is right
    ours = mean("terngrad", x)
    assert abs(float(ours.double().mean()) - 0.55) < 5 * 0.15 / math.sqrt(DRAWS)


@pytest.mark.parametrize("n", [2, 3, 8])
def test_seven_bits_and_two_ranks_overflow_int8(n: int) -> None:
    """QSGD-MaxNorm's code: s = 2^7 - 1, int8 because 7 < 8."""
    s = 2**7 - 1
    total = sum([torch.tensor(s, dtype=torch.int8)] * n, torch.tensor(0, dtype=torch.int8))
    assert int(total) != n * s
    ours = mean("qsgd-maxnorm", torch.ones(n, 5), bits=7)
    assert torch.allclose(ours, torch.ones(5))


def test_a_rate_that_the_first_residual_forgets() -> None:
    """GRACE's EF-signSGD: p = g at first and lr g + e later, residuals in those units, the sum of messages divided by lr.

    So after two steps what was applied and what is kept do not add up to what was to be applied, lr sum of mean g.
    """
    lr, n, g = 0.1, 2, normal(2, 2, 50)  # g: [step, rank, d]

    def message(p: Tensor) -> Tensor:
        return p.sign() * p.abs().mean(-1, keepdim=True)

    applied, kept = torch.zeros(50), torch.zeros(n, 50)
    for step in (0, 1):
        p = lr * g[step] + kept if step else g[step]
        kept = p - message(p)
        applied += lr * (message(p).sum(0) / lr)
    wanted = lr * g.sum(0).mean(0)
    assert float((applied + kept.mean(0) - wanted).norm()) > float(wanted.norm())

    ours = SimulatedCluster("ef-signsgd", [torch.zeros(50)], n, lr=lr)
    for step in (0, 1):
        ours.step([[row] for row in g[step]])
    owed = torch.stack([ours.state(rank, "worker_error")[0] for rank in range(n)]).mean(0)
    torch.testing.assert_close(-ours.parameters(0)[0] + lr * owed, wanted)


def test_levels_without_a_zero_move_what_has_no_gradient() -> None:
    """NUQSGD's code: levels +-mult^j and none at zero, so a zero becomes the smallest level, one way or the other."""
    levels = torch.tensor([sign * 0.5**j for j in range(8) for sign in (1, -1)])
    x = torch.cat([torch.zeros(99), torch.ones(1)])
    theirs = levels[(x[:, None] / x.norm() - levels).abs().argmin(1)] * x.norm()
    assert bool((theirs[:99] != 0).all())
    for codec in (GeometricLevels(8), GeometricLevels(8, "linf", 0)):
        assert there_and_back(codec, x)[:99].tolist() == [0.0] * 99


def test_uncapped_and_clipped_exponents() -> None:
    """GRACE's natural compression keeps 8 bits: exponents outside 18 .. 145 become 0 and 2^18."""
    x = torch.tensor([2.0**-110, 2.0**20, 1.0])
    exponent = (x.view(torch.int32) >> 23).clamp(18, 145) - 18
    theirs = torch.where(exponent == 0, 0.0, torch.ldexp(torch.ones(3), exponent + 18 - 127))
    assert not torch.equal(theirs, x)
    assert torch.equal(there_and_back(Natural(), x), x)


# ---- CGX, IntSGD, 16 bits ------------------------------------------------------------------------------------------


def test_rounding_to_nearest_is_called_biased() -> None:
    """CGX's default build, bagua and ZeRO++ round to nearest."""
    x = torch.tensor([0.0, 0.3, 1.0]).repeat(DRAWS)
    nearest = there_and_back(MinMax(1, 0, "nearest"), x)[1::3]
    assert nearest.unique().tolist() == [0.0]
    assert not MinMax(1, 0, "nearest").unbiased
    ours = there_and_back(MinMax(1, 0), x)[1::3].double()
    assert abs(float(ours.mean()) - 0.3) < 5 * math.sqrt(0.21 / DRAWS)


@pytest.mark.parametrize("n", [2, 4, 8])
def test_cutting_at_two_different_ends_treats_signs_differently(n: int) -> None:
    """IntSGD's code cuts rounded numbers at -2^7 / n and (2^7 - 1) / n, a fraction, and casts, which truncates."""
    z = torch.tensor([200.0, -200.0])
    theirs = z.clamp(-(2**7) / n, (2**7 - 1) / n).to(torch.int8)
    assert int(theirs[0]) == -int(theirs[1]) - 1
    ours = mean("intsgd", z.repeat(n, 1), warmup_steps=0, initial_factor=1.0)
    assert ours[0] == -ours[1] == 127 // n


def test_fp16_before_dividing_overflows_and_without_scaling_vanishes() -> None:
    """torch's fp16 hook casts, then divides."""
    large, small = torch.full((8, 3), 1e5), torch.full((8, 3), 1e-9)
    assert (large[0].to(torch.float16) / 8).isinf().all()
    assert (small[0].to(torch.float16) == 0).all()
    for x in (large, small):
        torch.testing.assert_close(mean("allreduce-fp16", x), x[0], rtol=1e-2, atol=0)


def test_odd_lengths_come_back_odd() -> None:
    """global-qsgd's nibble codec gives back 8 values for 7."""
    values = torch.arange(7)
    wire = torch.empty(packed_integers.wire_bytes(7, 4), dtype=torch.uint8)
    packed_integers.pack(values, 4, wire)
    theirs = torch.stack([wire & 15, wire >> 4], -1).flatten()
    assert theirs.numel() == 8
    back = torch.empty_like(values)
    packed_integers.unpack(wire, 4, back)
    assert torch.equal(back, values)


def test_nan_is_not_dropped() -> None:
    """A NaN rounded to an integer is a number: on x86 the least one."""
    x = torch.ones(2, 20)
    x[1, 3] = math.nan
    codes = torch.empty(20, dtype=torch.int8)
    dithering.encode(x[1], torch.tensor(1.0), 63, key(), codes)  # a scale by a maximum that lost the NaN
    assert torch.isfinite(codes.float()).all()
    for name in ("global-qsgd", "terngrad", "qsgd", "qsgd-maxnorm", "intsgd", "cgx", "natural-compression"):
        cluster = stepped(name, x)
        for rank in (0, 1):
            assert not cluster.parameters(rank)[0][3].isfinite()
