"""DES-LOC, SPARTA, Eager DiLoCo and PULSELoCo written out. What they equal at the ends of their options: `test_equal_methods`."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from reference_impls import SimulatedCluster, create
from reference_impls.algorithms.pulse_loco import visible
from reference_impls.runtime.alone import traced
from tests.reference_impls.averages import by_adamw, held
from tests.reference_impls.local_training import (
    RATE,
    Alone,
    D,
    advance,
    cluster,
    equal_on_all_ranks,
    gradient,
    point,
    sent,
    stand_at,
    start,
)
from tests.support import each

RING = 2 * 2 / 3 * 8  # bytes that one of three ranks sends for a float64 of an all-reduce


# ---- DES-LOC -----------------------------------------------------------------------------------------------------------


@each(("x_every", "m_every", "v_every"), [(2, 3, 6), (1, 2, 4), (3, 1, 0)])
def test_des_loc_written_out(x_every: int, m_every: int, v_every: int) -> None:
    """Adam of three workers by its formulas; after step t, what is due is replaced by its mean: x, m, v each at its period."""
    ours = cluster("des-loc", 3, period=x_every, first_every=m_every, second_every=v_every, weight_decay=0.0)
    x = torch.stack([start()] * 3)
    m, v = torch.zeros_like(x), torch.zeros_like(x)
    for step in range(1, 14):
        for r in range(3):
            g = gradient(x[r], step, r)
            m[r], v[r], moved = by_adamw(m[r], v[r], g, step, 0.999)
            x[r] = x[r] - RATE * moved
        due = [step % (x_every * every) == 0 if every else False for every in (1, m_every, v_every)]
        x, m, v = (torch.stack([t.mean(0)] * 3) if now else t for t, now in zip((x, m, v), due, strict=True))
        advance(ours, step, step + 1)
        stand_at(ours, x, atol=1e-11)
        assert sent(ours, step - 1) == {
            **({"parameters": pytest.approx(RING * D)} if due[0] else {}),
            **({"inner-state": pytest.approx(RING * D * sum(due[1:]))} if any(due[1:]) else {}),
        }


# ---- SPARTA ------------------------------------------------------------------------------------------------------------


def test_the_same_share_of_all_workers_becomes_its_mean() -> None:
    ours = cluster("sparta", 3, share=0.1)
    alone, seen = Alone("adamw", 3), torch.zeros(D)
    for step in range(60):
        ends = alone.step(step)
        advance(ours, step, step + 1)
        found = torch.stack([point(ours, rank) for rank in range(3)])
        places = found != ends  # where workers are not where their own steps led
        assert torch.equal(places[0], places[1])
        assert int(places[0].sum()) == 6
        torch.testing.assert_close(found, torch.where(places[0], ends.mean(0), ends), rtol=0, atol=1e-12)
        alone.begin(found)
        seen += places[0]
    assert sent(ours, 7) == {"share": pytest.approx(RING * 6)}
    # each coordinate is drawn in a tenth of the steps: binomial, 60 coordinates that are drawn without replacement
    assert float(seen.var()) == pytest.approx(60 * 0.1 * 0.9, rel=4 * math.sqrt(2 / 59))


def test_what_one_worker_alone_begins_to_use_is_averaged_too() -> None:
    """Steps that average a share are local ones, between which ranks do not ask otherwise who has used what."""
    ours = SimulatedCluster(
        "sparta", [torch.zeros(4), torch.zeros(3)], 2, names=["a", "b"], share=1.0, optimizer="sgd", lr=0.1
    )
    for step in range(4):
        late = [torch.ones(3) if step else None, None]
        ours.step([[torch.ones(4), late[rank]] for rank in range(2)])
        assert torch.allclose(ours.parameters(0)[1], torch.full((3,), -0.05 * step))
        assert equal_on_all_ranks(ours)


@each("base", ["sgp", "osgp"])
def test_what_one_gossiping_worker_begins_to_use_is_shared_too(base: str) -> None:
    """One gradient of 1 on one of four ranks, at rate 1: a quarter of it for all once they average."""
    ours = SimulatedCluster(
        "slowmo-sgd", [torch.zeros(2), torch.zeros(3)], 4, names=["a", "b"], lr=1.0, momentum=0.0, base=base, period=8
    )  # fmt: skip
    for step in range(8):
        late = [torch.ones(3) if (step, rank) == (2, 1) else None for rank in range(4)]
        ours.step([[torch.ones(2), late[rank]] for rank in range(4)])
    assert equal_on_all_ranks(ours)
    assert torch.allclose(ours.parameters(0)[1], torch.full((3,), -0.25))


# ---- Eager DiLoCo ------------------------------------------------------------------------------------------------------


@each("optimizer", ["adamw", "sgd"])
def test_eager_rounds_written_out(optimizer: str) -> None:
    """D~ = mean of last round's D + (D - last D) / n on every worker, Nesterov on its own anchor; the end is a mean."""
    n, period, a, b = 3, 4, 0.7, 0.9
    ours = cluster("eager-diloco", n, optimizer=optimizer, period=period, total_steps=14)
    alone = Alone(optimizer, n)
    anchor, u = torch.stack([start()] * n), torch.zeros(n, D, dtype=torch.float64)
    last = torch.zeros(n, D, dtype=torch.float64)
    for step in range(14):
        ends = alone.step(step)
        if step in (3, 7, 11, 13):
            progress = anchor - ends
            mixed = last.mean(0) + (progress - last) / n
            last = progress
            u = b * u + mixed
            anchor = anchor - a * (mixed + b * u)
            if step == 13:
                anchor = torch.stack([anchor.mean(0)] * n)
            alone.begin(anchor)
        advance(ours, step, step + 1)
        stand_at(ours, alone.x)
    assert ours.kind == "final"
    assert equal_on_all_ranks(ours)
    frame = ours.ledger.frame(0)
    assert frame.groupby("stage").wire_bytes.sum().to_dict() == {
        "progress": pytest.approx(3 * RING * D),
        "anchor": pytest.approx(RING * D),
    }


