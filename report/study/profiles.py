"""Performance profiles on the page: in how many cells a method is within tau times the best, by bytes and by steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from report.drawing.line_ends import name_ends
from report.drawing.numbers import number
from report.drawing.scales import bare, look
from report.drawing.svg import inline, svg_file
from report.drawing.table import Cell, Column, Line, View
from report.drawing.theme import FAMILIES, colour
from report.study.curves import twins
from report.study.data import StudyData
from suite.analysis.columns import PROFILES, TO_TARGET
from suite.analysis.statistics import LEAST_WORKLOADS, MINIMUM_FOR_INTERVAL
from suite.analysis.tables import Row

COLUMNS = {"steps": (1.0, 2.0, 4.0, 16.0), "bytes": (1.0, 2.0, 4.0, 16.0)}
"""The tau of the table's columns; the pictures have all."""
HIDDEN = {("steps", 4.0), ("steps", 16.0), ("bytes", 2.0)}
"""Columns that the page does not show at first."""


@dataclass(frozen=True)
class Steps:
    """One method and quantity: tau rising, the share at each, its band, and the share of cells it never got to."""

    arm: str
    family: str
    taus: tuple[float, ...]
    share: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    never: float
    cells: int

    @property
    def missed(self) -> int:
        """Cells that it never got to."""
        return round(self.never * self.cells)

    @property
    def name(self) -> str:
        """As it stands beside a picture, with the cells that it never got to, if any."""
        return f"{self.arm}, never {self.missed}/{self.cells}" if self.missed else self.arm

    def at(self, tau: float) -> int:
        """Index of the last tau that is no greater."""
        return max(i for i, one in enumerate(self.taus) if one <= tau * (1 + 1e-9))


def profiles_parts(study: StudyData) -> dict[str, Any]:
    """What the template needs; without a profile, why there is none in words."""
    rows = study.rows(PROFILES)
    if not rows:
        return {"pictures": [], "absent": _absent(study)}
    found = {quantity: _of(rows, quantity) for quantity in ("bytes", "steps")}
    families = dict.fromkeys(str(row["family"]) for row in rows if row["family"] != "baseline")
    baselines = _baselines(study)
    pictures = []
    for family in sorted(
        families, key=lambda one: (list(FAMILIES).index(one) if one in FAMILIES else 99, one)
    ):
        own = {arm for arm, one in found["steps"].items() if one.family == family}
        shown = sorted(own) + sorted({baselines[arm] for arm in own} & found["steps"].keys())
        words = FAMILIES.get(family, family)
        svg = svg_file(profile_figure(shown, own, found["bytes"], found["steps"]))
        label = f"Profiles of bytes and of steps to the target, {words}; the table has the shares"
        pictures.append(
            {
                "title": f"{words[0].upper()}{words[1:]}: share of the cells by bytes and by steps",
                "svg": inline(svg, f"p-{family}", label, _hover(shown, found)),
            }
        )
    return {
        "pictures": pictures,
        "cells": rows[0]["cells"],
        "seeds": rows[0]["seeds"],
        "view": profiles_view(found, int(number(rows[0]["cells"]) or 0)),
    }


def _absent(study: StudyData) -> str:
    cells = len({(row["workload"], row["sharding"], row["world_size"]) for row in study.rows(TO_TARGET)})
    return (
        f"A performance profile takes {LEAST_WORKLOADS} cells that share their arms, with {MINIMUM_FOR_INTERVAL} seeds each; "
        f"{cells} of this study {'has' if cells == 1 else 'have'} curves. "
        "`bandwise report profiles` makes the page of one that has enough."
    )


def _baselines(study: StudyData) -> dict[str, str]:
    """Arm -> the uncompressed run of its optimizer."""
    return {str(r["arm"]): str(r["baseline"]) for panel in study.panels for r in panel.methods}


def _of(rows: Sequence[Row], quantity: str) -> dict[str, Steps]:
    by_arm: dict[str, list[Row]] = {}
    for row in rows:
        if row["quantity"] == quantity:
            by_arm.setdefault(str(row["arm"]), []).append(row)

    def column(own: Sequence[Row], name: str) -> tuple[float, ...]:
        return tuple(number(row[name]) or 0.0 for row in own)

    return {
        arm: Steps(
            arm,
            str(own[0]["family"]),
            taus=column(own, "tau"),
            share=column(own, "share"),
            low=column(own, "low"),
            high=column(own, "high"),
            never=number(own[0]["never"]) or 0.0,
            cells=int(number(own[0]["cells"]) or 0),
        )
        for arm, own in by_arm.items()
    }


