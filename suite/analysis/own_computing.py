"""kappa, a method's own computing as a share of that of a plain step, as the session of its study measured it.

It is seconds a step with every collective replaced by a local copy, over those of torch's own DDP on the same link of the same
session, less 1; kinds of steps weighed as the training has them, rounds of other lengths on the line through the timed ones in
1 / H.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from suite.analysis.published import find_frame
from suite.analysis.tables import ARMS, CASES, SESSION
from suite.timing.cases import cases_of
from suite.timing.spec import load_session
from suite.timing.store import ROUND


def own_computing(results_root: Path | str, study: str) -> dict[str, list[float]]:
    """kappa of every arm that the session of a study timed.

    Args:
        results_root: Under which its tables lie, made here or published.
        study: Name of both.

    Returns:
        Arm -> kappa on each link where it is known; below zero by noise. Nothing where no session of that name has tables, nor
        of an arm that the session's file no longer has.
    """
    timed, arms = (find_frame(results_root, table, f"{SESSION}{study}") for table in (CASES, ARMS))
    if timed is None or arms is None:
        return {}
    cases, timed = cases_of(load_session(study)), timed[timed["null_s"].notna()]
    found: dict[str, list[float]] = {}
    for _, row in arms.iterrows():
        here = timed[timed["link"] == row["link"]]
        plain = here.loc[here["role"] == "ddp", "null_s"].median()
        local = here.set_index("case")["null_s"]
        kinds = {
            kind: float(local[cases.of(case_id).label])
            for kind, case_id in cases.uses.get(row["arm"], {}).get(row["sharding"], {}).items()
            if cases.of(case_id).label in local.index
        }
        own = _composed(json.loads(row["steps_by_kind"] or "{}"), kinds)
        if own is not None and plain > 0:
            found.setdefault(row["arm"], []).append(own / plain - 1)
    return found


def _composed(units: Mapping[str, int], kinds: Mapping[str, float]) -> float | None:
    """Seconds a step without messages of a training of so many units; None where a kind was not timed so."""
    timed = sorted(
        (1 / int(kind.removeprefix(ROUND)), kinds[kind]) for kind in kinds if kind.startswith(ROUND)
    )
    total = steps = 0.0
    for kind, count in units.items():
        if kind.startswith(ROUND):
            if not timed:
                return None
            length = int(kind.removeprefix(ROUND))
            x, y = np.array(timed).T
            line = np.polynomial.Polynomial.fit(x, y, deg=min(1, len(timed) - 1))
            total += count * length * float(line(1 / length))
            steps += count * length
        elif kind in kinds:
            total += count * kinds[kind]
            steps += count
        else:
            return None
    return total / steps if steps else None
