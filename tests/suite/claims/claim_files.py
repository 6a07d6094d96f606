"""A made-up claim file and study, small enough to read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from suite.analysis.published import facts_path
from suite.analysis.statistics import cells, mean_interval
from suite.analysis.tables import (
    ARMS,
    NET,
    RUNS,
    SUMMARY,
    WORTH,
    session_table_path,
    table_path,
    write_table,
)
from suite.claims.claim import Claim, read_claims
from suite.runs.files import YamlFile
from suite.runs.plan import MINIMUM_FOR_INTERVAL
from suite.runs.sweep import ONE_WORKER

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

SPEED = """\
  - id: made-up-fast
    statement: Twice as fast.
    place: abstract
    label: abstract
    kind: speed
    study: claims/made-up
    session: made-up
    n: 6
    scale: made up
    quantifier: any
    parts:
      - {link: 10 Mbit/s, arm: method, quantity: net, unit: times, is: above, threshold: 2}
      - {link: 1 Gbit/s, arm: method, quantity: net, unit: times, is: above, threshold: 2}
"""

OTHER = (
    TRAINING.replace("made-up-loses", "made-up-falls")
    .replace("loses a point", "loses half a point")
    .replace("table 1", "abstract")
    .replace("label: paper", "label: abstract")
    .replace("threshold: -1", "threshold: -0.5")
)
"""A claim that the same numbers decide."""

BASE = (90.0, 91.0, 92.0, 93.0, 94.0, 95.0)
WORSE = (88.0, 88.9, 90.1, 91.0, 91.9, 93.1)
CONTROL = (80.0, 81.1, 82.0, 83.0, 83.9, 85.0)
"""Loses 10 points to BASE."""


def read_text(text: str, file: str) -> list[Claim]:
    """The claims of one file's text."""
    return read_claims(YamlFile.loads(text, file))


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
    workload: str = "code-gpt",
    controls: Mapping[str, Sequence[float | None]] = MappingProxyType({"control": CONTROL}),
    stale: str = "",
    lr_edge: bool | None = False,
    tuning_sd: float | None = 0.0,
    own_sd: float | None = 0.0,
) -> None:
    """Tables of a study of one cell. The arm `base` is the baseline of all others and the reference of what they are worth.

    arms, controls: the metric by seed; None stands for a run that diverged. lr_edge, tuning_sd, own_sd: as in the tables
    `summary` and `worth`, of all arms, which are worth 0.5 [0.4, 0.6].
    """
    cell = {"workload": workload, "sharding": "iid", "world_size": 4}
    runs, summary, worths = [], [], []
    for arm, values in {**arms, **controls}.items():
        of_arm = {**cell, "arm": arm}
        runs += [
            {
                **of_arm, "seed": seed, "run_id": f"{arm}-{seed}", "stale": arm == stale, "metric": "accuracy",
                "status": "diverged" if value is None else "done", "value": value, "nll": value,
            }
            for seed, value in enumerate(values)
        ]  # fmt: skip
        pairs = zip(values, arms["base"], strict=False)
        whole = [(own, base) for own, base in pairs if own is not None and base is not None]
        counts = {"n": len(values), "n_diverged": len(values) - len(whole)}
        algorithm = arm if arm == ONE_WORKER else "qsgd"
        about = {"algorithm": algorithm, "control": arm in controls, "lr_edge": lr_edge}
        if arm != "base":
            about["baseline"] = "base"
            if len(whole) >= MINIMUM_FOR_INTERVAL:
                found = mean_interval([own - base for own, base in whole])
                about |= cells(found, "diff_mean", "diff_") | cells(found, "nll_diff_mean", "nll_diff_")
            worths.append(
                {
                    **of_arm,
                    "reference": "base",
                    "tuning_sd": tuning_sd,
                    "tuning_df": 30.0,
                    "own_sd": own_sd,
                    "own_df": 30.0,
                    **counts,
                    "worth": 0.5,
                    "low": 0.4,
                    "high": 0.6,
                }
            )
        summary.append({**of_arm, **counts, **about})
    for table, rows in ((RUNS, runs), (SUMMARY, summary), (WORTH, worths)):
        write_table(table_path(root, table, STUDY), table, rows)
    facts = {**cell, "metric": "accuracy", "direction": "higher", "steps": 100, "batch_size": 32}
    facts_path(root, STUDY).write_text(json.dumps({"workloads": [facts]}), encoding="utf-8")


def write_net(root: Path, *rows: Mapping[str, Any]) -> None:
    """The table `net` of a session, of the arm `method`: confirmed by direct runs, three sessions."""
    words = dict.fromkeys(("plain", "alone", "verdict"), "worth it")
    known = {
        "sharding": "iid",
        "arm": "method",
        "n": 6,
        "sessions": 3,
        "rounds": 24,
        "check": "confirmed",
    } | words
    write_table(session_table_path(root, NET, "made-up"), NET, [known | dict(row) for row in rows])


def write_arms(root: Path, composition: str) -> None:
    """The table `arms` of that session: how the seconds of `method` are made on its two links."""
    rows = [
        {"link": link, "sharding": "iid", "arm": "method", "kind": "run", "composition": composition}
        for link in ("10 Mbit/s", "1 Gbit/s")
    ]
    write_table(session_table_path(root, ARMS, "made-up"), ARMS, rows)


def net(link: str, low: float, middle: float, high: float, **more: Any) -> dict[str, Any]:
    """A row of it."""
    return {"link": link, "net": middle, "net_low": low, "net_high": high, **more}
