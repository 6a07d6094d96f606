"""Defects of published codes for local steps: the rule as published breaks what it should keep, and ours keeps it."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

from reference_impls import SimulatedCluster, create
from reference_impls.algorithm import Clock
from reference_impls.codecs.dct import BlockDCT
from reference_impls.collectives import Group
from reference_impls.optimizers import Outer
from tests.reference_impls.local_training import (
    RATE,
    D,
    advance,
    close,
    cluster,
    equal_on_all_ranks,
    gradient,
    noise,
    point,
    start,
    trained,
)


def averages(total: int, **options: int) -> list[int]:
    """Completed steps at which ours meets."""
    method, clock, found = create("local-sgd", **options).algorithm, Clock(Group("world", 0, 2)), []
    for step in range(total):
        clock.step, clock.lr = step, RATE
        if method.plan(clock) == "average":
            found.append(step + 1)
    return found


# ---- when they meet ------------------------------------------------------------------------------------------------


def test_the_first_round_is_as_long_as_the_others_and_the_last_is_averaged() -> None:
    """torch's PeriodicModelAverager (and SlowMo of torchdistx on it) averages when its counter, 0 at first, is a multiple
    of the period: after steps 1, 5, 9, 13 of 16, and the model that is kept is that of one worker."""
    theirs = [step + 1 for step in range(16) if step % 4 == 0]
    assert theirs == [1, 5, 9, 13]
    assert theirs[-1] != 16
    assert averages(16, period=4) == [4, 8, 12, 16]
    assert averages(15, period=4, total_steps=15) == [4, 8, 12, 15]


def test_a_round_counts_steps_and_not_tensors() -> None:
    """A wrapper of torch's averager once called it for every parameter: with three tensors rounds of 4 lasted 2 steps."""
    tensors, counter, theirs = 3, 0, set()
    for step in range(12):
        for _ in range(tensors):
            counter += 1
            if counter % 4 == 0:
                theirs.add(step + 1)
    assert len(theirs) > 3
    ours = SimulatedCluster("local-sgd", [torch.ones(3)] * tensors, 2, lr=0.1, period=4, bucket_bytes=8)
    met = []
    for step in range(12):
        ours.step([[torch.full((3,), float(rank))] * tensors for rank in range(2)])
        met += [step + 1] if ours.kind == "average" else []
    assert met == [4, 8, 12]


def test_a_fragment_meets_at_the_period_that_was_asked_for() -> None:
    """MaxText rounds the period to a multiple of the number of fragments: 6 instead of 7 for three of them."""
    assert round(7 / 3) * 3 == 6
    algorithm = create("streaming-diloco", period=7, fragments=3).algorithm
    first = [done for done in range(1, 30) if algorithm.leaving(done) == 0]
    assert {b - a for a, b in itertools.pairwise(first)} == {7}


# ---- what is averaged ----------------------------------------------------------------------------------------------


def bucketised(tensors: list[list[Tensor]], capacity: int) -> None:
    """torchft's bucketised all-reduce: it goes on by the capacity of a bucket, not by what was packed into it."""
    sizes = [t.numel() for t in tensors[0]]
    offset, total = 0, sum(sizes)
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    while offset < total:
        packed, room = [], capacity
        for i, size in enumerate(sizes):
            if offset <= starts[i] and starts[i] < offset + capacity and size <= room:
                packed.append(i)
                room -= size
        for i in packed:
            mean = torch.stack([own[i] for own in tensors]).mean(0)
            for own in tensors:
                own[i].copy_(mean)
        offset += capacity


@pytest.mark.parametrize("sizes", [(6, 6, 6), (20, 3)])
def test_every_tensor_is_averaged_whatever_the_buckets(sizes: tuple[int, ...]) -> None:
    tensors = [[torch.full((d,), float(rank)) for d in sizes] for rank in range(2)]
    bucketised(tensors, 10)
    assert any(not torch.equal(a, b) for a, b in zip(*tensors, strict=True))
    for bucket_bytes in (24, 40, 1 << 20):
        ours = SimulatedCluster(
            "diloco-sgd", [torch.zeros(d) for d in sizes], 2, lr=0.1, period=1, bucket_bytes=bucket_bytes
        )
        ours.step([[torch.full((d,), 1.0 + rank) for d in sizes] for rank in range(2)])
        for a, b in zip(ours.parameters(0), ours.parameters(1), strict=True):
            assert torch.equal(a, b)
            assert (a < 0).all()


