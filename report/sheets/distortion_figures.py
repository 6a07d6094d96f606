"""The picture of rate and distortion: bits a coordinate against what the mean loses, both logarithmic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from report.drawing.labels import Box, Label, place
from report.drawing.methods import family
from report.drawing.scales import bare, look, new_figure, per_point, renderer
from report.drawing.svg import gid
from report.drawing.theme import COLOURS, colour, mark
from report.sheets.distortion_data import NOTHING, Source
from suite.analysis.tables import Row, number

WIDTH, HEIGHT = 4.3, 3.9
BIT_TICKS: Final = (0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000, 3000)


def panel(source: Source, beside: Sequence[Source]) -> Figure:
    """One panel; those it is shown with, `beside`, have the same axes. Names stand at the marks of the front alone."""
    with look():
        figure, (axes,) = new_figure(WIDTH, HEIGHT)
        figure.subplots_adjust(
            left=0.66 / WIDTH, right=1 - 0.12 / WIDTH, bottom=0.5 / HEIGHT, top=1 - 0.1 / HEIGHT
        )
        axes.set_xscale("log")
        axes.set_yscale("log")
        _limits(axes, [row for one in beside for row in one.rows], source.ring_bits)
        bare(axes, "y")
        axes.grid(axis="x")
        front = source.front
        line = [(number(row, "wire_bits"), number(row, "error")) for row in front]
        if line:
            axes.plot(*zip(*line, strict=True), color=COLOURS["front"], linewidth=3.2, zorder=1.5)
        axes.axhline(NOTHING, color=COLOURS["muted"], linewidth=0.8, linestyle=(0, (4, 3)), zorder=1)
        axes.annotate(
            "sending nothing", (0, NOTHING), xycoords=("axes fraction", "data"), xytext=(3, 2),
            textcoords="offset points", fontsize=6.8, style="italic", color=COLOURS["muted"],
        )  # fmt: skip
        axes.axvline(source.ring_bits, color=COLOURS["baseline"], linewidth=0.9, zorder=1)
        axes.annotate(
            "fp32 ring", (source.ring_bits, 1), xycoords=("data", "axes fraction"), xytext=(-3, -3),
            textcoords="offset points", fontsize=6.8, ha="right", va="top", color=COLOURS["baseline"],
        )  # fmt: skip
        for row, bound in source.bounds():
            at = number(row, "wire_bits")
            axes.plot(
                [at], [bound], "_", color=colour(family(row)), markersize=9, markeredgewidth=1.4, zorder=3
            )
        curve = sorted(
            (number(row, "wire_bits"), bound) for row, bound in source.bounds() if row["algorithm"] == "qsgd"
        )
        if curve:
            axes.plot(
                *zip(*curve, strict=True), color=colour("quantiser"), linewidth=0.8, linestyle=(0, (1, 2))
            )
        for index, row in enumerate(source.rows):
            _mark(axes, index, row)
        _names(axes, source.rows, front)
        axes.set_xlabel("bits that a rank sends a coordinate")
        axes.set_ylabel("squared error of the mean over its squared norm")
        return figure


def _limits(axes: Axes, rows: Sequence[Row], ring_bits: float) -> None:
    bits, errors = ([number(row, name) for row in rows] for name in ("wire_bits", "error"))
    bits.append(ring_bits)
    axes.set_xlim(min(bits) / 1.6, max(bits) * 1.6)
    axes.set_ylim(min(errors) / 2.5, max(errors) * 4)
    axes.xaxis.set_major_locator(
        FixedLocator([tick for tick in BIT_TICKS if min(bits) / 1.6 < tick < max(bits) * 1.6])
    )
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_locator(NullLocator())
    decades = [10.0**k for k in range(-12, 6, 2) if min(errors) / 2.5 < 10.0**k < max(errors) * 4]
    axes.yaxis.set_major_locator(FixedLocator(decades))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_locator(NullLocator())


def _mark(axes: Axes, index: int, row: Row) -> None:
    """A mark with its interval, hollow where the code is biased; an end at or below 0 is cut at the edge of the frame."""
    shade, x = colour(family(row)), number(row, "wire_bits")
    low, high = max(number(row, "error_low"), axes.get_ylim()[0]), number(row, "error_high")
    axes.plot([x, x], [low, high], color=shade, linewidth=1.1, solid_capstyle="butt", zorder=3)
    solid = bool(row["unbiased"])
    axes.plot(
        [x], [number(row, "error")], mark(family(row)), markersize=5.4, color=shade, gid=gid(index), zorder=4,
        markerfacecolor=shade if solid else COLOURS["paper"], markeredgewidth=0.0 if solid else 0.9,
    )  # fmt: skip


def _names(axes: Axes, rows: Sequence[Row], front: Sequence[Row]) -> None:
    scale = per_point(axes)

    def at(row: Row) -> tuple[float, float]:
        x, y = axes.transData.transform((number(row, "wire_bits"), number(row, "error"))) / scale
        return float(x), float(y)

    texts, labels = [], []
    for row in front:
        text = axes.text(0, 0, str(row["quantiser"]), fontsize=7.2, color=colour(family(row)), zorder=6)
        extent = text.get_window_extent(renderer(axes))
        labels.append(Label(*at(row), extent.width / scale, extent.height / scale))
        texts.append(text)
    others = [Box(x - 3, y - 3, x + 3, y + 3) for x, y in map(at, (row for row in rows if row not in front))]
    frame = axes.get_window_extent(renderer(axes))
    inner = Box(*(float(v / scale) for v in (frame.x0, frame.y0, frame.x1, frame.y1))).grown(-1)
    own = [Box(label.x - 3.5, label.y - 3.5, label.x + 3.5, label.y + 3.5) for label in labels]
    back = axes.transData.inverted()
    for text, box in zip(texts, place(labels, own, others, inner), strict=True):
        x, y = back.transform((box.x0 * scale, (box.y0 + 1.6) * scale))
        text.set_position((float(x), float(y)))


def hover(source: Source) -> dict[str, str]:
    """Hover text by group id."""
    return {
        gid(index): (
            f"{row['quantiser']}: {number(row, 'wire_bits'):.3g} bits, error {number(row, 'error'):.3g} "
            f"{interval_text(row, 'error')}, {row['n']} seeds{'' if row['unbiased'] else ', biased'}"
        )
        for index, row in enumerate(source.rows)
    }


def interval_text(row: Row, name: str) -> str:
    """[low, high] in three digits."""
    return f"[{number(row, f'{name}_low'):.3g}, {number(row, f'{name}_high'):.3g}]".replace("-", "−")
