"""Worth against model size: does what a method is worth grow or shrink with the model, when all are trained as long a parameter?

Studies over rho of one workload, sharding and number of workers whose bytes trained on per parameter agree in two digits are
drawn together: a line an arm that ran at two sizes or more. Worth depends on no link, so its slope is what can be carried over to
larger models. At most five methods are coloured: those that are worth most in the largest model. Alternatives are dashed.

What an arm is worth at the next size is *foretold* from the two before, on a straight line of logarithms: from two sizes on for
`NEXT` times the largest, and beside what was measured there for each that has two smaller ones. It follows from published tables
alone, so that git tells that it came before the run.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from report.data import StudyData, name_and_options
from report.figures import COLOURS, look, name_points, new_figure
from report.numbers import MISSING
from report.pages import Place, slug
from report.rho import LINES, net_words, scale_of, windows
from report.tables import Cell, Column, View

ROLES: Final = ("method", "alternative")
ROOM: Final = 2.2
"""How far the axis goes on beyond the largest model, for names to stand there."""
NEXT: Final = 4
"""How many times the largest model the next is taken to be."""


def by_setting(studies: Iterable[StudyData]) -> dict[str, pd.DataFrame]:
    """What arms are worth at several sizes.

    Args:
        studies: Of two with one size, the first counts.

    Returns:
        By a setting in words a row an arm and size, sizes rising: `arm`, `role`, `parameters`, `worth`, `low`, `high`, `n`; of
        arms with two sizes or more.
    """
    found: dict[str, list[dict[str, Any]]] = {}
    for study in studies:
        for panel in study.panels:
            scale = scale_of(panel.workload) if panel.windows else None
            horizon = scale.horizon(panel) if scale else None
            if scale is None or horizon is None:
                continue
            name, _ = name_and_options(panel.workload)
            place = f"{name}, {panel.title}, {panel.world_size} workers, {horizon:.2g} bytes trained on per parameter"
            seeds = {row["arm"]: row["n"] for row in panel.worth}
            found.setdefault(place, []).extend(
                {
                    **{name: row[name] for name in ("arm", "role", "worth", "low", "high")},
                    "parameters": scale.parameters,
                    "n": seeds[row["arm"]],
                }
                for row in windows(panel, *ROLES)
                if row["worth"] and math.isfinite(row["worth"])
            )
    frames = {place: _of_several_sizes(pd.DataFrame(rows)) for place, rows in found.items() if rows}
    return {place: frame for place, frame in frames.items() if len(frame)}


def _of_several_sizes(rows: pd.DataFrame) -> pd.DataFrame:
    once = rows.drop_duplicates(["arm", "parameters"]).sort_values(["arm", "parameters"])
    return once[once.groupby("arm")["parameters"].transform("size") > 1].reset_index(drop=True)


def foretold(own: pd.DataFrame, parameters: float) -> tuple[float, float, float] | None:
    """What an arm will be worth in a larger model, if its logarithm goes on along that of parameters.

    Args:
        own: Its rows of `by_setting`; the two largest models below that one count.
        parameters: Of that model.

    Returns:
        Estimate and ends of a 95 % interval, by the intervals of both; None where there are not two with such.
    """
    before = own[(own["parameters"] < parameters) & (own["high"] < math.inf)].tail(2)
    if len(before) < 2:
        return None
    logs = np.log(before[["worth", "low", "high"]].to_numpy("float64"))
    sizes = np.log(before["parameters"].to_numpy("float64"))
    far = (math.log(parameters) - sizes[1]) / (sizes[1] - sizes[0])
    shares = np.array([-far, 1 + far])
    middle, half = float(shares @ logs[:, 0]), float(np.hypot(*(shares * (logs[:, 2] - logs[:, 1]) / 2)))
    return math.exp(middle), math.exp(middle - half), math.exp(middle + half)


def shades_of(frame: pd.DataFrame) -> dict[str, str]:
    """Methods that are coloured, by arm the role of the colour, worth most in the largest model first."""
    methods = frame[frame["role"] == "method"].sort_values(["parameters", "worth"], ascending=False)
    return dict(zip(methods["arm"].drop_duplicates(), LINES, strict=False))


def worth_against_size(place: str, frame: pd.DataFrame) -> Figure:
    """The picture of a setting, of a frame of `by_setting`."""
    shades = shades_of(frame)
    sizes = sorted(frame["parameters"].unique())
    with look():
        figure, (axes,) = new_figure(7.4, 4.8)
        axes.set(xscale="log", xlim=(sizes[0] / 1.2, ROOM * sizes[-1]))
        axes.xaxis.set_major_locator(FixedLocator(sizes))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / 1e6:.2g} M"))
        axes.set_xlabel("parameters")
        axes.set_ylabel("worth: share of its steps that plain training needs")
        figure.suptitle(f"Worth against model size: {place}", x=0.01, ha="left", fontsize=9.5)
        axes.plot([sizes[0] / 1.2, sizes[-1]], [1, 1], color=COLOURS["baseline"], linewidth=1.6)
        for arm, own in frame.groupby("arm"):
            _line(axes, own, shades.get(str(arm), ""))
        last = frame.groupby("arm").tail(1)
        points = pd.DataFrame({"x": last["parameters"] * 1.04, "y": last["worth"], "name": last["arm"]})
        points["family"] = [
            shades.get(arm, "baseline" if role == "alternative" else "muted")
            for arm, role in zip(last["arm"], last["role"], strict=True)
        ]
        name_points(axes, points, frame.rename(columns={"parameters": "x", "worth": "y"})[["x", "y"]])
        return figure


def _line(axes: Axes, own: pd.DataFrame, shade: str) -> None:
    alternative = own["role"].iloc[0] == "alternative"
    colour = COLOURS[shade or ("baseline" if alternative else "muted")]
    upper = own["high"].where(own["high"] < math.inf, own["worth"])
    axes.errorbar(
        own["parameters"], own["worth"], [own["worth"] - own["low"], upper - own["worth"]], marker="o", markersize=4,
        color=colour, linewidth=1.6 if shade else 0.8, elinewidth=1.1, linestyle=(0, (5, 3)) if alternative else "solid",
    )  # fmt: skip


def sizes_parts(studies: Iterable[StudyData], place: Place) -> list[dict[str, Any]]:
    """What the first page shows: a part for every setting with several sizes. Pictures become files of the page's place."""
    return [
        {
            "picture": place.picture(
                f"worth-against-size-{slug(setting)}", worth_against_size(setting, frame),
                f"{setting}: worth against parameters, a line a method; the table has the numbers",
            ),
            "view": sizes_view(setting, frame),
        }
        for setting, frame in by_setting(studies).items()
    ]  # fmt: skip


