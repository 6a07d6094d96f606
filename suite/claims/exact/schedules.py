"""How often methods synchronise, counted step by step from their own schedules."""

from __future__ import annotations

from collections import Counter
from typing import Any

from reference_impls.algorithm import Clock
from reference_impls.collectives import Group
from reference_impls.registry import create
from reference_impls.schedules import QSR, LearningRate, sync_steps


def qsr(
    *,
    total: int,
    warmup: int,
    peak: float,
    alpha: float,
    h_base: int,
    lowest: float = 1e-6,
    schedule: str = "cosine",
    power: float = 2.0,
) -> dict[str, float]:
    """The quadratic rule over a whole schedule: synchronisations, their share of the steps in percent, and the longest round. In
    the warm-up H is h_base."""
    rate = LearningRate(schedule, peak=peak, min=lowest, warmup=warmup, total=total)
    steps = sync_steps(QSR(alpha, h_base, power=power, warmup=warmup, total=total), rate, total)
    return {
        "synchronisations": len(steps),
        "volume": 100 * len(steps) / total,
        "longest_round": max(b - a for a, b in zip([0, *steps], steps, strict=False)),
    }


def zero_one_adam(
    *, steps: int, variance_steps: int, growth_steps: int, warm_up: int, n: int = 64
) -> dict[str, float]:
    """0/1 Adam against 1-bit Adam with `warm_up` full steps and against fp16: volume and rounds, in percent less and in times.

    Bytes of a step are those the methods declare for a million parameters and n workers; full steps travel as fp16.
    """
    kinds = _kinds(
        "zero-one-adam",
        steps,
        8,
        total_steps=steps,
        variance_steps=variance_steps,
        local_growth_steps=growth_steps,
    )
    half, coded = (
        _bytes("allreduce-fp16", "step", n),
        _bytes("zero-one-adam", "average", n, total_steps=steps),
    )
    volume = kinds["variance"] * half + (kinds["gradient"] + kinds["average"]) * coded
    one_bit = warm_up * half + (steps - warm_up) * coded
    return {
        "less_volume": 100 * (1 - volume / one_bit),
        "less_rounds": 100 * kinds["local"] / steps,
        "times_less_than_fp16": steps * half / volume,
    }


def _kinds(name: str, steps: int, n: int, **options: Any) -> Counter[str]:
    algorithm = create(name, **options).algorithm
    world, found = Group("world", 0, n), Counter[str]()
    counters: dict[str, int | float] = {}
    for step in range(steps):
        found[str(algorithm.plan(Clock(world, step=step, counters=counters)))] += 1
    return found


def _bytes(name: str, kind: str, n: int, **options: Any) -> float:
    cost = create(name, **options).algorithm.wire_bytes([(1000, 1000)], n)[kind]
    return float(cost[1] if isinstance(cost, tuple) else cost)
