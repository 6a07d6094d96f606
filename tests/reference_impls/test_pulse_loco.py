"""PULSELoCo: its rounds written out, what is sent and what is kept, traffic, and how much fires at which rate."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from reference_impls import SimulatedCluster, create
from reference_impls.algorithms import pulse_loco
from reference_impls.algorithms.pulse_loco import VisibleMean, visible
from reference_impls.core.collectives import AllGather, AllReduce, Group
from reference_impls.core.optimizers import local_optimizer
from reference_impls.runtime.alone import traced
from tests.reference_impls.local_training import (
    D,
    advance,
    cluster,
    gradient,
    point,
    sent,
    start,
)
from tests.support import each

SMALL = 1e-3
"""A rate at which some entries fire after a round, and some wait."""


def rounded(x: Tensor) -> Tensor:
    """To bfloat16, to nearest, ties to even, by the bits of float32: int32, where both zeros are 0."""
    bits = x.float().view(torch.int32)
    kept = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return torch.where(kept == -0x8000, 0, kept)


def errors(ours: SimulatedCluster, rank: int) -> Tensor:
    return torch.cat(ours.state(rank, "compression_error")).clone()


# ---- rounds written out ------------------------------------------------------------------------------------------------


@each(("period", "a", "b"), [(3, 0.7, 0.9), (1, 1.0, 0.0), (2, 0.5, 0.5)])
def test_rounds_of_three_workers_written_out(period: int, a: float, b: float) -> None:
    """Lone optimizers; each entry tested, added and forgotten by itself; bytes by the largest count."""
    n, rounds = 3, 6
    own = [torch.nn.Parameter(start()) for _ in range(n)]
    alone = [local_optimizer("adamw").build([{"params": [p], "lr": SMALL}]) for p in own]
    anchor, u = start(), torch.zeros(D, dtype=torch.float64)
    e = torch.zeros(n, D, dtype=torch.float64)
    ours = cluster("pulse-loco", n, period=period, outer_lr=a, outer_momentum=b, bucket_bytes=1 << 20)
    fired = 0
    for step in range(rounds * period):
        for rank, worker in enumerate(alone):
            own[rank].grad = gradient(own[rank].detach(), step, rank)
            worker.step()
        advance(ours, step, step + 1, lambda step: SMALL)
        if step % period < period - 1:
            assert not sent(ours, step)
            continue
        total, counts = torch.zeros(D, dtype=torch.float64), []
        for rank in range(n):
            s = e[rank] + (anchor - own[rank].detach())
            fires = rounded(anchor) != rounded(anchor - s)
            for i in range(D):
                total[i] += s[i] if fires[i] else 0.0
                e[rank, i] = 0.0 if fires[i] else s[i]
            counts.append(int(fires.sum()))
        d = total / n
        u = b * u + d
        anchor = anchor - a * (d + b * u)
        for p in own:
            p.data.copy_(anchor)
        for rank in range(n):
            torch.testing.assert_close(point(ours, rank), anchor, rtol=0, atol=1e-13)
            torch.testing.assert_close(errors(ours, rank), e[rank], rtol=0, atol=1e-13)
            most = max(counts)
            assert sent(ours, step, rank) == {
                "progress-count": pytest.approx(2 * (n - 1) / n * 4),
                "progress-places": (n - 1) * 4 * most,
                "progress-values": (n - 1) * 8 * most,  # of float64
            }
        fired += sum(counts)
    assert 0.1 < fired / (n * D * rounds) < 0.9
    assert e.abs().max() > 0


def test_where_all_fires_it_is_diloco(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulse_loco, "visible", lambda anchor, move: torch.ones_like(anchor, dtype=torch.bool))
    ours, other = (cluster(name, 4, period=3) for name in ("pulse-loco", "diloco"))
    for own in (ours, other):
        advance(own, 0, 12)
    for rank in range(4):
        torch.testing.assert_close(point(ours, rank), point(other, rank), rtol=0, atol=1e-15)
    assert errors(ours, 1).abs().max() == 0


def test_one_worker_is_diloco_to_the_bit() -> None:
    ours, other = (cluster(name, 1, period=3) for name in ("pulse-loco", "diloco"))
    for own in (ours, other):
        advance(own, 0, 8, lambda step: SMALL)
    assert torch.equal(point(ours), point(other))
    assert not sent(ours)


# ---- the gate ----------------------------------------------------------------------------------------------------------


@each("dtype", [torch.float32, torch.float64])
def test_half_of_the_step_between_neighbours_is_not_yet_seen(dtype: torch.dtype) -> None:
    """Below 1 numbers of bfloat16 are 2^-8 apart, above it 2^-7; ties go to 1, which is even."""
    nan, inf = float("nan"), float("inf")
    cases = [
        (1.0, 0.0, False), (1.0, 2**-9, False), (1.0, 2**-9 + 2**-20, True), (1.0, -(2**-8), False),
        (1.0, -(2**-8) - 2**-20, True), (0.0, 2**-130, True), (0.0, -0.0, False), (-0.0, 0.0, False),
        (1.0, nan, True), (nan, 0.0, True), (1.0, inf, True), (inf, 1.0, False), (256.0, 0.4, False), (256.0, 0.6, True),
    ]  # fmt: skip
    anchor, move, fires = zip(*cases, strict=True)
    found = visible(torch.tensor(anchor, dtype=dtype), torch.tensor(move, dtype=dtype))
    assert found.tolist() == list(fires)


def through(error: Tensor, anchor: Tensor, x: Tensor, most: int) -> tuple[Tensor, Tensor, Tensor]:
    """Rank 0 of two, of which the other sends nothing, `most` being agreed: places and values that it sends, and its answer."""
    bucket: Any = SimpleNamespace(
        world=Group("world", 0, 2), state={"anchor": anchor, "compression_error": error}
    )
    mean, found = VisibleMean().mean(bucket, x, "progress"), list[Tensor]()
    request = next(mean)
    assert isinstance(request, AllReduce)
    request.buffer.fill_(most)
    answer: Any = None
    while True:
        try:
            request = mean.send(answer)
        except StopIteration as end:
            places, values = found
            return places, values, end.value
        assert isinstance(request, AllGather)
        found.append(request.buffer.clone())
        answer = torch.stack([request.buffer, torch.zeros_like(request.buffer)])


def test_what_is_sent_and_what_is_kept_are_s_to_the_bit() -> None:
    draw = torch.Generator().manual_seed(1)
    anchor, e, x = (torch.randn(5000, generator=draw) for _ in range(3))
    e, x = e * 1e-3, x * 1e-3
    x[7] = float("nan")
    s, fires = e + x, rounded(anchor) != rounded(anchor - (e + x))
    count = int(fires.sum())
    assert 500 < count < 4500
    error = e.clone()
    places, values, answer = through(error, anchor, x, count + 3)
    assert (places.dtype, values.dtype, len(places)) == (torch.int32, torch.float32, count + 3)
    assert not places[count:].any()
    assert not values[count:].any()
    went = torch.zeros(5000)
    went[places[:count].long()] = values[:count]
    assert torch.equal((went + error).view(torch.int32), s.view(torch.int32))
    assert torch.equal((went != 0) | went.isnan(), fires | s.isnan())
    torch.testing.assert_close(answer, went / 2, rtol=0, atol=0, equal_nan=True)


# ---- over many rounds --------------------------------------------------------------------------------------------------


def density(lr: float, rounds: int = 3) -> float:
    """Share of the entries that are sent, of weights as of a language model."""
    d, n = 8192, 2
    draw = torch.Generator().manual_seed(4)
    ours = SimulatedCluster("pulse-loco", [torch.randn(d, generator=draw) * 0.02], n, lr=lr, weight_decay=0.0)
    for _ in range(10 * rounds):
        ours.step([[torch.randn(d, generator=draw)] for _ in range(n)])
    return sent(ours).get("progress-values", 0.0) / (4 * d * (n - 1) * rounds)


def test_few_entries_fire_at_rates_of_reinforcement_learning_and_nearly_all_at_those_of_pre_training() -> (
    None
):
    at = {lr: density(lr) for lr in (0.0, 1e-7, 1e-6, 1e-5, 1e-3)}
    assert at[0.0] == 0
    assert 0 < at[1e-7] < 0.02 < at[1e-6] < 0.2 < at[1e-5] < 0.9 < at[1e-3], at


def test_how_parameters_are_cut_changes_traffic_and_no_bit() -> None:
    whole, cut = (cluster("pulse-loco", 3, period=2, bucket_bytes=size) for size in (1 << 20, 8))
    for own in (whole, cut):
        advance(own, 0, 8, lambda step: SMALL)
    assert torch.equal(point(whole), point(cut))
    assert sent(cut)["progress-count"] == 2 * sent(whole)["progress-count"]


def test_where_nothing_fires_a_count_is_all_that_is_sent() -> None:
    ours = SimulatedCluster("pulse-loco", [torch.ones(50)], 4, lr=0.0, period=1)
    ours.step([[torch.ones(50)]] * 4)
    assert sent(ours) == {"progress-count": 2 * 3 / 4 * 4}


def test_a_training_goes_on_from_a_checkpoint_to_the_bit() -> None:
    """In the middle of a round, with errors that wait."""
    whole, resumed = cluster("pulse-loco", 3, period=3), cluster("pulse-loco", 3, period=3)
    advance(whole, 0, 10, lambda step: SMALL)
    assert 0 < int((errors(whole, 2) != 0).sum()) < D
    resumed.load_state_dict(whole.state_dict())
    for own in (whole, resumed):
        advance(own, 10, 19, lambda step: SMALL)
    for rank in range(3):
        assert torch.equal(point(whole, rank), point(resumed, rank))
        assert torch.equal(errors(whole, rank), errors(resumed, rank))


@each("n", [2, 5])
def test_a_rank_alone_tells_the_most_that_is_sent(n: int) -> None:
    found = traced(create("pulse-loco"), [(30, 20), (20,)], n)
    assert found == {"local": 0.0, "average": pytest.approx(8 * 620 * (n - 1) + 2 * (n - 1) / n * 4)}