def test_each_bucket_gets_its_own_mean_back() -> None:
    """torchft's copy-back is a closure over the loop's variables: run later, all copies are of the last bucket."""
    own, means, copies = [torch.zeros(2), torch.zeros(2)], [torch.ones(2), torch.full((2,), 2.0)], []
    for target, mean in zip(own, means, strict=True):
        copies.append(lambda: target.copy_(mean))  # noqa: B023 - the defect
    for copy in copies:
        copy()
    assert torch.equal(own[0], torch.zeros(2))
    options = {"period": 2, "fragments": 2, "overlap": 1, "mixing": 0.0, "outer": "sgd"}
    ours = SimulatedCluster(
        "streaming-diloco-sgd", [torch.zeros(2), torch.zeros(2)], 2, lr=1.0, bucket_bytes=8,
        outer_lr=1.0, outer_momentum=0.0, **options,
    )  # fmt: skip
    for _ in range(3):
        ours.step([[torch.ones(2), torch.full((2,), 2.0)], [torch.full((2,), 3.0), torch.full((2,), 4.0)]])
    assert ours.state(0, "anchor")[0].tolist() == [-2.0, -2.0]
    assert ours.state(0, "anchor")[1].tolist() == [-6.0, -6.0]


def test_tensors_without_gradient_on_some_ranks_are_averaged_too() -> None:
    """torch's averagers take the parameters that have a gradient: ranks with other sets send buffers of other sizes."""
    grads = [[torch.ones(3), None], [torch.ones(3), torch.ones(5)]]
    assert len({sum(g.numel() for g in own if g is not None) for own in grads}) == 2
    ours = SimulatedCluster(
        "diloco-sgd", [torch.zeros(3), torch.zeros(5)], 2, lr=1.0, period=1, outer_lr=1.0, outer_momentum=0.0
    )
    ours.step(grads)
    assert torch.equal(ours.parameters(0)[1], torch.full((5,), -0.5))
    assert equal_on_all_ranks(ours)


def test_parameters_stay_where_they_live() -> None:
    """torch's and accelerate's averaging points param.data at a new buffer: flat views and captured graphs break."""
    x = torch.nn.Parameter(torch.ones(3))
    address = x.data_ptr()
    x.data = torch.stack([x.data, x.data]).mean(0)
    assert x.data_ptr() != address
    for name in ("local-sgd", "diloco", "slowmo-sgd", "sparseloco"):
        ours = cluster(name, 2, period=1)
        homes = [p.data_ptr() for p in ours.parameters(0)]
        advance(ours, 0, 3)
        assert [p.data_ptr() for p in ours.parameters(0)] == homes


def test_progress_in_half_precision_keeps_what_parameters_in_half_precision_lose() -> None:
    """100 rounds of a thousandth each on a parameter of 100: bf16 knows no number between 100 and 100.5."""
    x = torch.full((4,), 100.0)
    for _ in range(100):
        x = (x - 1e-3).to(torch.bfloat16).to(torch.float32)
    assert torch.equal(x, torch.full((4,), 100.0))
    ours = SimulatedCluster("local-sgd", [torch.full((4,), 100.0)], 2, lr=1e-3, period=1, carrier="bf16")
    for _ in range(100):
        ours.step([[torch.ones(4)]] * 2)
    torch.testing.assert_close(ours.parameters(1)[0], torch.full((4,), 99.9), rtol=0, atol=2e-3)


def test_all_workers_count_in_the_first_round() -> None:
    """fairseq's BMUF trains apart for its warm-up and then broadcasts rank 0: the others worked for nothing."""
    ends = [start() - RATE * gradient(start(), 0, rank) for rank in range(3)]
    theirs, mean = ends[0], torch.stack(ends).mean(0)
    ours = trained("bmuf", 3, 1, period=1)
    assert (theirs - mean).abs().max() > 1e-3
    torch.testing.assert_close(point(ours), mean, rtol=0, atol=1e-14)


# ---- the outer step ------------------------------------------------------------------------------------------------


def test_the_outer_step_goes_along_the_progress() -> None:
    """An early DiLoCo of torchft took x - A for the outer gradient: its outer step led back, round by round."""
    bowl = SimulatedCluster("diloco-sgd", [torch.ones(5)], 2, lr=0.1, period=3, outer_momentum=0.0)
    anchor = torch.ones(5)
    for _ in range(12):
        bowl.step([[bowl.parameters(rank)[0].clone()] for rank in range(2)])
    for _ in range(4):
        x = anchor * 0.9**3
        Outer("nesterov", 0.7, 0.0).step(anchor, x - anchor, torch.zeros(5), 0.1)
    assert (anchor > 1).all()
    assert (bowl.parameters(0)[0] < 0.6).all()