# ---- PULSELoCo ---------------------------------------------------------------------------------------------------------


SMALL = 1e-3
"""A rate at which some entries fire after a round, and some wait."""


def rounded(x: Tensor) -> Tensor:
    """To bfloat16, to nearest, ties to even, by the bits of float32: int32, where both zeros are 0."""
    bits = x.float().view(torch.int32)
    kept = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return torch.where(kept == -0x8000, 0, kept)


@each(("period", "a", "b"), [(3, 0.7, 0.9), (1, 1.0, 0.0), (2, 0.5, 0.5)])
def test_rounds_of_three_workers_written_out(period: int, a: float, b: float) -> None:
    """Lone optimizers; each entry tested, added and forgotten by itself; bytes by the largest count."""
    n, rounds = 3, 6
    alone = Alone("adamw", n)
    anchor, u = start(), torch.zeros(D, dtype=torch.float64)
    e = torch.zeros(n, D, dtype=torch.float64)
    ours = cluster("pulse-loco", n, period=period, outer_lr=a, outer_momentum=b, bucket_bytes=1 << 20)
    fired = 0
    for step in range(rounds * period):
        ends = alone.step(step, SMALL)
        advance(ours, step, step + 1, lambda step: SMALL)
        if step % period < period - 1:
            assert not sent(ours, step)
            continue
        total, counts = torch.zeros(D, dtype=torch.float64), []
        for rank in range(n):
            s = e[rank] + (anchor - ends[rank])
            fires = rounded(anchor) != rounded(anchor - s)
            for i in range(D):
                total[i] += s[i] if fires[i] else 0.0
                e[rank, i] = 0.0 if fires[i] else s[i]
            counts.append(int(fires.sum()))
        d = total / n
        u = b * u + d
        anchor = anchor - a * (d + b * u)
        alone.begin(anchor)
        torch.testing.assert_close(held(ours, "compression_error"), e, rtol=0, atol=1e-13)
        stand_at(ours, anchor, atol=1e-13)
        most = max(counts)
        for rank in range(n):
            assert sent(ours, step, rank) == {
                "progress-count": pytest.approx(2 * (n - 1) / n * 4),
                "progress-places": (n - 1) * 4 * most,
                "progress-values": (n - 1) * 8 * most,  # of float64
            }
        fired += sum(counts)
    assert 0.1 < fired / (n * D * rounds) < 0.9
    assert e.abs().max() > 0


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


@each("n", [2, 5])
def test_a_rank_alone_tells_the_most_that_is_sent(n: int) -> None:
    found = traced(create("pulse-loco"), [(30, 20), (20,)], n)
    assert found == {"local": 0.0, "average": pytest.approx(8 * 620 * (n - 1) + 2 * (n - 1) / n * 4)}
