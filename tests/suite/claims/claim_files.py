"""A made-up claim file and study, small enough to read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from suite.analysis.columns import RUNS, SENSITIVITY
from suite.analysis.published import facts_path
from suite.analysis.tables import table_path, write_table

STUDY = "claims/made-up"

HEAD = """\
paper: A paper
title: About a method
arxiv: "2401.00001"
claims:
"""

TRAINING = """\
  - id: made-up-loses
    statement: The method loses a point.
    place: table 1
    label: paper
    kind: training
    study: claims/made-up
    n: 6
    scale: made up
    parts:
      - {arm: method, against: base, quantity: accuracy, unit: points, is: below, threshold: -1}
"""

EXACT = """\
  - id: made-up-bits
    statement: A bit each way.
    place: abstract
    label: abstract
    kind: exact
    check: bits-per-parameter
    with: {algorithm: signsgd, n: 2}
    parts:
      - {quantity: bits, unit: bits, is: equals, threshold: 1, tolerance: 0.01}
"""


def write_claims(root: Path, *claims: str) -> Path:
    """The file of these claims under a results folder."""
    path = root / "claims" / "a-paper.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(HEAD + "".join(claims), encoding="utf-8")
    return path


def write_study(
    root: Path,
    arms: Mapping[str, Sequence[float | None]],
    *,
    commit: str = "c0ffee00",
    direction: str = "higher",
    sensitive: bool | None = True,
    stale: str = "",
) -> None:
    """Tables of a study of one cell; a value None stands for a run that diverged. sensitive None: no controls."""
    cell = {"workload": "digits", "sharding": "iid", "world_size": 4}
    rows = []
    for arm, values in arms.items():
        for seed, value in enumerate(values):
            row: dict[str, Any] = dict.fromkeys(RUNS.names)
            row |= {
                **cell,
                "arm": arm,
                "seed": seed,
                "run_id": f"{arm}-{seed}",
                "commit": commit,
                "stale": arm == stale,
            }
            row |= {
                "status": "diverged" if value is None else "done",
                "value": value,
                "nll": value,
                "metric": "accuracy",
            }
            rows.append(row)
    for table in (RUNS, SENSITIVITY):
        table_path(root, table, STUDY).parent.mkdir(parents=True, exist_ok=True)
    write_table(table_path(root, RUNS, STUDY), RUNS, rows)
    controls: dict[str, Any] = dict.fromkeys(SENSITIVITY.names)
    controls |= {
        **cell,
        "controls": 1,
        "sensitive": bool(sensitive),
        "reason": "controls say so",
        "margin": 0.3,
    }
    write_table(table_path(root, SENSITIVITY, STUDY), SENSITIVITY, [] if sensitive is None else [controls])
    about = {**cell, "metric": "accuracy", "direction": direction, "steps": 100, "batch_size": 32}
    facts_path(root, STUDY).write_text(json.dumps({"workloads": [about]}), encoding="utf-8")
