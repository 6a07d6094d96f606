"""SlowMo's special cases and its gossiping bases: push-sum keeps what there is, overlap loses nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from reference_impls import SimulatedCluster
from reference_impls.schedules import LearningRate
from tests.reference_impls.local_training import (
    RATE,
    D,
    advance,
    close,
    cluster,
    gradient,
    point,
    start,
    trained,
)

# ---- what it is where nothing is special ---------------------------------------------------------------------------


@pytest.mark.parametrize("base_steps", [1, 4])
@pytest.mark.parametrize("alpha", [1.0, 0.7])
def test_rounds_written_out(base_steps: int, alpha: float) -> None:
    """The paper's algorithm box by hand, with a decaying rate: u <- b u + (A - mean) / g, A <- A - a g u."""
    lr = LearningRate("linear", peak=0.05, min=0.01, total=20)
    anchor, u = start(), torch.zeros(D, dtype=torch.float64)
    for step in range(0, 12, base_steps):
        ends = []
        for rank in range(3):
            x = anchor.clone()
            for k in range(step, step + base_steps):
                x -= lr(k) * gradient(x, k, rank)
            ends.append(x)
        rate = lr(step + base_steps - 1)
        u = 0.6 * u + (anchor - torch.stack(ends).mean(0)) / rate
        anchor = anchor - alpha * rate * u
    ours = trained("slowmo-sgd", 3, 12, lr, period=base_steps, outer_momentum=0.6, outer_lr=alpha)
    torch.testing.assert_close(point(ours), anchor, rtol=0, atol=1e-12)


def test_rounds_of_one_step_are_synchronous_heavy_ball() -> None:
    """tau = 1, alpha = 1, sgd inside."""
    ours = trained("slowmo-sgd", 4, 30, period=1, outer_momentum=0.8)
    close(ours, trained("allreduce-sgd", 4, 30, momentum=0.8))


def test_without_slow_momentum_it_is_local_sgd() -> None:
    options = {"period": 5, "momentum": 0.9, "inner_state": "keep"}
    ours = trained("slowmo-sgd", 3, 20, outer_momentum=0.0, **options)
    close(ours, trained("local-sgd", 3, 20, **options))


def test_with_constant_rates_it_is_bmuf() -> None:
    options = {"period": 5, "outer_momentum": 0.6}
    close(trained("slowmo-sgd", 3, 20, **options), trained("bmuf", 3, 20, **options))


def test_with_falling_rates_it_is_not() -> None:
    lr = LearningRate("linear", peak=0.05, min=0.005, total=20)
    options = {"period": 5, "outer_momentum": 0.6}
    ours, other = trained("slowmo-sgd", 3, 20, lr, **options), trained("bmuf", 3, 20, lr, **options)
    assert (point(ours) - point(other)).abs().max() > 1e-3


@pytest.mark.parametrize("alpha", [0.5, 1.0])
def test_a_lone_worker_without_slow_momentum_is_lookahead(alpha: float) -> None:
    slow = start()
    for step in range(0, 20, 5):
        fast = slow.clone()
        for k in range(step, step + 5):
            fast -= RATE * gradient(fast, k, 0)
        slow = slow + alpha * (fast - slow)
    ours = trained("slowmo-sgd", 1, 20, period=5, outer_momentum=0.0, outer_lr=alpha)
    torch.testing.assert_close(point(ours), slow, rtol=0, atol=1e-12)


def test_inner_momentum_is_reset_for_sgd_and_kept_for_adam_as_in_the_paper() -> None:
    for name, policy in (("slowmo-sgd", "reset"), ("slowmo-adamw", "keep")):
        hyper = {"momentum": 0.9} if name == "slowmo-sgd" else {}
        ours = trained(name, 3, 10, period=4, **hyper)
        assert torch.equal(point(ours), point(trained(name, 3, 10, period=4, inner_state=policy, **hyper)))
        other = {"reset": "keep", "keep": "reset"}[policy]
        apart = point(ours) - point(trained(name, 3, 10, period=4, inner_state=other, **hyper))
        assert apart.abs().max() > 1e-3


