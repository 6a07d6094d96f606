"""The axes of the pictures: linear near the margin, logarithmic beyond it, spaced ticks, names at the ends of lines."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any, Final, Literal

import matplotlib as mpl
import numpy as np
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg, RendererAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator

from report.drawing.theme import COLOURS, colour

STYLE = MappingProxyType(
    {
        "font.family": "DejaVu Sans",
        "font.size": 8.0,
        "axes.edgecolor": COLOURS["muted"],
        "axes.labelcolor": COLOURS["muted"],
        "axes.facecolor": "none",
        "figure.facecolor": COLOURS["paper"],
        "savefig.facecolor": COLOURS["paper"],
        "text.color": COLOURS["ink"],
        "xtick.color": COLOURS["muted"],
        "ytick.color": COLOURS["muted"],
        "grid.color": COLOURS["rule"],
        "grid.linewidth": 0.6,
        "axes.linewidth": 0.6,
        "axes.titley": 1.0,
        "svg.hashsalt": "bandwise",
        "svg.fonttype": "none",
    }
)
"""matplotlib settings of every picture."""
LINEAR_MARGINS = 2.5
"""A logarithmic difference axis is linear up to so many margins."""
LOGARITHMIC_MARGINS = 12
"""Differences beyond so many margins make the axis logarithmic."""
TICK_GAP = 13.0
"""Least distance of two ticks in points on a vertical axis; twice as much on a horizontal one."""


def _checked(settings: Mapping[Any, Any]) -> dict[Any, Any]:
    """All of matplotlib's settings under these, as matplotlib keeps them once it has checked them."""
    with mpl.rc_context({**settings}):
        return {key: mpl.rcParams[key] for key in settings}


_LOOK: Final[dict[Any, Any]] = _checked(
    {k: v for k, v in mpl.rcParamsDefault.items() if not k.startswith(("backend", "interactive"))}
    | sns.axes_style("white")
    | STYLE
)
_looking: Final = ContextVar("looking", default=False)


@contextmanager
def look() -> Iterator[None]:
    """matplotlib's own defaults under seaborn's white style and ours, whatever the reader's matplotlibrc
    says. Costs nothing inside of itself, so that who draws many figures enters it once.
    """
    if _looking.get():
        yield
        return
    with mpl.rc_context():
        dict.update(
            mpl.rcParams, _LOOK
        )  # checked already, which takes longer than to draw a small figure's axes
        inside = _looking.set(True)
        try:
            yield
        finally:
            _looking.reset(inside)


def new_figure(width: float, height: float, columns: int = 1, rows: int = 1) -> tuple[Figure, list[Axes]]:
    """A figure in inches with its axes row by row, outside of pyplot's global state."""
    figure = Figure(figsize=(width, height), dpi=DPI)
    FigureCanvasAgg(figure)
    return figure, list(np.atleast_1d(figure.subplots(rows, columns)).flat)


def per_point(axes: Axes) -> float:
    """Pixels a point."""
    return float(axes.get_figure(root=True).dpi / 72)  # type: ignore[union-attr]


DPI = 100
MEASURE = RendererAgg(1, 1, DPI)  # type: ignore[no-untyped-call]
"""What measures text in all figures, each text once; the same metrics on every machine, since matplotlib ships the font."""


def _tick(value: float, _: int | None = None) -> str:
    return f"{value:+.3g}".replace("-", "−") if abs(value) > 1e-12 else "0"


def _spread(axes: Axes, which: Literal["x", "y"], ticks: Sequence[float]) -> list[float]:
    """The ticks that keep their distance, those nearest to zero first."""
    gap = TICK_GAP * (2 if which == "x" else 1) * per_point(axes)
    kept: dict[float, float] = {}
    nearest = sorted(ticks, key=lambda t: (abs(t), t))
    stands = axes.transData.transform([(tick, 1) if which == "x" else (1, tick) for tick in nearest])
    for tick, at in zip(nearest, stands[:, 0 if which == "x" else 1].tolist(), strict=True):
        if all(abs(at - other) >= gap for other in kept.values()):
            kept[tick] = at
    return sorted(kept)


