"""How pictures look, and how they become SVG files: seaborn and matplotlib on pandas frames, one style, light and dark.

A file has no date and no ids by chance, so that the same tables give the same bytes. It is drawn for light paper; a style in it
changes its colours where the reader prefers dark, on a page and alone. Text stays text.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, Final, Literal

import matplotlib as mpl
import numpy as np
import pandas as pd
import seaborn as sns
from adjustText import adjust_text
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.text import Text
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator
from matplotlib.transforms import Bbox

FAMILIES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "baseline": "uncompressed",
        "sign": "sign",
        "quantiser": "quantiser",
        "sparsifier": "sparsifier",
        "adam": "compressed Adam",
        "synchronisation": "fewer synchronisations",
        "variance-reduction": "variance reduction",
        "control": "negative control",
    }
)
"""Family name -> the words for it, in the order in which they are listed."""
SHADES: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {
        "baseline": ("#23262b", "#e9e9e6"),
        "sign": ("#0173b2", "#56b0ea"),
        "quantiser": ("#0a7d5c", "#3fc79e"),
        "sparsifier": ("#8a2a1f", "#f25a20"),
        "adam": ("#c04f00", "#ff9550"),
        "synchronisation": ("#a24a92", "#e39ad4"),
        "variance-reduction": ("#5b1391", "#8c83ff"),
        "control": ("#6d7075", "#9a9da3"),
        "ink": ("#24272c", "#e4e4e0"),
        "muted": ("#63676e", "#a0a4aa"),
        "rule": ("#dcdee1", "#34383e"),
        "band": ("#dfeedd", "#1f3327"),
        "compute": ("#b4b8be", "#5c6168"),
        "encode": ("#8fbce0", "#6ea6d4"),
        "exposed": ("#cf4257", "#f06a7d"),
        "decode": ("#3f7cb0", "#3a76ab"),
        "update": ("#7d828b", "#8b9099"),
        "paper": ("#fefefd", "#1a1d21"),
    }
)
"""Role -> colour on light and on dark paper. Most of families are seaborn's "colorblind" ones, darkened to be read on white;
those of sparsifiers and of variance reduction lie farthest from all others, as the three kinds of colour blindness see them."""
COLOURS: Final = MappingProxyType({role: light for role, (light, _) in SHADES.items()})
MARKS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "baseline": "s",
        "sign": "o",
        "quantiser": "^",
        "sparsifier": "v",
        "adam": "D",
        "synchronisation": "P",
        "variance-reduction": "*",
        "control": "X",
    }
)
"""Family -> matplotlib marker: families are told apart without colour too."""
STYLE: Final[Mapping[Any, Any]] = MappingProxyType(
    {
        "font.family": "DejaVu Sans",
        "font.size": 9.0,
        "axes.edgecolor": COLOURS["rule"],
        "axes.labelcolor": COLOURS["muted"],
        "axes.facecolor": "none",
        "axes.titlesize": 10.5,
        "axes.titleweight": "bold",
        "axes.titlelocation": "left",
        "figure.facecolor": COLOURS["paper"],
        "savefig.facecolor": COLOURS["paper"],
        "text.color": COLOURS["ink"],
        "xtick.color": COLOURS["muted"],
        "ytick.color": COLOURS["muted"],
        "grid.color": COLOURS["rule"],
        "grid.linewidth": 0.6,
        "axes.linewidth": 0.6,
        "legend.frameon": False,
        "legend.fontsize": 8.0,
        "svg.hashsalt": "bandwise",
        "svg.fonttype": "none",
    }
)
FONTS: Final = "'DejaVu Sans', Verdana, sans-serif"
"""Verdana is as wide as DejaVu Sans, in which names were placed."""
LINEAR_MARGINS: Final = 2.5
"""A logarithmic axis of differences is linear up to so many margins."""
LOGARITHMIC_MARGINS: Final = 12
"""Differences beyond so many margins make the axis logarithmic."""
SVG_DPI: Final = 72
"""Of matplotlib's SVG files."""
NAMING_ROUNDS: Final = 60
"""Of moving names; a bound on time would make pictures depend on the machine."""


def colour(family: str) -> str:
    """Colour of a family; a family nobody has drawn before gets the ink."""
    return COLOURS.get(family, COLOURS["ink"])


