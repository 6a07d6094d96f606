"""Speed without training: how much faster a step is than the reference, and where its seconds go.

One picture has a line an arm and no axis of accuracy, the other a bar a case, its phases beside each other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from report.drawing.numbers import MISSING, factor, number, times
from report.drawing.scales import MEASURE, bare, look, name_lines, new_figure, per_point, speedup_axis
from report.drawing.table import Row
from report.drawing.theme import COLOURS, colour, mark
from report.study.data import LinkData, SessionData
from report.study.marks import grouped

ARM_HEIGHT = 0.27
"""Inches an arm."""
LEFT, RIGHT = 1.95, 1.25
"""Inches for the names and for the numbers beside the frame."""


@dataclass(frozen=True)
class Ratio:
    """A speedup with the interval of its median; None where too few rounds allow none."""

    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Bar:
    """One line: what was timed, and how much faster it is than the reference and than fp32 DDP as installed."""

    name: str
    family: str
    over_reference: Ratio
    over_default: Ratio | None


def _draw_ratio(axes: Axes, line: int, found: Ratio, family: str, solid: bool) -> None:
    """A mark with its interval; hollow for what is over fp32 DDP."""
    shade = colour(family)
    if found.low is not None and found.high is not None:
        axes.plot(
            [found.low, found.high], [line, line], color=shade, linewidth=1.6 if solid else 1.0, zorder=3
        )
    axes.plot(
        [found.value], [line], mark(family), markersize=6.5, color=shade, zorder=4,
        markerfacecolor=shade if solid else COLOURS["paper"], markeredgewidth=0.0 if solid else 1.0,
    )  # fmt: skip


def forest(bars: Sequence[Bar], reference: str, values: Sequence[float] = (), width: float = 6.4) -> Figure:
    """Fastest on top. Solid: over the reference, which `reference` names; hollow: over fp32 DDP as installed.

    Figures that get the same `values` have the same axis.
    """
    bars = sorted(bars, key=lambda bar: (-bar.over_reference.value, bar.name))
    height = 0.98 + ARM_HEIGHT * max(len(bars), 2)
    with look():
        figure, (axes,) = new_figure(width, height)
        figure.subplots_adjust(
            left=LEFT / width, right=1 - RIGHT / width, bottom=0.5 / height, top=1 - 0.46 / height
        )
        speedup_axis(axes, [*values, *(v for bar in bars for v in extent(bar))], (1.15, 1.15))
        bare(axes, "x")
        axes.axvline(1.0, color=COLOURS["baseline"], linewidth=1.1, zorder=1)
        for line, bar in enumerate(bars):
            if bar.over_default is not None:
                _draw_ratio(axes, line, bar.over_default, bar.family, False)
            _draw_ratio(axes, line, bar.over_reference, bar.family, True)
            for at, found in ((0.55, bar.over_reference), (1.15, bar.over_default)):
                axes.annotate(
                    times(found.value if found else None), (1, line), xycoords=("axes fraction", "data"),
                    xytext=(at * 72, 0), textcoords="offset points", ha="right", va="center", fontsize=8.2,
                    weight="bold" if at < 1 else "normal", color=colour(bar.family), annotation_clip=False,
                )  # fmt: skip
        _heads(axes)
        name_lines(axes, [(bar.name, bar.family) for bar in bars])
        axes.set_xlabel(f"times faster a step; 1× = {reference}")
        return figure


def extent(bar: Bar) -> list[float]:
    """All numbers that a line's marks and intervals reach."""
    found = [bar.over_reference] + ([bar.over_default] if bar.over_default else [])
    return [v for r in found for v in (r.value, r.low, r.high) if v is not None]


def _heads(axes: Axes) -> None:
    """What the two columns of numbers are over."""
    for at, words in ((0.55, "● over the\nreference"), (1.15, "○ over\nDDP fp32")):
        axes.annotate(
            words, (1, 1), xycoords="axes fraction", xytext=(at * 72, 4), textcoords="offset points", ha="right",
            va="bottom", fontsize=7.2, linespacing=1.05, color=COLOURS["muted"], annotation_clip=False,
        )  # fmt: skip


CASE_HEIGHT = 0.23
"""Inches a case."""
PHASES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "compute": "forward, backward",
        "encode": "encode",
        "exposed": "exposed communication",
        "decode": "decode",
        "update": "update, other",
    }
)
"""Role of the colour -> words, in the order in which a step takes them."""


