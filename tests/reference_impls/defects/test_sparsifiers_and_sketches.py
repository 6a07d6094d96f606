"""Defects of published codes of sparsifiers and sketches: what each breaks, and that it holds here.

The defective rule is written out in each test: csvec and sketchedsgd (Sketched-SGD), GRACE (top-k, random-k, threshold, DGC),
the authors' codes of DGC and gTop-k.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from reference_impls import SimulatedCluster
from reference_impls.codecs import count_sketch
from reference_impls.codecs.count_sketch import CountSketch
from reference_impls.codecs.selection import kept, largest, magnitude
from reference_impls.codecs.sparse import TopK, pack_pairs, unpack_pairs
from reference_impls.errors import MismatchError, UnsupportedError
from reference_impls.randomness import Key
from tests.reference_impls.exchanges import run, shards
from tests.reference_impls.test_gtop_k import largest_of

KEY = Key.of(seed=0, step=0, stage="test")


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def moved(name: str, rows: Tensor, **options: object) -> Tensor:
    """Minus the update of one step of lr 1, after a check that all ranks agree."""
    start = torch.zeros(rows.shape[-1], dtype=rows.dtype)
    workers = SimulatedCluster(name, [start], len(rows), lr=1.0, **options)
    workers.step([[row.clone()] for row in rows])
    assert all(torch.equal(workers.parameters(0)[0], workers.parameters(r)[0]) for r in range(len(rows)))
    return -workers.parameters(0)[0]


def test_hashes_modulo_2_to_the_61_overflow_int64() -> None:
    """csvec: (h1 j + h2) mod (2^61 - 1) mod c in int64. Nearly all columns differ from those of the exact product."""
    prime, c, d = (1 << 61) - 1, 1000, 2000
    generator = torch.Generator().manual_seed(0)
    h1, h2 = (int(torch.randint(0, prime, (1,), generator=generator)) for _ in range(2))
    wrapped = (torch.arange(d) * h1 + h2) % prime % c
    exact = torch.tensor([(h1 * j + h2) % prime % c for j in range(d)])
    assert float((wrapped != exact).double().mean()) > 0.9

    columns, signs = CountSketch(1, c, seed=1).hashes(0, d)
    a = count_sketch.coefficients(1, 0)
    h = [sum(w * j**e for e, w in enumerate(a)) % ((1 << 31) - 1) for j in range(d)]
    assert columns.tolist() == [(v // 2 * c) >> 30 for v in h]
    assert signs.tolist() == [1.0 if v % 2 else -1.0 for v in h]


def test_the_median_of_an_even_number_of_rows_is_the_lower_middle_one() -> None:
    """torch.median of two estimates is the smaller: biased downwards. Odd numbers of rows are required here."""
    errors = normal(2, 20_000)
    assert float(errors.median(0).values.mean()) < -0.4
    assert abs(float(normal(3, 20_000).median(0).values.mean())) < 0.03
    with pytest.raises(UnsupportedError, match="odd"):
        CountSketch(2, 100)


def test_hashes_that_are_used_again_for_every_block_collide_again() -> None:
    """csvec with numBlocks > 1: block b has the columns of block 0, shifted. What shares a cell in one shares it in all."""
    block, c = 1000, 50
    columns, _ = CountSketch(1, c, seed=0).hashes(0, block)
    again = torch.stack([columns, (columns + 17) % c])
    same = again.unsqueeze(-1) == again.unsqueeze(-2)  # [2, block, block]: pairs that share a cell
    assert torch.equal(same[0], same[1])

    ours = CountSketch(1, c, seed=0).hashes(0, 2 * block)[0].view(2, block)
    same = ours.unsqueeze(-1) == ours.unsqueeze(-2)
    pairs = torch.ones(block, block).triu(1).bool()
    both = float((same[0] & same[1])[pairs].double().mean())
    assert both == pytest.approx(1 / c**2, rel=0.3)


def test_an_unsquared_estimate_overlooks_negative_heavy_coordinates() -> None:
    """The paper's print of HEAVYMIX, estimate >= |x|^2 / k, and csvec's assertion that what it finds is positive."""
    x = torch.zeros(100, dtype=torch.float64)
    x[9], x[60] = -50.0, 0.5
    assert x[9] < x.square().sum() / 5
    assert 9 not in (x >= x.square().sum() / 5).nonzero()
    found = moved("sketched-sgd-theory", x.expand(2, -1), ratio=0.05, column_ratio=1.0)
    assert float(found[9]) == -50.0


def test_a_mean_of_sketches_with_a_sum_of_values_makes_updates_grow_with_the_workers() -> None:
    """Algorithm 3 averages the sketches and sums the exact values."""
    g = normal(1, 50).double()
    for n in (2, 4):
        v = g.expand(n, 50)
        there = v.sum(0)[0]
        assert float(there) == pytest.approx(n * float(g[0, 0]))
        ours = moved("sketched-sgd", v.clone(), ratio=1.0, candidates=1, dense_vectors=False)
        torch.testing.assert_close(ours, g[0], rtol=0, atol=1e-12)


def test_ranking_by_squares_loses_what_the_square_cannot_hold() -> None:
    """sketchedsgd sorts vec ** 2: below 1e-23 all squares are 0, above 2e19 all are inf."""
    for scale in (1e-25, 1e25):
        x = torch.arange(1, 101).float() * scale
        assert (x**2).unique().numel() == 1
        assert largest(magnitude(x), 3).tolist() == [97, 98, 99]


def test_drawing_with_replacement_gives_fewer_coordinates_and_no_factor_a_biased_mean() -> None:
    """GRACE's random-k: randint, values sent as they are."""
    d, k, draws = 100, 30, 400
    generator = torch.Generator().manual_seed(0)
    total, distinct = torch.zeros(d), 0
    for _ in range(draws):
        places = torch.randint(0, d, (k,), generator=generator)
        distinct += places.unique().numel()
        total[places] += 1.0
    assert distinct / draws < 0.9 * k
    assert float((total / draws).mean()) < 0.3

    ours = torch.zeros(d)
    for seed in range(draws):
        found = moved("random-k", torch.ones(2, d), ratio=k / d, seed=seed)
        assert int((found != 0).sum()) == k
        ours += found / draws
    assert float(ours.mean()) == pytest.approx(1.0)
    assert float((ours - 1).abs().max()) < 5 * math.sqrt((d / k - 1) / draws)


