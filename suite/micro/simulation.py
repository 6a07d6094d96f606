"""How many worker-steps a second a simulated training makes, against the same training on real gloo processes.

Both are timed as training runs are carried out: `suite.training.pool` with a worker process a core and one thread each,
gradients of all workers of a group from one batched call, against `suite.training.processes` with a process a rank, on the same
cores. Counted is the time from the first evaluation of a run to its last: neither the start of processes nor the
first steps, in which codecs are compiled, which would flatter the simulation. Runs of the two come in turns.
`simulation_rows` are the rows of `rates-simulation`.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from suite.analysis.tables import Row
from suite.micro.pairs import ENOUGH, Pairs, verdict
from suite.runs.spec import Rate, RunSpec, make_spec, resolve_algorithm, resolve_workload
from suite.runs.store import Store
from suite.training.checkpoint import Hooks, Start
from suite.training.pool import run_local
from suite.training.processes import launch
from suite.workloads import get

BAR: Final = 10.0
"""Simulated worker-steps a second over those of as many gloo processes."""

WORKLOAD: Final = "digits-mlp"

LEARNING_RATES: Final[Mapping[str, float]] = MappingProxyType({"allreduce-sgd": 0.05, "lion-cub-1bit": 1e-4})
"""Rates at which nothing was seen to diverge, since a run that has diverged is over. Of other methods none is known yet."""


class UntimedRunError(RuntimeError):
    """A run ended in another way than by its last step, or was too short to be timed."""


@dataclass(frozen=True)
class SimulatedAgainstGloo:
    """Worker-steps a second, repetition by repetition. seeds: runs that were simulated side by side."""

    method: str
    n: int
    steps: int
    seeds: int
    simulated: tuple[float, ...]
    gloo: tuple[float, ...]


def simulated_against_gloo(
    method: str,
    n: int = 8,
    steps: int = 64,
    repeats: int = 6,
    *,
    seeds: int = 1,
    options: Mapping[str, Any] | None = None,
) -> SimulatedAgainstGloo:
    """Train a method on the default workload, simulated and on gloo processes in turns.

    Args:
        method: A registered name.
        n: Workers.
        steps: Of each run.
        repeats: Pairs of trainings.
        seeds: Runs of a sweep that are simulated together; gloo trains one at a time.
        options: Of the method.

    Returns:
        Worker-steps a second of both.

    Raises:
        UntimedRunError: A run fails or diverges, or is too short to be timed.
    """
    specs = [_spec(method, n, steps, seed, "simulated", options or {}) for seed in range(seeds)]
    real = _spec(method, n, steps, 0, "gloo", options or {})
    simulated, gloo = [], []
    for _ in range(repeats):
        gloo.append(n * _gloo_steps(real))
        simulated.append(n * _simulated_steps(specs))
    return SimulatedAgainstGloo(method, n, steps, seeds, tuple(simulated), tuple(gloo))


class _Marks:
    """When how many steps were complete."""

    def __init__(self) -> None:
        self._marks: list[tuple[int, float]] = []

    def __call__(self, steps: int) -> None:
        if steps and (not self._marks or steps > self._marks[-1][0]):
            self._marks.append((steps, time.perf_counter()))

    def rate(self) -> float:
        """Steps a second from the first mark to the last."""
        if len(self._marks) < 2:
            raise UntimedRunError("a run ended before its second evaluation: give more steps")
        (first, start), (last, end) = self._marks[0], self._marks[-1]
        return (last - first) / (end - start)


def _gloo_steps(spec: RunSpec) -> float:
    """Steps a second of a run on real processes."""
    marks = _Marks()
    with tempfile.TemporaryDirectory() as folder:
        outcome = launch(spec, Start(), Path(folder), Hooks(marks, checkpoint_s=math.inf))
    _check(outcome.status.state, outcome.status.reason)
    return marks.rate()


def _simulated_steps(specs: Sequence[RunSpec]) -> float:
    """Steps of single runs a second in a sweep of these."""
    marks = _Marks()
    with tempfile.TemporaryDirectory() as folder:
        tally = run_local(specs, Store(Path(folder)), report=lambda now: marks(now.run_steps))
    for _, state, reason in tally.failures:
        _check(state, reason)
    return marks.rate()


def _check(state: str, reason: str) -> None:
    if state != "done":
        raise UntimedRunError(f"the run ended as {state}: {reason}")


def _spec(method: str, n: int, steps: int, seed: int, backend: str, options: Mapping[str, Any]) -> RunSpec:
    return make_spec(
        algorithm=resolve_algorithm(method, options, n, steps),
        workload=resolve_workload(WORKLOAD, {}, "iid"),
        sharding="iid",
        world_size=n,
        steps=steps,
        batch_size=get(WORKLOAD).batch_size,
        lr=Rate("constant", LEARNING_RATES.get(method, 1e-3), 0.0, 0),
        seed=seed,
        backend=backend,
        bucket_bytes=4 << 20,
    )


METHODS: Final = ("allreduce-sgd", "lion-cub-1bit")
WORLD_SIZE: Final = 8
SEEDS: Final = (1, 2)
"""Runs that are simulated side by side: alone, and as many as a sweep runs on two cores."""


def simulation_rows(show: Callable[[str], None] = lambda line: None, repeats: int = ENOUGH) -> list[Row]:
    """Measure every method of `METHODS`, with every number of runs of `SEEDS` side by side.

    Args:
        show: Called with what is measured next.
        repeats: Pairs of trainings.

    Returns:
        Rows of `rates-simulation`.
    """
    rows = []
    for method in METHODS:
        for seeds in SEEDS:
            show(f"{method}, {seeds} at once, against {WORLD_SIZE} processes")
            rows.append(_row(simulated_against_gloo(method, WORLD_SIZE, repeats=repeats, seeds=seeds)))
    return rows


def _row(result: SimulatedAgainstGloo) -> Row:
    cells, n = Pairs(result.simulated, result.gloo).ratio_cells("ratio"), len(result.gloo)
    return {
        "workload": WORKLOAD, "method": result.method, "world_size": result.n, "seeds": result.seeds, "n": n,
        "simulated": float(np.median(result.simulated)), "gloo": float(np.median(result.gloo)), **cells,
        "bar": BAR, "met": verdict(cells, "ratio", n, BAR),
    }  # fmt: skip