@dataclass(frozen=True)
class Stack:
    """One case: seconds a step by phase, and the measured step with its interval, which need not be their sum.

    split: whether the phases were told apart; where not, `compute` is all that is not exposed communication.
    """

    name: str
    family: str
    seconds: Mapping[str, float]
    step: float
    low: float | None
    high: float | None
    split: bool

    @property
    def reach(self) -> float:
        """How far the bar and the interval go, in seconds."""
        return max(sum(max(0.0, v) for v in self.seconds.values()), self.step, self.high or 0.0)


def _unit(longest: float) -> tuple[float, str]:
    return (1.0, "seconds") if longest >= 2 else (1e3, "milliseconds")


def _draw_stacks(axes: Axes, stacks: Sequence[Stack], factor: float) -> None:
    """A line a case: phase after phase as bars, hatched where they were not told apart, then what was measured."""
    left = np.zeros(len(stacks))
    for role in PHASES:
        length = np.array([max(0.0, stack.seconds.get(role, 0.0)) * factor for stack in stacks])
        hatched = np.array([role == "compute" and not stack.split for stack in stacks], dtype=bool)
        for hatch, where in ((None, ~hatched), ("////", hatched)):
            lines = np.flatnonzero(where & (length > 0))
            if len(lines):
                axes.barh(
                    lines, length[lines], 0.62, left[lines], color=COLOURS[role], edgecolor=COLOURS["paper"],
                    linewidth=0.6, hatch=hatch, zorder=2,
                )  # fmt: skip
        left += length
    for line, stack in enumerate(stacks):
        if stack.low is not None and stack.high is not None:
            axes.plot(
                [stack.low * factor, stack.high * factor], [line, line], color=COLOURS["ink"], linewidth=1.2
            )
    axes.plot(
        [stack.step * factor for stack in stacks], range(len(stacks)), "|", color=COLOURS["ink"], markersize=10,
        markeredgewidth=1.6, zorder=4,
    )  # fmt: skip


def _key(axes: Axes, inches: float, split: bool) -> None:
    """Names of the phases in a row over the frame, each behind its colour; `split`: every case was told apart."""
    at = -inches * 72
    entries = [("■", role, words) for role, words in PHASES.items()]
    if not split:
        entries.append(("▨", "compute", "not told apart"))
    for sign, role, words in entries:
        for text, shade, gap in ((sign, role, 3.0), (words, "muted", 10.0)):
            written = axes.annotate(
                text, (0, 1), xycoords="axes fraction", xytext=(at, 4), textcoords="offset points", ha="left",
                va="bottom", fontsize=7.4, color=COLOURS[shade], annotation_clip=False,
            )  # fmt: skip
            at += float(written.get_window_extent(MEASURE).width) / per_point(axes) + gap


def phases(stacks: Sequence[Stack], longest: float = 0.0, width: float = 6.4) -> Figure:
    """Fastest on top: the bar is its phases, the upright stroke the measured step, the line its interval.

    Figures that get the same `longest` (seconds) have the same axis.
    """
    stacks = sorted(stacks, key=lambda stack: (stack.step, stack.name))
    reach = max([longest, *(stack.reach for stack in stacks)])
    factor, unit = _unit(reach)
    height = 0.72 + CASE_HEIGHT * max(len(stacks), 2)
    left = 1.95
    with look():
        figure, (axes,) = new_figure(width, height)
        figure.subplots_adjust(
            left=left / width, right=1 - 0.12 / width, bottom=0.42 / height, top=1 - 0.26 / height
        )
        axes.set_xlim(0, reach * factor * 1.02)
        bare(axes, "x")
        _draw_stacks(axes, stacks, factor)
        _key(axes, left - 0.05, all(stack.split for stack in stacks))
        name_lines(axes, [(stack.name, stack.family) for stack in stacks])
        axes.set_xlabel(f"{unit} a step")
        return figure


def stacks(link: LinkData) -> list[Stack]:
    """Where the seconds of a step go, for every case that was timed in all rounds."""
    found = []
    for row in link.timed:
        split = row["forward_backward_s"] is not None
        other = [number(row[c]) or 0.0 for c in ("update_s", "other_s")]
        seconds = {
            "compute": number(row["forward_backward_s"] if split else row["null_s"]) or 0.0,
            "encode": row["encode_s"] or 0.0,
            "exposed": row["exposed_s"] or 0.0,
            "decode": row["decode_s"] or 0.0,
            "update": sum(other),
        }
        step = row["step_s"] or 0.0
        ends = row["step_low"], row["step_high"]
        found.append(Stack(row["case"], link.family(row), seconds, step, *ends, split))
    return found


