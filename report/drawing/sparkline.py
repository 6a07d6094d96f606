"""A line of numbers in the height of a line of text, as SVG; its text alternative holds the numbers."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Final

WIDTH, HEIGHT, EDGE = 92.0, 20.0, 3.0
FLAT: Final = 1e-9
"""Relative spread below which the line is drawn flat."""


def sparkline(values: Sequence[float | None], words: str) -> str:
    """<svg> of the values in order, the last one marked; None is a gap. `words` says them to those who cannot see it.

    The scale is linear from the least to the largest, so that a change is seen whatever the level. Without a number: nothing.
    """
    known = [value for value in values if value is not None]
    if not known:
        return ""
    low, high = min(known), max(known)
    spread = high - low if high - low > FLAT * abs(high) else 0.0
    across = (WIDTH - 2 * EDGE) / max(1, len(values) - 1)

    def at(index: int, value: float) -> tuple[str, str]:
        x = WIDTH - EDGE if len(values) == 1 else EDGE + across * index
        y = HEIGHT / 2 if not spread else HEIGHT - EDGE - (HEIGHT - 2 * EDGE) * (value - low) / spread
        return f"{x:.1f}", f"{y:.1f}"

    path, pen = "", "M"
    last = ("", "")
    for index, value in enumerate(values):
        if value is None:
            pen = "M"
            continue
        last = at(index, value)
        path += f"{pen}{last[0]} {last[1]}"
        pen = "L"
    return (
        f'<svg class="spark" viewBox="0 0 {WIDTH:g} {HEIGHT:g}" role="img" aria-label="{escape(words, quote=True)}">'
        f'<path d="{path}"/><circle cx="{last[0]}" cy="{last[1]}" r="2.2"/></svg>'
    )