def sizes_view(setting: str, frame: pd.DataFrame) -> View:
    """A row an arm, a column a size."""
    shades = shades_of(frame)
    cells = {(row["arm"], row["parameters"]): row for row in frame.to_dict("records")}

    def column(size: int) -> Column:
        def make(arm: str) -> Cell:
            row: Mapping[Any, Any] | None = cells.get((arm, size))
            if row is None:
                return Cell(MISSING, css="quiet")
            return Cell(net_words(row["worth"], row["low"], row["high"]), row["worth"], f"n = {row['n']}")

        about = "The share of its steps after which plain training of that size ends as well, with its 95 % interval."
        return Column(f"worth at {size / 1e6:.2g} M", make, about, True)

    def told(size: float) -> Column:
        def make(arm: str) -> Cell:
            found = foretold(frame[frame["arm"] == arm], size)
            return Cell(net_words(*found), found[0]) if found else Cell(MISSING, css="quiet")

        about = "From the two sizes before, on a straight line of logarithms, with the 95 % interval that theirs give it."
        return Column(f"foretold at {size / 1e6:.2g} M", make, about, True)

    sizes = sorted(frame["parameters"].unique())
    columns = (
        Column("method", lambda arm: Cell(arm, family=shades.get(arm, ""))),
        *(make(size) for size in sizes for make in ((told, column) if size in sizes[2:] else (column,))),
        told(NEXT * sizes[-1]),
    )
    rest = [arm for arm in frame["arm"].unique() if arm not in shades]
    return View(f"{slug(setting)}-sizes", f"Worth against size, {setting}", columns, [*shades, *rest])
