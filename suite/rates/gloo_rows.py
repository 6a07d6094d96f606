"""Simulated training against as many processes, as rows of `rates-simulation`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from suite.analysis.tables import Row
from suite.rates.pairs import ENOUGH, quartiles, verdict
from suite.rates.simulation import BAR, WORKLOAD, SimulatedAgainstGloo, simulated_against_gloo

__all__ = ["METHODS", "WORLD_SIZE", "simulation_rows"]

METHODS: Final = ("allreduce-sgd", "lion-cub-1bit")
WORLD_SIZE: Final = 8
SEEDS: Final = (1, 2)
"""Runs that are simulated side by side: alone, and as many as a sweep runs on two cores."""


def simulation_rows(show: Callable[[str], None] = lambda line: None, repeats: int = ENOUGH) -> list[Row]:
    """Measure."""
    rows = []
    for method in METHODS:
        for seeds in SEEDS:
            show(f"{method}, {seeds} at once, against {WORLD_SIZE} processes")
            rows.append(_row(simulated_against_gloo(method, WORLD_SIZE, repeats=repeats, seeds=seeds)))
    return rows


def _row(found: SimulatedAgainstGloo) -> Row:
    interval, (q1, q2, q3) = found.interval, quartiles(list(found.ratios))
    cells: Row = {
        "ratio": q2, "ratio_q1": q1, "ratio_q3": q3,
        "ratio_low": interval.low if interval else None, "ratio_high": interval.high if interval else None,
    }  # fmt: skip
    n = len(found.ratios)
    return {
        "workload": WORKLOAD, "method": found.method, "world_size": found.n, "seeds": found.seeds, "n": n,
        "simulated": float(np.median(found.simulated)), "gloo": float(np.median(found.gloo)), **cells,
        "bar": BAR, "met": verdict(cells, "ratio", n, BAR),
    }  # fmt: skip