def drawn(arm: Row) -> bool:
    """Whether an arm has a speedup that may stand in a picture: not refused."""
    return not arm["refused"] and arm["speedup"] is not None


def rounds_words(link: LinkData) -> str:
    """6, or 6 to 8: rounds behind the speedups of a link."""
    counts = sorted({(row["n_pairs"] or 0) for row in link.arms if drawn(row)})
    if not counts:
        return "0"
    return str(counts[0]) if counts[0] == counts[-1] else f"{counts[0]} to {counts[-1]}"


def ratio_words(row: Row, stem: str = "speedup", low: str = "speedup_low", high: str = "speedup_high") -> str:
    """4.20× [4.00, 4.52]."""
    value, ends = number(row[stem]), (number(row[low]), number(row[high]))
    if ends[0] is None or ends[1] is None:
        return times(value)
    return f"{times(value)} [{factor(ends[0])}, {factor(ends[1])}]"


def bars(link: LinkData) -> list[Bar]:
    """Every arm of a session without a sweep, and torch's own DDP in its variants."""
    kinds = {row["arm"]: 0 for row in link.arms}
    for row in link.arms:
        kinds[row["arm"]] += 1
    found = []
    for row in link.arms:
        if drawn(row):
            name = row["arm"] if kinds[row["arm"]] == 1 else f"{row['arm']}: {row['kind']}"
            found.append(_bar(name, row["family"], row))
    found += [_bar(row["case"], "baseline", row) for row in link.timed if _own(row)]
    return found


def _own(case: Row) -> bool:
    return case["role"] == "ddp" and case["speedup"] is not None


def _bar(name: str, family: str, row: Row) -> Bar:
    over, default = (
        Ratio(value, number(row[low]), number(row[high]))
        if (value := number(row[column])) is not None
        else None
        for column, low, high in (
            ("speedup", "speedup_low", "speedup_high"),
            ("default_speedup", "default_low", "default_high"),
        )
    )
    if over is None:
        raise ValueError(f"{name} has no speedup to draw")
    return Bar(name, family, over, default)


def not_drawn(link: LinkData) -> list[str]:
    """Arms of a session without a sweep that have no speedup, with the reason."""
    missing: dict[str, list[str]] = {}
    for row in link.arms:
        if not drawn(row):
            missing.setdefault((row["reason"] or "no speedup"), []).append(f"{row['arm']}: {row['kind']}")
    return grouped(missing)


def session_forest(session: SessionData, link: LinkData) -> Figure:
    """The figure of a link of a session without trainings, on the axis that all its links share."""
    reach = [v for other in session.links if other.usable for bar in bars(other) for v in extent(bar)]
    return forest(bars(link), reference_name(link), reach)


def reference_name(link: LinkData) -> str:
    return link.reference["case"] if link.reference else MISSING


NAMED = 3
"""Methods that a sentence about speed alone names."""


def alone_sentence(session: SessionData, link: LinkData, named: int = NAMED) -> str:
    """The fastest methods of a session whose model was not trained to the end. named: how many; of one, how often it was timed
    stands elsewhere.
    """
    rows = [row for row in link.arms if drawn(row) and row["family"] not in {"baseline", "control"}]
    rows.sort(key=lambda row: (-(row["speedup"] or 0.0), row["arm"]))
    place = f"Speed only, {session.workload}, {session.facts['world_size']} workers at {link.label}"
    if not rows or link.reference is None:
        return f"{place}: no method has a speedup."
    arms = [row["arm"] for row in link.arms]
    said = "; ".join(
        _named(row, link, not index, row["kind"] if arms.count(row["arm"]) > 1 else "")
        for index, row in enumerate(rows[:named])
    )
    if named == 1:
        return f"{place}: {said}."
    return (
        f"{place}: {said}. (Median over {rounds_words(link)} rounds with its order-statistic interval, 95 %; "
        "not trained to the end here.)"
    )


def _named(row: Row, link: LinkData, first: bool, kind: str = "") -> str:
    """An arm's speedups over the reference and over fp32 DDP; the first of a sentence says what they are over. kind: of its
    steps, where others of its kinds have speedups too."""
    name = f"{row['arm']} ({kind} steps)" if kind else row["arm"]
    over, reference = ratio_words(row), str((link.reference or {}).get("case"))
    own = not link.default or link.default["case"] == reference
    default = "" if own else ratio_words(row, "default_speedup", "default_low", "default_high")
    if not first:
        return f"{name} {over}" + (f" and {default}" if default else "")
    rest = f" and {default} as fast as DDP fp32 as installed" if default else ""
    return f"{name} is {over} as fast as {reference}{rest}"
