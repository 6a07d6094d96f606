"""Mean curves of the metric, a picture a family, against bytes and against steps: up is better.

The arms of a family are solid, with their intervals; dashed are the uncompressed runs that they are compared with. All pictures
of a panel have the same upright axis: the metric less where the best uncompressed run ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any, Final

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator
from scipy import stats

from report.accuracy import Panel, family
from report.data import StudyData
from report.figures import COLOURS, FAMILIES, colour, difference_axis, look, new_figure, settle
from report.numbers import byte_count
from report.pages import Picture, Place
from suite.analysis.statistics import MINIMUM_FOR_INTERVAL
from suite.analysis.tables import CELL, CURVES, Row

MOST_POINTS: Final = 120
"""Most points of a curve that a picture draws; the table has all."""
DASHES: Final = ((1, 0), (5, 2), (1.5, 1.5), (6, 2, 1.5, 2), (8, 2, 1.5, 2, 1.5, 2), (1, 3))
"""Of the arms of one family, whose colour they share."""
BASELINE: Final = (4, 2)


def curves_parts(study: StudyData, place: Place) -> list[dict[str, Any]]:
    """A part a panel whose uncompressed runs kept curves; pictures become files of the page's place."""
    by_panel = dict(list(study.frame(CURVES).groupby(CELL)))
    parts = []
    for panel in study.panels:
        frame = by_panel.get((panel.workload, panel.sharding, panel.world_size))
        means = None if frame is None else mean_curves(panel, frame)
        if means is not None and not means.empty:
            drawn = set(means["arm"])
            absent = [row["arm"] for row in panel.summary if row["arm"] not in drawn]
            pictures = _pictures(panel, means, place)
            parts.append({"heading": study.heading(panel), "pictures": pictures, "absent": absent})
    return parts


def mean_curves(panel: Panel, frame: pd.DataFrame) -> pd.DataFrame:
    """The curve of every arm over its finished seeds, less where the best uncompressed run ends.

    Args:
        panel: Says which seeds finished.
        frame: Of the table `curves`, the rows of the panel.

    Returns:
        A row an arm and step that all its seeds have: `arm`, `step`, `n`, `mean`, `low`, `high` (nan below six seeds), `bytes`
        that a rank has sent (nan where not recorded). Empty where no uncompressed run has a curve.
    """
    done = pd.DataFrame(
        [(row["arm"], row["seed"]) for row in panel.runs if row["status"] == "done"], columns=["arm", "seed"]
    )
    own = frame.merge(done).astype({"value": float, "wire_bytes": float})
    by_step = own.groupby(["arm", "step"])
    found = by_step["value"].agg(n="count", mean="mean", error="sem").reset_index()
    found["bytes"] = by_step["wire_bytes"].agg(lambda sent: sent.mean(skipna=False)).to_numpy()
    whole = found["arm"].map(own.groupby("arm")["seed"].nunique())
    found = found[found["n"] == whole].reset_index(drop=True)
    half = stats.t.ppf(0.975, np.maximum(found["n"] - 1, 1)) * found["error"].where(
        found["n"] >= MINIMUM_FOR_INTERVAL
    )
    ends = found[found["arm"].isin([row["arm"] for row in panel.baselines])].groupby("arm")["mean"].last()
    if ends.empty:
        return found.iloc[:0]
    found["mean"] -= ends.max() if panel.higher else ends.min()
    return found.assign(low=found["mean"] - half, high=found["mean"] + half).drop(columns="error")


def _pictures(panel: Panel, means: pd.DataFrame, place: Place) -> list[Picture]:
    """One picture a family that has something to draw, controls last."""
    pictures = []
    curves = {str(arm): curve for arm, curve in means.groupby("arm")}
    figure = shared_axes(panel, means)
    for kind in (one for one in panel.families if one != "baseline"):
        own = [
            row for row in panel.summary if family(row) == kind and row["baseline"] and row["arm"] in curves
        ]
        if own:
            words = FAMILIES.get(kind, kind)
            draw_family(figure, panel, curves, own, f"{words[0].upper()}{words[1:]}, {panel.title}")
            alt = (
                f"{words}, {panel.whole_place}: {panel.metric} less the best uncompressed end, against bytes and steps; "
                "the table of methods has where each ends"
            )
            pictures.append(place.picture(f"curves-{panel.slug}-{kind}", figure, alt))
    return pictures