def test_seeds_that_are_sums_of_letters_collide_and_seeding_globally_disturbs_others() -> None:
    """GRACE: torch.manual_seed(sum(bytes of the name) + step) in every call."""

    def draw(name: str, step: int) -> Tensor:
        torch.manual_seed(sum(name.encode()) + step)
        return torch.randint(0, 1000, (5,))

    assert torch.equal(draw("wb", 0), draw("bw", 0))
    assert torch.equal(draw("a", 1), draw("b", 0))
    draw("w", 0)
    first = torch.rand(1)
    draw("w", 0)
    assert torch.equal(first, torch.rand(1))  # somebody else's dropout, the same at every step

    for name in ("random-k", "top-k", "gtop-k", "dgc", "sketched-sgd-theory", "gs-sgd"):
        before = torch.get_rng_state()
        moved(name, normal(2, 50), ratio=0.1)
        assert torch.equal(before, torch.get_rng_state())
    shard = shards(1, [50])[0]
    keys = [shard.key("places", shared=True)] + [
        s.key("places", shared=True) for s in shards(1, [50], step=1)
    ]
    assert not torch.equal(keys[0].words, keys[1].words)


def test_places_take_the_bits_that_they_need() -> None:
    """torch.topk answers int64, and GRACE sends that: 96 bits for 32 of value. Here 32 + ceil(log2 d)."""
    d, k = 1_000_000, 10_000
    places = torch.topk(normal(d).abs(), k).indices
    assert places.element_size() * 8 + 32 == 96
    assert TopK(0.01).wire_bytes(d) * 8 / k == 52


def test_places_that_travel_as_floats_are_rounded() -> None:
    """gTop-k's code puts places and values into one float32 message: odd places above 2^24 are not numbers of it."""
    places = torch.tensor([5, (1 << 24) + 1, (1 << 25) - 1])
    assert places.float().long().tolist() == [5, 1 << 24, 1 << 25]
    numel = 1 << 25
    wire = torch.zeros(math.ceil(3 * 25 / 8) + 12, dtype=torch.uint8)
    pack_pairs(places, torch.ones(3), numel, wire)
    assert torch.equal(unpack_pairs(wire, numel, 3)[0], places)


def test_a_threshold_selects_another_number_on_every_rank() -> None:
    """DGC's code: a threshold from a sample of 1 %, kept up to 30 % too many or 20 % too few, gathered as if equal."""
    d, k = 20_000, 200
    counts = []
    for rank in range(4):
        x = normal(d, seed=rank).abs()
        sample = x[rank::101]
        threshold = sample.topk(math.ceil(0.01 * sample.numel())).values.min()
        counts.append(min(int((x >= threshold).sum()), k))
    assert len(set(counts)) > 1

    def gathered(rank: int) -> object:
        shard = shards(4, [8])[rank]
        return shard.world.gather(torch.zeros(counts[rank]), "values")

    with pytest.raises(MismatchError):
        run([gathered(rank) for rank in range(4)])
    x = torch.stack([normal(d, seed=0), torch.zeros(d), torch.ones(d), normal(d).exp()])
    wire = torch.zeros(4, TopK(0.01).wire_bytes(d), dtype=torch.uint8)
    TopK(0.01).encode(x, KEY, wire)  # as long for all, whatever the values


@pytest.mark.parametrize("name", ["top-k", "dgc", "gtop-k"])
def test_a_comparison_with_a_threshold_drops_nan_in_silence(name: str) -> None:
    x = normal(1000)
    x[500] = torch.nan
    assert not bool((x.abs() >= x.abs().topk(10).values.min())[500])
    assert moved(name, torch.ones(2, 4), ratio=0.5).isfinite().all()
    found = SimulatedCluster(name, [torch.zeros(1000)], 2, lr=1.0, ratio=0.01)
    found.step([[x], [normal(1000, seed=1)]])
    assert all(found.parameters(rank)[0][500].isnan() for rank in (0, 1))