def difference_axis(axes: Axes, which: Literal["x", "y"], values: Sequence[float], margin: float) -> None:
    """Scale one axis to differences: linear, or logarithmic beyond 2.5 margins where the values span that
    much.
    """
    low, high, linear = min([*values, -margin]), max([*values, margin]), LINEAR_MARGINS * margin
    axis, limit, scale = (
        (axes.xaxis, axes.set_xlim, axes.set_xscale)
        if which == "x"
        else (axes.yaxis, axes.set_ylim, axes.set_yscale)
    )
    if max(-low, high) <= LOGARITHMIC_MARGINS * margin:
        pad = 0.08 * (high - low)
        limit(low - pad, high + 1.5 * pad)
    else:
        scale("symlog", linthresh=linear, linscale=1.4)
        limit(
            *(
                end * 1.5 if abs(end) > linear else end * 1.2 + sign * 0.3 * margin
                for sign, end in ((-1, low), (1, high))
            )
        )
        decades = [f * 10.0**e for e in range(-6, 6) for f in (1, 2, 5)]
        inside = [
            s * t for t in decades if t >= linear / 2 for s in (1, -1) if low * 1.5 <= s * t <= high * 1.5
        ]
        axis.set_major_locator(FixedLocator(_spread(axes, which, [0.0, *inside])))
        axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(_tick))
    axis.set_minor_formatter(NullFormatter())


def speedup_axis(axes: Axes, values: Sequence[float], room: tuple[float, float] = (1.25, 1.5)) -> None:
    """Scale the x axis to speedups, logarithmic, with 1x inside; `room` is the factor left free at either end.

    Panels that get the same values have the same axis. Ticks are powers of two, or 1, 2, 5 steps between them
    where the values span less than two octaves.
    """
    low, high = min([0.8, *values]) / room[0], max([1.25, *values]) * room[1]
    axes.set_xscale("log")
    axes.set_xlim(low, high)
    octaves = math.log2(high / low)
    steps = [2.0**k for k in range(-8, 12)]
    if octaves < 2.5:
        steps = sorted({*steps, *(1.5 * step for step in steps)})
    ticks = [step for step in steps if low <= step <= high]
    while len(ticks) > 9:
        ticks = [tick for tick in ticks if round(math.log2(tick)) % 2 == 0]
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.3g}×"))
    axes.xaxis.set_minor_locator(NullLocator())


def bare(axes: Axes, grid: Literal["x", "y"]) -> None:
    """Grid lines one way, no frame but the lower line, no tick marks."""
    axes.grid(axis=grid)
    axes.set_axisbelow(True)
    sns.despine(ax=axes, left=True)
    axes.tick_params(length=0)


def name_lines(axes: Axes, lines: Sequence[tuple[str, str]]) -> None:
    """One line of the figure for each (name, family), the first on top, named in the family's colour."""
    axes.set_yticks(range(len(lines)), [name for name, _ in lines])
    for tick, (_, family) in zip(axes.get_yticklabels(), lines, strict=True):
        tick.set_color(colour(family))
    axes.set_ylim(len(lines) - 0.4, -0.6)


GAP = 9.5
"""Least distance of two names, in points."""
STROKE = {"arrowstyle": "-", "linewidth": 0.5, "relpos": (0, 0.5), "shrinkA": 1, "shrinkB": 0}
"""From the end of a line to its name."""


def name_ends(axes: Axes, ends: Sequence[tuple[str, float, str]]) -> None:
    """A name for each (text, y at which its line ends on the right edge, family), in the family's colour."""
    scale = per_point(axes)
    right = axes.get_xlim()[1]
    heights = [float(axes.transData.transform((right, y))[1]) / scale for _, y, _ in ends]
    frame = axes.get_window_extent()
    edge, low, high = (float(v) / scale for v in (frame.x1, frame.y0, frame.y1))
    spots = spread(heights, GAP, low, high)
    for (text, _, family), height, spot in zip(ends, heights, spots, strict=True):
        axes.annotate(
            text, (edge, height), xytext=(edge + 12, spot), xycoords="figure points", textcoords="figure points",
            va="center", fontsize=7.2, color=colour(family), annotation_clip=False,
            arrowprops={**STROKE, "color": colour(family)},
        )  # fmt: skip


def spread(ends: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """The ends moved apart to at least `gap`, in their order; inside low to high where that is room enough."""
    order = sorted(range(len(ends)), key=lambda i: (ends[i], i))
    blocks: list[tuple[float, int]] = []  # neighbours that touch: their centre, how many
    for index in order:
        blocks.append((ends[index], 1))
        while len(blocks) > 1 and blocks[-1][0] - blocks[-2][0] < gap * (blocks[-1][1] + blocks[-2][1]) / 2:
            (a, m), (b, n) = blocks[-2:]
            blocks[-2:] = [((a * m + b * n) / (m + n), m + n)]
    spots = [centre + gap * (i - (many - 1) / 2) for centre, many in blocks for i in range(many)]
    ceiling, floor = high, low
    for i in reversed(range(len(spots))):
        spots[i] = ceiling = min(spots[i], ceiling)
        ceiling -= gap
    for i in range(len(spots)):
        spots[i] = floor = max(spots[i], floor)
        floor += gap
    return [spots[order.index(i)] for i in range(len(ends))]
