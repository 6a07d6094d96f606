"""How sure a Pareto front is: for each method the share of bootstrap draws of the seeds in which it is on it.

The front is that of the mean difference to the uncompressed run against bytes a step, or against seconds on a link, at the
fixed budget of steps. Methods that lost a seed have no share, since draws are the same for all.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from report.drawing.numbers import number
from report.study.data import Panel
from suite.analysis.statistics import MINIMUM_FOR_INTERVAL, pareto_shares

UNCOMPRESSED = ""
"""Stands for the uncompressed run in the shares by bytes, where all optimizers' are one point."""


def shares_by_bytes(panel: Panel) -> dict[str, float]:
    """By arm, against bytes a step."""
    sent = {
        (str(row["arm"]), row["seed"]): number(row["wire_bytes_per_step"])
        for row in panel.runs
        if row["status"] == "done"
    }
    costs = {}
    for arm in _paired(panel):
        found = [value for (name, _), value in sorted(sent.items(), key=str) if name == arm and value]
        if found:
            costs[arm] = sum(found) / len(found)
    uncompressed = [number(row["wire_bytes_per_step"]) for row in panel.baselines]
    full = [value for value in uncompressed if value is not None]
    return _shares(panel, costs | ({UNCOMPRESSED: min(full)} if full else {}))


def shares_by_speed(panel: Panel, speedups: Mapping[str, float]) -> dict[str, float]:
    """By arm, against the seconds that its speedup stands for. speedups: by arm, uncompressed runs among them."""
    return _shares(panel, {arm: 1 / value for arm, value in speedups.items() if 0 < value < math.inf})


def _shares(panel: Panel, costs: Mapping[str, float]) -> dict[str, float]:
    differences = _paired(panel)
    seeds = max((len(found) for found in differences.values()), default=0)
    level = {str(row["arm"]) for row in panel.baselines} | {UNCOMPRESSED}
    known = {arm: [0.0] * seeds for arm in costs if arm in level}
    known |= {arm: found for arm, found in differences.items() if arm in costs and len(found) == seeds}
    if seeds < MINIMUM_FOR_INTERVAL or not known:
        return {}
    sign = 1.0 if panel.facts["direction"] == "higher" else -1.0
    values = [[sign * value for value in found] for found in known.values()]
    shares = pareto_shares([[costs[arm]] * seeds for arm in known], values)
    return dict(zip(known, shares, strict=True))


def _paired(panel: Panel) -> dict[str, list[float]]:
    """The differences to the own optimizer's uncompressed run by method, seeds in order; of those that lost none."""
    values = {(r["arm"], r["seed"]): number(r["value"]) for r in panel.runs if r["status"] == "done"}
    seeds = sorted({int(number(row["seed"]) or 0) for row in panel.runs})
    found = {}
    for row in panel.methods:
        pairs = [(values.get((row["arm"], seed)), values.get((row["baseline"], seed))) for seed in seeds]
        whole = [own - other for own, other in pairs if own is not None and other is not None]
        if len(whole) == len(seeds):
            found[str(row["arm"])] = whole
    return found
