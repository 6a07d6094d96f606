"""Picture: the settings of papers and of sessions on the axis of rho, a line a setting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from report.drawing.scales import bare, look, new_figure
from report.drawing.svg import svg_file
from report.drawing.theme import COLOURS
from suite.costs.papers import Placed

_WIDTH: Final = 7.2
_LINE: Final = 0.2
"""Inches a line."""
_ENDS: Final = (0.1, 40.0)


def rho_axis(places: Sequence[Placed]) -> str:
    """SVG: a line a setting, the largest rho above. Where rho is a lower bound the mark points to the right."""
    with look():
        figure, (axes,) = new_figure(_WIDTH, 0.7 + _LINE * len(places))
        axes.set_xscale("log")
        axes.axvline(1.0, color=COLOURS["muted"], linewidth=0.8)
        for height, one in enumerate(reversed(places)):
            ink = COLOURS["quantiser" if one.session else "sign"]
            axes.plot(
                one.rho, height, ">" if one.least else "o", color=ink, markersize=4.5, markeredgewidth=0
            )
        axes.set_xlim(*_ENDS)
        axes.set_ylim(-0.7, len(places) - 0.3)
        axes.set_yticks(
            range(len(places)), [f"{one.paper}: {one.setting}" for one in reversed(places)], fontsize=6.5
        )
        axes.tick_params(axis="y", length=0)
        axes.xaxis.set_major_locator(FixedLocator([0.1, 0.3, 1, 3, 10, 30]))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xlabel("rho: uncompressed communication over computing")
        bare(axes, "x")
        figure.tight_layout()
        return svg_file(figure)
