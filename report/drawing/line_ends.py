"""Names beside the ends of lines, in place of a legend: moved apart where they would touch."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes

from report.drawing.scales import per_point
from report.drawing.theme import colour

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
