"""The picture of where the time of a step goes: one bar a case, its phases beside each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from report.drawing.scales import bare, look, name_lines, new_figure, per_point, renderer
from report.drawing.theme import COLOURS

LINE_HEIGHT = 0.23
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


def _stack(axes: Axes, line: int, stack: Stack, factor: float) -> None:
    left = 0.0
    for role in PHASES:
        length = max(0.0, stack.seconds.get(role, 0.0)) * factor
        if length:
            hatch = "////" if role == "compute" and not stack.split else None
            axes.barh(
                line, length, 0.62, left, color=COLOURS[role], edgecolor=COLOURS["paper"], linewidth=0.6,
                hatch=hatch, zorder=2,
            )  # fmt: skip
        left += length
    if stack.low is not None and stack.high is not None:
        axes.plot(
            [stack.low * factor, stack.high * factor], [line, line], color=COLOURS["ink"], linewidth=1.2
        )
    axes.plot(
        [stack.step * factor], [line], "|", color=COLOURS["ink"], markersize=10, markeredgewidth=1.6, zorder=4
    )


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
            at += float(written.get_window_extent(renderer(axes)).width) / per_point(axes) + gap


def phases(stacks: Sequence[Stack], longest: float = 0.0, width: float = 6.4) -> Figure:
    """Fastest on top: the bar is its phases, the upright stroke the measured step, the line its interval.

    Figures that get the same `longest` (seconds) have the same axis.
    """
    stacks = sorted(stacks, key=lambda stack: (stack.step, stack.name))
    reach = max([longest, *(stack.reach for stack in stacks)])
    factor, unit = _unit(reach)
    height = 0.72 + LINE_HEIGHT * max(len(stacks), 2)
    left = 1.95
    with look():
        figure, (axes,) = new_figure(width, height)
        figure.subplots_adjust(
            left=left / width, right=1 - 0.12 / width, bottom=0.42 / height, top=1 - 0.26 / height
        )
        axes.set_xlim(0, reach * factor * 1.02)
        bare(axes, "x")
        for line, stack in enumerate(stacks):
            _stack(axes, line, stack, factor)
        _key(axes, left - 0.05, all(stack.split for stack in stacks))
        name_lines(axes, [(stack.name, stack.family) for stack in stacks])
        axes.set_xlabel(f"{unit} a step")
        return figure