def test_the_largest_number_is_not_the_largest_magnitude() -> None:
    """GRACE's threshold is compared with max(x): of all negative numbers none is ever sent."""
    x = -normal(100).abs() - 1
    assert x.max() < 0
    assert largest(magnitude(x), 1).item() == int(x.argmin())


def test_ties_are_not_left_to_the_library() -> None:
    """torch.topk may choose any of equal values, and does otherwise for another k: replicas and errors would differ."""
    x = torch.tensor([1.0, 2.0] * 500)
    assert largest(magnitude(x), 10).tolist() == list(range(1, 21, 2))
    for k in range(1, 500):
        assert largest(magnitude(x), k).tolist() == [2 * i + 1 for i in range(k)]


def test_empty_tensors_are_empty_messages() -> None:
    """GRACE's top-k and DGC raise on tensors without elements."""
    with pytest.raises((RuntimeError, IndexError)):
        torch.empty(0).abs().topk(max(1, int(0.01 * 0)))
    for codec in (TopK(0.01), TopK(1.0)):
        wire = torch.zeros(codec.wire_bytes(0), dtype=torch.uint8)
        assert wire.numel() == 0
        codec.encode(torch.empty(0), KEY, wire)
        out = torch.empty(0)
        codec.decode(wire, out)


def published_tree(n: int) -> list[tuple[int, int]]:
    """gTop-k's code: who receives from whom."""
    edges, step = [], 1
    for _ in range(int(math.log2(n))):
        ranks = range(0, n, step)
        edges += [(ranks[i], ranks[i + 1]) for i in range(0, len(ranks), 2)]
        step *= 2
    return edges


def test_a_tree_for_powers_of_two_fails_for_other_numbers_of_workers() -> None:
    assert len(published_tree(8)) == 7
    for n in (3, 5, 6, 7):
        with pytest.raises(IndexError):
            published_tree(n)
    for n in (3, 5, 6, 7):
        x = torch.zeros(n, 64)
        x[:, 7] = torch.arange(n) + 1.0
        for form in ("tree", "doubling"):
            assert float(moved("gtop-k", x, ratio=1 / 64, form=form)[7]) == pytest.approx((n + 1) / 2)


def test_keeping_what_is_not_in_the_final_mask_loses_what_dropped_out_on_the_way() -> None:
    """gTop-k's rule (``put_back="mask"``): k = 1, four workers. Worker 2's 3.0 at place 0 loses to worker 3's 4.0 at place 1,
    which loses to the 5.0 at place 0 of workers 0 and 1. Place 0 comes out, so worker 2 forgets its 3.0: 3 are gone."""
    x = torch.zeros(4, 10, dtype=torch.float64)
    x[0, 0], x[1, 0], x[2, 0], x[3, 1] = 5.0, 1.0, 3.0, 4.0
    lost = {}
    for rule in ("mask", "merger"):
        workers = SimulatedCluster("gtop-k", [torch.zeros(10).double()], 4, lr=1.0, ratio=0.1, put_back=rule)
        workers.step([[row.clone()] for row in x])
        applied = -workers.parameters(0)[0]
        assert torch.equal(applied, largest_of(torch.tensor([6.0] + [0.0] * 9).double(), 1) / 4)
        left = sum(workers.state(r, "worker_error")[0] for r in range(4))
        lost[rule] = float((x.sum(0) - 4 * applied - left).abs().sum())
    assert lost == {"mask": 3.0, "merger": 0.0}


def test_momentum_after_compression_is_not_the_momentum_of_what_was_held_back() -> None:
    """Top-k with an ordinary momentum optimizer: what is sent after T steps misses the discounting; DGC has it."""
    m, steps, d = 0.9, 6, 20
    g = torch.full((2, d), 1.0, dtype=torch.float64)
    g[:, 0] = 1e3  # sent in all steps but the last
    found = {}
    for name, options in (("top-k", {"momentum": m}), ("dgc", {"momentum": m})):
        workers = SimulatedCluster(name, [torch.zeros(d).double()], 2, lr=1.0, ratio=1 / d, **options)
        for t in range(steps):
            if t == steps - 1:
                g[:, 0], g[:, 5] = 0.0, 1e4
            workers.step([[row.clone()] for row in g])
        found[name] = -float(workers.parameters(0)[0][5])
        g[:, 0], g[:, 5] = 1e3, 1.0
    u = dense = 0.0
    for t in range(steps):
        u = m * u + (1.0 if t < steps - 1 else 1e4)
        dense += u
    assert found["dgc"] == pytest.approx(dense, rel=1e-6)
    assert found["top-k"] == pytest.approx(1e4 + steps - 1, rel=1e-6)
    assert dense > 1e4 + steps


def test_the_smallest_k_is_one() -> None:
    """floor(ratio d) of a small tensor is 0 coordinates: it would never train."""
    assert int(0.001 * 100) == 0
    assert kept(0.001, 100) == 1
    assert int((moved("top-k", normal(2, 100), ratio=0.001) != 0).sum()) in (1, 2)