# ---- gossip --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("overlap", [1, 2, 3])
@pytest.mark.parametrize("n", [2, 3, 8])
def test_overlap_delays_mass_but_loses_none(n: int, overlap: int) -> None:
    """Numerators and what is under way add up to what plain SGD on the mean gradient would have; so do the weights."""
    ours = cluster("slowmo-sgd", n, period=100, base="osgp", overlap=overlap)
    total = n * start()
    for step in range(9):
        for rank in range(n):
            total -= RATE * gradient(point(ours, rank), step, rank)
        advance(ours, step, step + 1)
        mass = torch.zeros_like(total)
        for worker in ours._workers:
            mass += torch.cat([shard.state["numerator"] for shard in worker.shards])
            for shard in worker.shards:
                assert len(shard.pending) == min(overlap, step + 1)
            mass += sum(
                torch.cat([shard.pending[name].in_flight.results[worker.clock.world.rank] if shard.pending[name].in_flight.done
                           else shard.pending[name].in_flight.handle[worker.clock.world.rank] for shard in worker.shards])
                for name in worker.shards[0].pending
            )  # fmt: skip
        torch.testing.assert_close(mass, total, rtol=0, atol=1e-12)
        counters = ours._workers[0].clock.counters
        flying = sum(counters[f"sent-{age}"] for age in range(1, overlap + 1))
        assert counters["weight"] + flying == 1.0


@pytest.mark.parametrize(
    "options", [{"base": "sgp"}, {"base": "osgp"}, {"base": "osgp", "overlap": 3}], ids=str
)
@pytest.mark.parametrize("n", [2, 3, 8])
def test_an_average_over_gossiping_workers_is_the_exact_mean(n: int, options: dict[str, Any]) -> None:
    """alpha = 1, beta = 0 and gradients that do not depend on x: as if there had been no gossip."""
    ours = SimulatedCluster("slowmo-sgd", [start()], n, lr=RATE, period=6, outer_momentum=0.0, **options)
    expected = start()
    for step in range(12):
        own = [torch.sin(start() * (rank + 1 + step)) for rank in range(n)]
        expected = expected - RATE * torch.stack(own).mean(0)
        ours.step([[g] for g in own])
        assert equal_of(ours) == (step % 6 == 5 or (n == 2 and options["base"] == "sgp"))
    torch.testing.assert_close(ours.parameters(n - 1)[0], expected, rtol=0, atol=1e-12)


def equal_of(ours: SimulatedCluster) -> bool:
    return all(torch.equal(ours.parameters(0)[0], ours.parameters(r)[0]) for r in range(1, ours.world_size))


@pytest.mark.parametrize("base", ["sgp", "osgp"])
def test_gossip_under_slow_momenta_written_out(base: str) -> None:
    """Numerators x and weights w of four workers by hand; messages of OSGP are used one step later."""
    n, period = 4, 3
    ours = cluster("slowmo-sgd", n, period=period, base=base, average=False, outer_momentum=0.6, outer_lr=0.8)
    x, w = [start() for _ in range(n)], 1.0
    z, anchor = [start() for _ in range(n)], [start() for _ in range(n)]
    u = [torch.zeros_like(start()) for _ in range(n)]
    late: list[tuple[Tensor, float]] | None = None
    for step in range(9):
        for r in range(n):
            x[r] = x[r] - RATE * gradient(z[r], step, r)
        hop = (1, 2)[step % 2]
        sent_now = [(x[(r - hop) % n] / 2, w / 2) for r in range(n)]
        arriving = sent_now if base == "sgp" else late
        x, w = [own / 2 for own in x], w / 2
        if arriving is not None:
            x, w = [own + came for own, (came, _) in zip(x, arriving, strict=True)], w + arriving[0][1]
        late = sent_now
        z = [own / w for own in x]
        if step % period == period - 1:
            for r in range(n):
                u[r] = 0.6 * u[r] + (anchor[r] - z[r]) / RATE
                anchor[r] = anchor[r] - 0.8 * RATE * u[r]
                z[r], x[r] = anchor[r], w * anchor[r]
        advance(ours, step, step + 1)
        for r in range(n):
            torch.testing.assert_close(point(ours, r), z[r], rtol=0, atol=1e-12)
