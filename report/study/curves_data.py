"""Mean curves as plain data: what the pictures of "To target" show, one line an arm."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from report.drawing.numbers import number
from report.study.data import Panel, StudyData
from suite.analysis.columns import CURVES, Column, described
from suite.analysis.statistics import MINIMUM_FOR_INTERVAL, mean_interval
from suite.analysis.tables import Row

MOST_POINTS = 300
"""Most points of a curve that a picture draws; the table has all."""

MEAN_CURVES: tuple[Column, ...] = (
    *CURVES.columns[:4],
    *described("int", step="completed steps", n="finished seeds"),
    *described("float", mean="of the metric over them", low="95 % t interval of it", high="its upper end"),
    *described("float", wire_bytes="bytes sent so far, mean over ranks and seeds"),
)
"""Columns of the mean curves, which the page offers as a download."""


@dataclass(frozen=True)
class Place:
    """One evaluation of an arm, over its finished seeds; no interval below six, bytes None where not recorded."""

    step: int
    mean: float
    low: float | None
    high: float | None
    wire_bytes: float | None


@dataclass(frozen=True)
class Curve:
    """One arm: the mean over the n seeds that finished, of so many planned."""

    arm: str
    family: str
    n: int
    planned: int
    places: tuple[Place, ...]


def panel_curves(study: StudyData) -> dict[str, dict[str, Curve]]:
    """Slug of each panel -> its curves by arm."""
    by_panel: dict[tuple[Any, ...], list[Row]] = {}
    for row in study.rows(CURVES):
        by_panel.setdefault((row["workload"], row["sharding"], row["world_size"]), []).append(row)
    return {p.slug: curves(p, by_panel.get((p.workload, p.sharding, p.world_size), [])) for p in study.panels}


def curves(panel: Panel, rows: Sequence[Row]) -> dict[str, Curve]:
    """The curve of every arm with a finished seed that kept one. rows: of the table `curves`, those of the panel."""
    done = {(row["arm"], row["seed"]) for row in panel.runs if row["status"] == "done"}
    by_run: dict[tuple[str, int], dict[int, Row]] = {}
    for row in rows:
        key = (str(row["arm"]), int(number(row["seed"]) or 0))
        if key in done:
            by_run.setdefault(key, {})[int(number(row["step"]) or 0)] = row
    found = {}
    by_arm: dict[str, list[dict[int, Row]]] = {}
    for (arm, _), run in sorted(by_run.items()):
        by_arm.setdefault(arm, []).append(run)
    for row in panel.summary:
        name = str(row["arm"])
        if own := by_arm.get(name):
            family = "control" if row["control"] else str(row["family"])
            found[name] = Curve(name, family, len(own), int(number(row["n"]) or 0), _places(own))
    return found


def _places(own: Sequence[Mapping[int, Row]]) -> tuple[Place, ...]:
    """At the steps that all seeds have, but for those where one of them was not finite."""
    places = []
    for step in sorted(set.intersection(*(set(run) for run in own))):
        values = [number(run[step]["value"]) for run in own]
        sent = [number(run[step]["wire_bytes"]) for run in own]
        known = [value for value in values if value is not None]
        if len(known) < len(values):
            continue
        interval = mean_interval(known) if len(known) >= MINIMUM_FOR_INTERVAL else None
        bytes_ = [one for one in sent if one is not None]
        places.append(
            Place(
                step,
                fmean(known),
                interval.low if interval else None,
                interval.high if interval else None,
                fmean(bytes_) if len(bytes_) == len(sent) else None,
            )
        )
    return tuple(places)


def drawn(places: Sequence[Place]) -> list[Place]:
    """At most `MOST_POINTS` of them, evenly spread, the last among them."""
    every = math.ceil(len(places) / MOST_POINTS) or 1
    return list(places[::-1][::every])[::-1]


def mean_curves(study: StudyData, found: Mapping[str, Mapping[str, Curve]]) -> list[Row]:
    """The rows behind all pictures of the study, by the columns `MEAN_CURVES`. found: as of `panel_curves`."""
    return [
        {
            "workload": panel.workload,
            "sharding": panel.sharding,
            "world_size": panel.world_size,
            "arm": arm,
            "step": place.step,
            "n": curve.n,
            "mean": place.mean,
            "low": place.low,
            "high": place.high,
            "wire_bytes": place.wire_bytes,
        }
        for panel in study.panels
        for arm, curve in sorted(found[panel.slug].items())
        for place in curve.places
    ]