@contextmanager
def look() -> Iterator[None]:
    """matplotlib's own defaults under seaborn's white grid and ours, whatever the reader's matplotlibrc says."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update({**sns.axes_style("whitegrid"), **STYLE})
        yield


def new_figure(
    width: float, height: float, columns: int = 1, ratios: Sequence[float] | None = None
) -> tuple[Figure, list[Axes]]:
    """A figure in inches with its axes in a row, outside of pyplot's global state. Call it inside of `look`.

    ratios: of the widths of the columns, where they are not equal.
    """
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    axes = list(np.atleast_1d(figure.subplots(1, columns, width_ratios=ratios)).flat)
    for one in axes:
        sns.despine(ax=one, left=True)
        one.set_axisbelow(True)
        one.tick_params(length=0)
    return figure, axes


def settle(figure: Figure) -> None:
    """Lay the axes out for good, which otherwise is done by drawing a whole figure for nothing. Call it inside of `look`."""
    layout = figure.get_layout_engine()
    if isinstance(layout, ConstrainedLayoutEngine):
        FigureCanvasSVG(figure)
        figure.dpi = SVG_DPI
        layout.execute(figure)
        figure.set_layout_engine(None)


def svg(figure: Figure) -> str:
    """The figure as an SVG file, the same bytes each time."""
    written = io.StringIO()
    with look():
        settle(figure)
        figure.savefig(written, format="svg", metadata={"Date": None, "Creator": None})
    text = written.getvalue().replace("font-family: 'DejaVu Sans'", f"font-family: {FONTS}")
    dark = "".join(
        f'[style*="{what}: {light}"]{{{what}:{other}!important}}'
        for light, other in SHADES.values()
        for what in ("fill", "stroke")
        if f"{what}: {light}" in text
    )
    text = text.replace(
        "*{stroke-linejoin", f"@media (prefers-color-scheme:dark){{{dark}}}*{{stroke-linejoin", 1
    )
    return "\n".join(line.rstrip() for line in text.split("\n"))


def _signed(value: float, _: int | None = None) -> str:
    return f"{value:+.3g}".replace("-", "−") if abs(value) > 1e-12 else "0"


def difference_axis(axes: Axes, which: Literal["x", "y"], values: Sequence[float], margin: float) -> None:
    """Scale one axis to differences: linear, or logarithmic beyond 2.5 margins where the values span that much."""
    low, high, linear = min([*values, -margin]), max([*values, margin]), LINEAR_MARGINS * margin
    axis = axes.xaxis if which == "x" else axes.yaxis
    scale, limit = (axes.set_xscale, axes.set_xlim) if which == "x" else (axes.set_yscale, axes.set_ylim)
    if max(-low, high) > LOGARITHMIC_MARGINS * margin:
        scale("symlog", linthresh=linear, linscale=1.4)
        limit(
            *(
                end * 1.5 if abs(end) > linear else end + 0.3 * math.copysign(margin, end)
                for end in (low, high)
            )
        )
        decades = [sign * 10.0**power for power in range(-6, 6) for sign in (-1, 1)]
        ticks = [tick for tick in decades if abs(tick) >= linear and 1.5 * low <= tick <= 1.5 * high]
        axis.set_major_locator(FixedLocator(sorted([0.0, *ticks])))
        axis.set_minor_locator(NullLocator())
    else:
        limit(low - 0.08 * (high - low), high + 0.12 * (high - low))
    axis.set_major_formatter(FuncFormatter(_signed))
    axis.set_minor_formatter(NullFormatter())


def times_axis(axes: Axes, values: Sequence[float]) -> None:
    """Scale the x axis to ratios, logarithmic, with 1x inside, powers of two as ticks, and a quarter free at either end."""
    low, high = min([0.8, *values]) / 1.25, max([1.25, *values]) * 1.25
    axes.set_xscale("log")
    axes.set_xlim(low, high)
    ticks = [2.0**power for power in range(-8, 12) if low <= 2.0**power <= high]
    axes.xaxis.set_major_locator(FixedLocator(ticks[:: -(-len(ticks) // 9)]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.3g}×"))
    axes.xaxis.set_minor_locator(NullLocator())


def name_lines(axes: Axes, families: Sequence[str]) -> None:
    """The names of the lines of a figure, one a family given, in the family's colour; the first stands on top."""
    axes.set_ylabel("")
    if not families:
        axes.set_yticks([])  # nothing is drawn
        return
    for tick, family in zip(axes.get_yticklabels(), families, strict=True):
        tick.set_color(colour(family))
    axes.set_ylim(len(families) - 0.4, -0.6)


def _part(axes: Axes, texts: Sequence[Text]) -> None:
    """Move names up that still lie on one below, since `adjust_text` weighs names against marks."""
    placed: list[Bbox] = []
    for text in sorted(texts, key=lambda one: one.get_window_extent().y0):
        box = start = text.get_window_extent()
        while under := [other for other in placed if box.overlaps(other)]:
            box = box.translated(0, max(other.y1 for other in under) - box.y0 + 0.1)
        x, y = axes.transData.transform(text.get_position())
        text.set_position(tuple(axes.transData.inverted().transform((x, y + box.y0 - start.y0))))
        placed.append(box)


def name_points(axes: Axes, points: pd.DataFrame, also: pd.DataFrame) -> None:
    """Write each name beside its point, so that names keep away from points and from each other.

    Args:
        points: A row a point: `x`, `y`, `name`, `family`.
        also: Further places that names keep away from: `x`, `y`.
    """
    figure = axes.get_figure(root=True)
    assert figure is not None
    settle(figure)  # what is placed now must not move
    texts = [
        axes.text(one["x"], one["y"], one["name"], fontsize=8.0, color=colour(one["family"]), zorder=6)
        for one in points.to_dict("records")
    ]
    places = pd.concat([points[["x", "y"]], also])
    adjust_text(
        texts, x=places["x"].to_numpy(), y=places["y"].to_numpy(), ax=axes, iter_lim=NAMING_ROUNDS, expand=(1.08, 1.25),
        arrowprops={"arrowstyle": "-", "color": COLOURS["muted"], "linewidth": 0.5, "shrinkA": 2, "shrinkB": 3},
    )  # fmt: skip
    _part(axes, texts)