def shared_axes(panel: Panel, means: pd.DataFrame) -> Figure:
    """What all pictures of a panel have: left against bytes (log), right against steps, and room for the longest name."""
    labels = [_label(row, row["n"] - 1) for row in panel.summary]  # never longer
    most = max(Counter(map(family, panel.summary)).values()) + len(panel.baselines)
    with look():
        figure, (by_bytes, by_steps) = new_figure(7.4, max(2.6, 1.0 + 0.15 * most), 2)
        for axes in (by_bytes, by_steps):
            difference_axis(axes, "y", [*means["mean"]], panel.margin)
            if not panel.higher:
                axes.invert_yaxis()
            axes.axhline(0, color=COLOURS["muted"], linewidth=0.8, zorder=1)
        by_steps.set(xlabel="steps", yticklabels=[], xlim=(0, 1.03 * means["step"].max()))
        by_steps.xaxis.set_major_locator(MaxNLocator(4, integer=True))
        by_bytes.set(xlabel="bytes sent, a rank (log)", title=panel.title)
        by_bytes.set_ylabel(f"{panel.metric}\nless the best uncompressed")
        sent = means.loc[means["bytes"] > 0, "bytes"]
        if len(sent):
            by_bytes.set(xscale="log", xlim=(sent.min() / 1.3, sent.max() * 1.3))
            by_bytes.xaxis.set_major_locator(LogLocator(numticks=5))
            by_bytes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: byte_count(value)))
            by_bytes.xaxis.set_minor_locator(NullLocator())
        _legend(figure, [Line2D([], []) for _ in labels], labels)
        settle(figure)
        return figure


def _label(row: Row, n: int) -> str:
    """An arm with how many of its seeds finished."""
    some = f"{row['arm'].removeprefix('control-')}, n = {n}"
    return some if n == row["n"] else f"{some} of {row['n']}"


def _legend(figure: Figure, lines: Sequence[Line2D], labels: Sequence[str]) -> None:
    """The one legend of a figure."""
    for one in figure.legends[:]:
        one.remove()
    figure.legend(lines, labels, loc="outside right upper", handlelength=3)


def draw_family(
    figure: Figure, panel: Panel, curves: Mapping[str, pd.DataFrame], own: Sequence[Row], title: str
) -> None:
    """Draw some arms and their baselines in place of those that were drawn before.

    Args:
        figure: Of `shared_axes`.
        panel: Of the arms.
        curves: By arm its rows of `mean_curves`.
        own: Rows of the summary.
        title: Of the picture.
    """
    baselines = {row["baseline"] for row in own} & curves.keys()
    dashed = [(row, COLOURS["baseline"], BASELINE) for row in panel.summary if row["arm"] in baselines]
    lines = [
        *((row, colour(family(row)), dashes) for row, dashes in zip(own, cycle(DASHES), strict=False)),
        *dashed,
    ]
    with look():
        for axes, x in zip(figure.axes, ("bytes", "step"), strict=True):
            for artist in [*axes.lines[1:], *axes.collections]:  # the first is the line across
                artist.remove()
            for row, shade, dashes in lines:
                curve = curves[row["arm"]]
                curve = curve[curve[x] > 0]
                if curve.empty:
                    continue
                # at most so many rows, the last among them: the quotient is rounded down, away from zero
                curve = curve[:: len(curve) // -MOST_POINTS][::-1]
                at = curve.groupby(x)["mean"].mean()  # bytes stand still between synchronisations
                axes.plot(at.index, at, color=shade, dashes=dashes, linewidth=1.2)
                if dashes is not BASELINE:
                    axes.fill_between(
                        curve[x], curve["low"], curve["high"], color=shade, alpha=0.12, linewidth=0
                    )
        figure.axes[0].set_title(title)
        samples = [
            Line2D([], [], color=shade, linestyle=(0, dashes), linewidth=1.2) for _, shade, dashes in lines
        ]
        _legend(figure, samples, [_label(row, curves[row["arm"]]["n"].iloc[-1]) for row, _, _ in lines])