def test_mixing_is_the_share_that_a_worker_keeps() -> None:
    """The same release mixed the wrong way round: new x (1 - c) + own x c is meant, c = 0 must take over the anchor."""
    for mixing, expected in ((0.0, 2.0), (0.25, 2.5), (1.0, 4.0)):
        own, shared = torch.full((3,), 4.0), torch.full((3,), 2.0)
        wrong = torch.lerp(own, shared, mixing)
        assert mixing == 0.5 or not torch.allclose(wrong, torch.full((3,), expected))
        ours = SimulatedCluster(
            "streaming-diloco-sgd", [torch.full((3,), 6.0)], 1, lr=1.0, period=1, fragments=1, overlap=0,
            outer="sgd", outer_lr=2.0, outer_momentum=0.0, mixing=mixing,
        )  # fmt: skip
        ours.step([[own - shared]])  # own parameters at 4, anchor at 6 - 2 x 2
        torch.testing.assert_close(ours.parameters(0)[0], torch.full((3,), expected))


def test_nesterov_is_not_heavy_ball() -> None:
    """The outer step that NoLoCo's code calls Nesterov is m <- mu m + a D, x <- x + m: heavy-ball."""
    x, m = start(), torch.zeros(D, dtype=torch.float64)
    for step in range(10):
        m = 0.5 * m - 0.7 * noise(step, 0)
        x = x + m
    walks = {}
    for kind in ("heavy-ball", "nesterov"):
        walks[kind], u = start(), torch.zeros(D, dtype=torch.float64)
        for step in range(10):
            Outer(kind, 0.7, 0.5).step(walks[kind], noise(step, 0), u, 1.0)
    torch.testing.assert_close(walks["heavy-ball"], x, rtol=0, atol=1e-12)
    assert (walks["nesterov"] - x).abs().max() > 0.1


def test_the_anchor_of_slowmo_survives_a_checkpoint() -> None:
    """torchdistx does not save it: a resumed run takes the parameters with which the optimizer was built, in mid-round."""
    options = {"period": 5, "outer_momentum": 0.6}
    whole, part = trained("slowmo-sgd", 3, 15, **options), trained("slowmo-sgd", 3, 7, **options)
    state = part.state_dict()
    resumed, theirs = cluster("slowmo-sgd", 3, **options), cluster("slowmo-sgd", 3, **options)
    for other in (resumed, theirs):
        other.load_state_dict(state)
    for worker in theirs._workers:
        for shard in worker.shards:
            shard.state["anchor"].copy_(shard.params)
    advance(resumed, 7, 15)
    advance(theirs, 7, 15)
    assert torch.equal(point(resumed), point(whole))
    assert (point(theirs) - point(whole)).abs().max() > 1e-3


def test_the_outer_rate_is_applied_once() -> None:
    """CCLoco's error takes a x D and its outer step multiplies by a again; a = 1 hides it."""
    lr, progress = 0.5, noise(0, 0)
    theirs = lr * (lr * progress)
    assert not torch.allclose(theirs, lr * progress)
    options = {"period": 4, "outer_lr": lr}
    ours = trained("sparseloco-sgd", 3, 4, k=8, chunk=8, value_bits=32, **options)
    close(ours, trained("diloco-sgd", 3, 4, outer="sgd", outer_momentum=0.0, **options), atol=1e-6)


# ---- what travels --------------------------------------------------------------------------------------------------


def divisor(dimension: int, most: int = 64) -> int:
    """The side of DeMo's blocks in its authors' code: the largest divisor up to 64."""
    return max(d for d in range(1, most + 1) if dimension % d == 0)


@pytest.mark.parametrize("shape", [(1009, 64), (1009, 1009), (1000, 768), (128, 64)])
def test_blocks_compress_whatever_the_dimensions(shape: tuple[int, int]) -> None:
    """With a prime dimension their blocks are 1 wide: half or all coefficients travel, each with 8 bytes of place."""
    h, w = divisor(shape[0]), divisor(shape[1])
    dense = 4 * shape[0] * shape[1]
    theirs = math.prod(shape) // (h * w) * min(32, h * w) * (4 + 8)
    ours = BlockDCT(shape).wire_bytes()
    assert (dense / theirs < 2) == (1009 in shape)
    assert dense / ours > 60
    assert ours < theirs
    assert dense / theirs == pytest.approx(
        {(1000, 768): 33.3, (128, 64): 42.7}.get(shape, dense / theirs), abs=0.05
    )


def test_a_sign_does_not_hide_what_is_not_finite() -> None:
    """x - lr sign(NaN) leaves x where it is, on all workers and for ever."""
    assert 1.0 - 0.1 * torch.tensor(math.nan).sign() == 1.0
    ours = SimulatedCluster("demo", [torch.ones(4)], 2, lr=0.1)
    ours.step([[torch.full((4,), math.nan)], [torch.ones(4)]])
    assert not torch.isfinite(ours.parameters(1)[0]).any()