def profile_figure(
    shown: Sequence[str], own: set[str], by_bytes: Mapping[str, Steps], by_steps: Mapping[str, Steps]
) -> Figure:
    """Left bytes, right steps. shown: the arms in order of their numbers; own: those that are no baseline."""
    with look():
        figure, left, right = twins(len(shown))
        for axes, found, what in ((left, by_bytes, "bytes"), (right, by_steps, "steps")):
            _axes(axes, found, what)
            for place, arm in enumerate(shown, start=1):
                if arm in found:
                    _draw(axes, found[arm], place, f"curve{place}-{what}", dashed=arm not in own)
        left.set_ylabel("share of the cells")
        right.tick_params(labelleft=False)
        ends = [(place, by_steps[arm]) for place, arm in enumerate(shown, start=1) if arm in by_steps]
        name_ends(right, [(f"{place} {one.name}", one.share[-1], one.family) for place, one in ends])
        return figure


def _axes(axes: Axes, found: Mapping[str, Steps], what: str) -> None:
    bare(axes, "y")
    last = max((one.taus[-1] for one in found.values()), default=2.0)
    axes.set_xscale("log")
    axes.set_xlim(1, last)
    axes.set_ylim(-0.03, 1.03)
    every = 1 if last <= 16 else 2 if last <= 256 else 3
    axes.xaxis.set_major_locator(FixedLocator([2.0**k for k in range(0, 13, every) if 2.0**k <= last]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}×"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel(f"τ × fewest {what} (log)")


def _draw(axes: Axes, one: Steps, place: int, group: str, dashed: bool) -> None:
    shade = colour(one.family)
    axes.step(
        one.taus, one.share, where="post", color=shade, linewidth=1.1 if dashed else 1.4, gid=group, zorder=3,
        linestyle=(0, (4, 2)) if dashed else "-", clip_on=False,
    )  # fmt: skip
    if not dashed:
        axes.fill_between(
            one.taus, one.low, one.high, step="post", color=shade, alpha=0.1, linewidth=0, zorder=2
        )
    rise = next((i for i, share in enumerate(one.share) if share >= one.share[-1] / 2), 0)
    axes.annotate(
        str(place), (one.taus[rise], one.share[rise]), xytext=(2, 3), textcoords="offset points", fontsize=6.8,
        color=shade, annotation_clip=False,
    )  # fmt: skip


def _hover(shown: Sequence[str], found: Mapping[str, Mapping[str, Steps]]) -> dict[str, str]:
    return {
        f"curve{place}-{quantity}": f"{arm}: {_percent(found[quantity][arm].share[0])} of the cells at the fewest {quantity}, "
        f"{_percent(found[quantity][arm].never)} never"
        for place, arm in enumerate(shown, start=1)
        for quantity in found
        if arm in found[quantity]
    }


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def profiles_view(found: Mapping[str, Mapping[str, Steps]], cells: int) -> View:
    """Shares at a few tau with their bands, and how many cells were never reached."""
    columns = [
        Column("method", "method", "The sweep's label of a method with its options."),
        Column("never", "never reached", f"Cells of {cells} in which the median of its seeds never had the target.", True),
    ]  # fmt: skip
    for quantity, taus in COLUMNS.items():
        for tau in taus:
            about = f"Share of the cells in which it took at most {tau:g} times the fewest {quantity}, with its 95 % band."
            columns.append(
                Column(
                    f"{quantity}{tau:g}",
                    f"{quantity}, {tau:g}×",
                    about,
                    True,
                    True,
                    (quantity, tau) in HIDDEN,
                )
            )
    lines = []
    for arm, one in sorted(found["steps"].items(), key=lambda item: (-sum(item[1].share), item[0])):
        cells_ = {
            "method": Cell(arm, arm, css="arm"),
            "never": Cell(f"{one.missed} of {cells}", one.missed, css="no" if one.missed else ""),
        }
        for quantity, taus in COLUMNS.items():
            for tau in taus:
                cells_[f"{quantity}{tau:g}"] = _share(found[quantity].get(arm), tau)
        lines.append(Line(cells_, one.family))
    seen = {line.family for line in lines}
    chips = tuple((name, words) for name, words in FAMILIES.items() if name in seen)
    return View("profiles", "Profiles over all cells", tuple(columns), tuple(lines), chips)


def _share(one: Steps | None, tau: float) -> Cell:
    if one is None:
        return Cell("–")
    i = one.at(tau)
    note = f"[{_percent(one.low[i]).removesuffix(' %')}, {_percent(one.high[i])}]"
    return Cell(_percent(one.share[i]), one.share[i], note, (one.low[i], one.high[i]))
