"""A curve as a small SVG of plain path strings: cheap enough to draw one for each of thousands of runs.

Its colours are the page's variables, so it needs no copy for dark mode. Values that are not there break the line.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Final

WIDTH: Final = 460
HEIGHT: Final = 190
LEFT: Final = 64
RIGHT: Final = 14
TOP: Final = 12
BOTTOM: Final = 34
MOST_POINTS: Final = 300
"""A longer curve is thinned to so many; the file of metrics has all."""
DOTTED: Final = 40
"""So many points are marked each."""


def thinned(points: Sequence[tuple[float, float | None]]) -> list[tuple[float, float | None]]:
    """At most `MOST_POINTS` of the points, evenly spread over their order, first and last among them."""
    if len(points) <= MOST_POINTS:
        return list(points)
    last = len(points) - 1
    return [points[round(i * last / (MOST_POINTS - 1))] for i in range(MOST_POINTS)]


def curve(points: Sequence[tuple[float, float | None]], label: str, unit: str) -> str:
    """The <svg> of (step, value) pairs in the order of steps, `unit` at its upright axis; empty where no value is there.

    `label` is read to those who cannot see it.
    """
    shown = thinned(points)
    values = [y for _, y in shown if y is not None]
    if not values:
        return ""
    low, high = min(values), max(values)
    if low == high:
        low, high = low - (abs(low) or 1.0) * 0.05, high + (abs(high) or 1.0) * 0.05
    first, last = min(0.0, shown[0][0]), max(shown[-1][0], 1.0)

    def across(x: float) -> float:
        return LEFT + (x - first) / (last - first) * (WIDTH - LEFT - RIGHT)

    def up(y: float) -> float:
        return TOP + (high - y) / (high - low) * (HEIGHT - TOP - BOTTOM)

    commands, pen = [], "M"
    for x, y in shown:
        if y is None:
            pen = "M"
            continue
        commands.append(f"{pen}{across(x):.1f} {up(y):.1f}")
        pen = "L"
    dots = "".join(
        f'<circle cx="{across(x):.1f}" cy="{up(y):.1f}" r="2.4"/>' for x, y in shown if y is not None
    )
    base, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    lines = "".join(
        f'<path class="grid" d="M{LEFT} {up(y):.1f}H{right}"/>'
        f'<text x="{LEFT - 6}" y="{up(y) + 4:.1f}" text-anchor="end">{_short(y)}</text>'
        for y in (low, (low + high) / 2, high)
    )
    steps = "".join(
        f'<text x="{across(x):.1f}" y="{base + 16}" text-anchor="{anchor}">{_short(x)}</text>'
        for x, anchor in ((first, "start"), ((first + last) / 2, "middle"), (last, "end"))
    )
    name = f"{LEFT - 50} {(TOP + base) / 2:.0f}"
    return (
        f'<svg class="curve" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(label)}">{lines}'
        f'<path class="line" d="{"".join(commands)}"/>{dots if len(shown) <= DOTTED else ""}{steps}'
        f'<text x="{(LEFT + right) / 2:.0f}" y="{HEIGHT - 3}" text-anchor="middle">steps</text>'
        f'<text transform="translate({name}) rotate(-90)" text-anchor="middle">{escape(unit)}</text></svg>'
    )


def _short(value: float) -> str:
    return f"{value:.4g}".replace("-", "−")
