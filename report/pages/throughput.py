"""Pictures of cost as work grows, and `docs/performance.md` made anew from the tables of rates.

Marks are medians with their quartiles; dashed lines are what theory says (`suite.micro.scaling`), grey where it is the
least that any code could take. The same tables give the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from report.drawing.scales import bare, look, new_figure
from report.drawing.svg import svg_file
from report.drawing.table import Row
from report.drawing.theme import COLOURS, colour, mark
from suite.micro.document import PICTURES

__all__ = ["DOCUMENT", "IMAGES", "pictures"]

_DOCS: Final = Path(__file__).resolve().parents[2] / "docs"
DOCUMENT: Final = _DOCS / "performance.md"
IMAGES: Final = _DOCS / "images"

_FAMILIES: Final[Mapping[str, str]] = {
    "copy": "baseline",
    "signs": "sign",
    "standard-dithering-8bit": "quantiser",
    "equal-levels-4bit": "adam",
    "top-k-1pct": "sparsifier",
    "packing": "baseline",
    "equal-levels": "quantiser",
    "allreduce-sgd": "baseline",
    "global-qsgd": "quantiser",
    "lion-cub-1bit": "sign",
    "powersgd": "variance-reduction",
    "ef-signsgd": "synchronisation",
    "qsgd": "adam",
}
"""Subject -> the family whose colour and mark it is drawn in; here they only tell subjects apart."""

_XLABEL: Final = {
    "elements": "elements",
    "bits": "bits an element",
    "workers": "simulated workers in one process",
}
_YLABEL: Final = {
    "elements": "seconds of a call",
    "bits": "seconds of a call",
    "workers": "seconds of a step, a worker",
}
_WIDTH: Final = 7.2


def pictures(rows: Sequence[Row]) -> dict[str, str]:
    """File name -> SVG, of what the rows hold."""
    found = {}
    for against, name in PICTURES.items():
        own = [row for row in rows if row["against"] == against]
        if own:
            with look():
                found[name] = svg_file(_figure(against, own))
    return found


def _figure(against: str, rows: Sequence[Row]) -> Figure:
    """A panel an operation, on common axes."""
    operations = [
        name
        for name in ("encode", "decode", "accumulate", "step")
        if any(r["operation"] == name for r in rows)
    ]
    figure, panels = new_figure(_WIDTH, 3.6, columns=len(operations))
    seconds = [_seconds(row, key) for row in rows for key in ("seconds", "theory") if row[key]]
    values = [_number(row["value"]) for row in rows if not (against == "bits" and row["subject"] == "copy")]
    for axes, operation in zip(panels, operations, strict=True):
        _panel(axes, against, [row for row in rows if row["operation"] == operation])
        axes.set_ylim(min(seconds) / 1.6, max(seconds) * 1.6)
        axes.set_xlim(min(values) / 1.25, max(values) * (1.25 if against == "bits" else 1.6))
        if operation != "step":
            axes.set_title(operation, fontsize=8.0, loc="left", color=COLOURS["ink"])
        if axes is not panels[0]:
            axes.set_yticklabels([])
    panels[0].set_ylabel(_YLABEL[against])
    figure.tight_layout()
    return figure


def _panel(axes: Axes, against: str, rows: Sequence[Row]) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    subjects = dict.fromkeys(row["subject"] for row in rows)
    for subject in subjects:
        own = sorted((r for r in rows if r["subject"] == subject), key=lambda row: _number(row["value"]))
        if against == "bits" and subject == "copy":
            axes.axhline(_seconds(own[0], "seconds"), color=COLOURS["muted"], linewidth=0.8)
            axes.annotate(
                "copy", (1.0, _seconds(own[0], "seconds")), fontsize=7, color=COLOURS["muted"], va="bottom"
            )
            continue
        _subject(axes, subject, own)
    axes.legend(frameon=False, fontsize=7, loc="upper left", handlelength=1.2, labelcolor=COLOURS["ink"])
    axes.set_xlabel(_XLABEL[against])
    bare(axes, "y")
    axes.yaxis.set_minor_locator(NullLocator())
    if against != "elements":
        ticks = sorted({_number(row["value"]) for row in rows} - ({32.0} if against == "bits" else set()))
        kept = [tick for tick in ticks if tick.is_integer() and int(tick) & (int(tick) - 1) == 0]
        axes.xaxis.set_major_locator(FixedLocator(kept))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_minor_locator(NullLocator())


def _subject(axes: Axes, subject: str, rows: Sequence[Row]) -> None:
    family = _FAMILIES.get(subject, "control")
    x = [_number(row["value"]) for row in rows]
    middle = [_seconds(row, "seconds") for row in rows]
    for at, row in zip(x, rows, strict=True):
        ends = [_seconds(row, "seconds_q1"), _seconds(row, "seconds_q3")]
        axes.plot([at, at], ends, color=colour(family), linewidth=1.0, solid_capstyle="butt")
    axes.plot(x, middle, mark(family), color=colour(family), markersize=4, markeredgewidth=0, label=subject)
    predicted = [(at, _seconds(row, "theory")) for at, row in zip(x, rows, strict=True) if row["theory"]]
    if predicted:
        axes.plot(*zip(*predicted, strict=True), color=colour(family), linewidth=0.8, linestyle=(0, (4, 3)))


def _seconds(row: Row, key: str) -> float:
    """Seconds of a call; of a step: a worker."""
    return _number(row[key]) / (_number(row["value"]) if row["against"] == "workers" else 1.0)


def _number(value: object) -> float:
    assert isinstance(value, int | float)
    return float(value)
