"""Loss against time: in the same seconds on a link, does training with a method end better than plain training?

A picture a link has the seconds of whole trainings over those of the reference across, the workload's metric upright (up is
better), the reference at its budgets as a curve, and every method as a mark: what lies above the curve beats plain
training. The verdict is that of the table `net`, which sets a method against one worker alone, too, with tests paired by
seed; a mark is filled where it is worth it, hollow where it is not, and half filled where that is undecided. One table has
the net speedups of all links, and what each training is worth in steps of the reference, which needs no session.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.interpolate import PchipInterpolator

from report import numbers as write
from report.accuracy import Panel, family
from report.data import LinkData, StudyData, by_arm, listed
from report.figures import COLOURS, FAMILIES, MARKS, colour, look, name_points, new_figure, times_axis
from report.numbers import are, factors, interval, plain, span, times, times_ends
from report.pages import Place, slug
from report.tables import Cell, Column, View, text
from suite.analysis.tables import CONFIRMED, Row
from suite.links.link import REAL
from suite.runs.sweep import ONE_WORKER, WHOLE

WORTH_IT, NOT, UNDECIDED = "worth it", "not worth it", "undecided"
FILLS: Final = MappingProxyType({WORTH_IT: "full", NOT: "none", UNDECIDED: "left"})
SIGNS: Final = MappingProxyType({WORTH_IT: ("●", "yes"), NOT: ("○", "no"), UNDECIDED: ("◐", "maybe")})
"""Verdict -> the mark of its cell, filled as in the pictures, and its colour."""
NAMED: Final = 3
"""Methods, or controls, that a sentence names."""
ROOM: Final = 3
"""Links beside which the table has room for what needs none; beside more of them the menu of columns has it."""
EDGE: Final = 0.035
"""Share of the axis between the edge and a mark that lies beyond it."""
FENCE: Final = 3.0
"""Interquartile ranges below the lower quartile, from where on a mark stands at the edge (Tukey's outer fence)."""
CURVE_POINTS: Final = 120


@dataclass(frozen=True)
class Curve:
    """The reference by budget, rising: its mean, and the ends of its interval where every budget has one."""

    arm: str
    budgets: tuple[float, ...]
    mean: tuple[float, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()

    def at(self, budgets: np.ndarray | float, values: Sequence[float] = ()) -> np.ndarray:
        """The mean, or other values by budget, between budgets: a monotone cubic along the logarithm, as the test has it."""
        found: np.ndarray = PchipInterpolator(np.log(self.budgets), values or self.mean)(np.log(budgets))
        return found


@dataclass(frozen=True)
class Timed:
    """One link of a panel: the rows of `net` by arm, how the link is called, and a name for files."""

    link: LinkData
    label: str
    slug: str
    net: dict[str, Row]


def curve_of(panel: Panel) -> Curve | None:
    """The reference of a panel at its budgets; None where fewer than two have a mean."""
    name = panel.worth[0]["reference"] if panel.worth else None
    rows = [row for row in panel.budgets if row["arm"] == name and row["mean"] is not None]
    rows.sort(key=lambda row: row["budget"])
    if len(rows) < 2 or name is None:
        return None
    budgets, mean, low, high = (
        tuple(row[key] for row in rows) for key in ("budget", "mean", "ci_low", "ci_high")
    )
    return Curve(name, budgets, mean) if None in (*low, *high) else Curve(name, budgets, mean, low, high)


def timed_links(study: StudyData, panel: Panel) -> list[Timed]:
    """The links on which sessions of the study timed a panel, slowest first."""
    found = [
        (session, link)
        for session in study.sessions
        if session.timed(panel.workload) and session.facts["world_size"] == panel.world_size
        for link in session.links
    ]
    labels = [link.label for _, link in found]
    timed = [
        Timed(
            link,
            link.label if labels.count(link.label) == 1 else f"{link.label}, {session.name}",
            f"{slug(session.name)}-{link.slug}",
            rows,
        )
        for session, link in found
        if (rows := by_arm(link.net, sharding=panel.sharding))
    ]
    return sorted(timed, key=lambda one: _rate_bps(one.link.facts["link"]))


def _rate_bps(link: Mapping[str, Any]) -> float:
    """Of an emulated link what it holds, of a real one what was measured."""
    return link.get("rate_bps") or link.get(REAL, {}).get("rate_bps") or math.inf


def equal_time_parts(study: StudyData, place: Place) -> list[dict[str, Any]]:
    """What the template shows: a part for every panel that the table `worth` has; empty where there is none. Pictures become
    files of the page's place."""
    return [_part(study, panel, place) for panel in study.panels if panel.worth]


def _part(study: StudyData, panel: Panel, place: Place) -> dict[str, Any]:
    links, curve = timed_links(study, panel), curve_of(panel)
    seeds = f"{span([row['n'] for row in panel.worth])} seeds"
    pictures = []
    for one in links if curve else ():
        marks, absent = marks_of(panel, one)
        if curve and len(marks):
            figure = loss_against_time(panel, curve, [(one.label, marks)])
            alt = f"{one.label}: {panel.metric} over seconds of the training, a mark a method; the table has the numbers"
            note = f"Not drawn: {'; '.join(absent)}." if absent else ""
            pictures.append(place.picture(f"equal-time-{one.slug}-{panel.slug}", figure, alt, note=note))
    return {
        "heading": study.heading(panel),
        "setting": f"{panel.workload}, {panel.world_size} workers, {panel.facts['steps']} steps, {panel.title}, {seeds}",
        "sentences": sentences(panel, links),
        "families": panel.families,
        "pictures": pictures,
        "reference": panel.worth[0]["reference"],
        "view": equal_time_view(panel, links, curve),
        "timed": len(links),
    }


def marks_of(panel: Panel, one: Timed) -> tuple[pd.DataFrame, list[str]]:
    """The marks of a link, and who has none, with why.

    Args:
        panel: With the ends of all trainings.
        one: The link.

    Returns:
        A row a mark in the order of the link's rows: `arm`, `name`, `family`, `verdict`, `x` the seconds over the reference's
        and `y` the metric, each with `_low` and `_high`, nan where there is no interval; and sentences.
    """
    worth, ends = by_arm(panel.worth), by_arm(panel.summary)
    marks: list[dict[str, Any]] = []
    missing: dict[str, list[str]] = {}
    for arm, row in one.net.items():
        if arm not in worth:  # timed for an earlier form of the study
            continue
        mean, x = worth[arm]["mean"], row["time"]
        if x is None or mean is None or row["verdict"] is None:
            missing.setdefault(row["reason"] or "no run finished", []).append(arm)
            continue
        name, lost = arm.removeprefix("control-"), worth[arm]["n_diverged"]
        marks.append(
            {
                "arm": arm, "name": f"{name} ({lost} diverged)" if lost else name, "family": _family(ends[arm]),
                "verdict": row["verdict"], "x": x, "x_low": row["time_low"], "x_high": row["time_high"], "y": mean,
                "y_low": ends[arm]["ci_low"], "y_high": ends[arm]["ci_high"],
            }
        )  # fmt: skip
    frame = pd.DataFrame(marks)
    numeric = [name for name in frame if str(name)[0] in "xy"]
    absent = [f"{', '.join(names)} ({why})" for why, names in missing.items()]
    return frame.astype(dict.fromkeys(numeric, float)), absent


def _family(row: Row) -> str:
    """One worker alone is an alternative that compresses nothing, and no negative control of what takes seconds."""
    return "baseline" if row["algorithm"] == ONE_WORKER else family(row)


def _negative(panel: Panel) -> list[Row]:
    return [row for row in panel.controls if row["algorithm"] != ONE_WORKER]


def _floor(panel: Panel, curve: Curve, marks: pd.DataFrame) -> float:
    """The worst metric that the pictures of a panel show: of its methods, but neither of outliers nor beyond the reference's
    least budget; at least what the reference loses with half of the steps.
    """
    sign = 1.0 if panel.higher else -1.0
    ys = sign * marks.loc[marks["family"] != "control", "y"].to_numpy()
    half = sign * float(curve.at(max(curve.budgets[0], WHOLE / 2)))
    if not len(ys):
        return sign * half
    quartile, upper = np.quantile(ys, [0.25, 0.75])
    held = ys[ys >= quartile - FENCE * (upper - quartile)]
    return sign * min(half, max(float(held.min()), sign * curve.mean[0]))


def loss_against_time(panel: Panel, curve: Curve, links: Sequence[tuple[str, pd.DataFrame]]) -> Figure:
    """A figure of a panel with a picture for each (link's label, marks), side by side; upright they share their axis."""
    floor = _floor(panel, curve, pd.concat([marks for _, marks in links]))
    with look():
        figure, grid = new_figure(8.0 * len(links), 5.2, len(links))
        for axes, (label, marks) in zip(grid, links, strict=True):
            axes.set_title(f"{label}, {panel.title}")
            _limits(axes, panel, curve, marks, floor)
            axes.set_xlabel("seconds of the training over the reference's: left is faster")
            axes.set_ylabel(f"{panel.metric}: up is better")
            _draw(axes, curve, marks)
        return figure


def _limits(axes: Axes, panel: Panel, curve: Curve, marks: pd.DataFrame, floor: float) -> None:
    """Both axes: x shows all marks and the reference at budget 1, y what is no worse than the floor; up is better."""
    times_axis(axes, [*marks["x_low"], *marks["x_high"]])
    sign = 1.0 if panel.higher else -1.0
    budgets = [budget for budget in curve.budgets if budget <= axes.get_xlim()[1]]
    ys = [*marks[["y", "y_low", "y_high"]].stack(), floor, *curve.at(np.array(budgets))]
    best, worst = max(sign * value for value in ys), sign * floor
    pad = 0.08 * (best - worst)
    axes.set_ylim(sign * (worst - pad), sign * (best + 1.5 * pad))


def _draw(axes: Axes, curve: Curve, marks: pd.DataFrame) -> None:
    at, shade = np.geomspace(curve.budgets[0], curve.budgets[-1], CURVE_POINTS), COLOURS["baseline"]
    means = curve.at(at)
    if curve.low:
        axes.fill_between(
            at, curve.at(at, curve.low), curve.at(at, curve.high), color=shade, alpha=0.16, linewidth=0
        )
    axes.plot(at, means, color=shade, linewidth=1.6)
    for words, (x, y), side, up in (
        ("above the curve: beats plain training", (0.012, 0.99), "left", "top"),
        ("below: behind it", (0.988, 0.012), "right", "bottom"),
    ):
        axes.text(
            x, y, words, transform=axes.transAxes, ha=side, va=up, style="italic", color=COLOURS["muted"]
        )
    own = {"name": curve.arm, "family": "baseline", "verdict": WORTH_IT, "x": 1.0, "y": float(curve.at(1.0))}
    shown = pd.concat([_inside(axes, marks), pd.DataFrame([own])], ignore_index=True)
    for point in shown.to_dict("records"):
        shade, fill, paper = colour(point["family"]), FILLS[point["verdict"]], COLOURS["paper"]
        errors = [
            [[max(0.0, mid - low)], [max(0.0, high - mid)]] if math.isfinite(high - low) else None
            for mid, low, high in (
                (point[end] for end in ("x", "x_low", "x_high")),
                (point[end] for end in ("y", "y_low", "y_high")),
            )
        ]
        axes.errorbar(
            point["x"], point["y"], errors[1], errors[0], MARKS.get(point["family"], "h"), color=shade, markersize=6,
            elinewidth=1.1, fillstyle="left" if fill == "left" else "full", markerfacecoloralt=paper,
            markerfacecolor=paper if fill == "none" else shade, markeredgewidth=0.0 if fill == "full" else 0.9,
        )  # fmt: skip
    ends = [
        shown[[x, y]].rename(columns={x: "x", y: "y"})
        for x, y in (("x_low", "y"), ("x_high", "y"), ("x", "y_low"), ("x", "y_high"))
    ]
    taken = pd.concat([pd.DataFrame({"x": at, "y": means})[::3], *ends]).dropna()
    name_points(axes, shown, taken[taken["x"].between(*axes.get_xlim())])


def _inside(axes: Axes, marks: pd.DataFrame) -> pd.DataFrame:
    """The marks, those that lie below the frame at its lower edge with an arrow out of it."""
    bottom, top = axes.get_ylim()
    edge = bottom + EDGE * (top - bottom)
    below = (marks["y"] - edge) * (top - bottom) < 0
    for mark in marks[below].to_dict("records"):
        axes.annotate(
            "", (mark["x"], bottom), (mark["x"], edge), annotation_clip=False,
            arrowprops={"arrowstyle": "-|>", "color": colour(mark["family"]), "linewidth": 1.1, "shrinkA": 0, "shrinkB": 0},
        )  # fmt: skip
    shown = marks.copy()
    shown.loc[below, ["y", "y_low", "y_high"]] = edge, math.nan, math.nan
    return shown


def equal_time_view(panel: Panel, links: Sequence[Timed], curve: Curve | None) -> View:
    """The one table: a row a method, a column of net speedups a link, best on the slowest link first."""
    reference = panel.worth[0]["reference"]
    about = (
        f"Net speedup: seconds of {reference} to the method's metric over the method's seconds, with its 95 % interval of seeds, "
        "tuning and timing."
    )
    crowded = len(links) > ROOM
    ends = by_arm(panel.summary)

    def mean(row: Row) -> Cell:
        end = ends[row["arm"]]
        return Cell(
            plain(row["mean"], panel.digits),
            row["mean"],
            interval(end["ci_low"], end["ci_high"], panel.digits),
        )

    def why(row: Row) -> Cell:
        rows = [row, *(net for one in links if (net := one.net.get(row["arm"])) is not None)]
        return Cell("; ".join(dict.fromkeys(one["reason"] for one in rows if one["reason"])), css="reason")

    columns = (
        Column(
            "method", lambda row: Cell(row["arm"], family=_family(ends[row["arm"]])),
            "The sweep's label of a method with its options.",
        ),
        *(Column(one.label, _net_cell(one.net, curve), about, True) for one in links),
        Column(
            "worth, % of steps", lambda row: _worth_cell(row, curve),
            f"After what share of its steps {reference} ends as well as the method, with its 95 % interval of seeds and tuning.",
            True, crowded,
        ),
        Column("ends at", mean, "Metric at the end, mean over the finished seeds, with its 95 % t interval.", True, crowded),
        Column("seeds", text("n"), "Paired with the reference; the n of all intervals of the row.", True, crowded),
        Column("family", lambda row: Cell(FAMILIES.get(_family(ends[row["arm"]]), "")), "Of methods.", hidden=True),
    )  # fmt: skip
    rows = _ordered(panel, links)
    if any(why(row).text for row in rows):
        columns = (*columns, Column("why not", why, "Why there is no number."))
    return View(f"{panel.slug}-equal-time", f"Equal time, {panel.workload}, {panel.title}", columns, rows)


def _ordered(panel: Panel, links: Sequence[Timed]) -> list[Row]:
    """Rows of `worth`, the greatest net speedup on the slowest link first; without links what is worth most."""

    def place(row: Row) -> tuple[float, float, str]:
        net = links[0].net.get(row["arm"], {}).get("net") if links else None
        net, worth = (-math.inf if value is None else value for value in (net, row["worth"]))
        return -net, -worth, row["arm"]

    return sorted(panel.worth, key=place)


def _beyond(value: float, scale: float, curve: Curve | None, words: Callable[[float], str]) -> str:
    """A number; where it lies beyond the reference's budgets, below or above what."""
    if value > 0 and math.isfinite(value):
        return words(value)
    if curve is None:
        return "below" if value == 0 else "above"
    return f"{'<' if value == 0 else '>'} {words(curve.budgets[0 if value == 0 else -1] / scale)}"


def _net_cell(net: Mapping[str, Row], curve: Curve | None) -> Callable[[Row], Cell]:
    """A net speedup, with the sign of its verdict."""

    def make(worth: Row) -> Cell:
        row = net.get(worth["arm"])
        if row is None or row["net"] is None:
            return Cell(write.MISSING, css="quiet")
        sign, css = SIGNS.get(row["verdict"], ("", ""))
        note = factors(row["net_low"], row["net_high"]) + ("" if row["check"] == CONFIRMED else "†")
        return Cell(f"{sign} {_beyond(row['net'], row['time'], curve, times)}".strip(), row["net"], note, css)

    return make


def _worth_cell(row: Row, curve: Curve | None) -> Cell:
    if row["worth"] is None:
        return Cell(write.MISSING, css="quiet")
    if row["n_diverged"]:
        return Cell(f"{row['n_diverged']} diverged", row["worth"], css="no")
    words = _beyond(row["worth"], 1.0, curve, lambda value: f"{100 * value:.3g} %")
    low, high = (None if row[end] is None else 100 * row[end] for end in ("low", "high"))
    return Cell(words, row["worth"], factors(low, high))


def sentences(panel: Panel, links: Sequence[Timed]) -> list[str]:
    """What is worth it, a line a link, and how much is decided; sentences of at most 25 words."""
    methods = [row["arm"] for row in panel.methods]
    if not links:
        return _worth_sentences(panel, methods)
    nets = [one.net[arm] for one in links for arm in methods if arm in one.net]
    decided = sum(row["verdict"] in (WORTH_IT, NOT) for row in nets)
    return [
        *(_link_sentences(panel, one, methods) for one in links),
        f"{decided} of {len(nets)} pairs of method and link are decided. "
        f"Nothing was timed over a link faster than {links[-1].label}: `bandwise advise` computes there.",
    ]


def _link_sentences(panel: Panel, one: Timed, methods: Sequence[str]) -> str:
    rows = {arm: one.net[arm] for arm in methods if arm in one.net}
    ahead = sorted(
        (arm for arm, row in rows.items() if row["verdict"] == WORTH_IT),
        key=lambda arm: (-rows[arm]["net"], arm),
    )
    undecided = sum(row["verdict"] == UNDECIDED for row in rows.values())
    # none that is known is no proof that none is, where some are undecided
    who = f"{len(ahead)} of {len(rows)} methods {'is' if len(ahead) == 1 else 'are'}"
    who = who if ahead else f"none of {len(rows)} methods is shown to be"
    open_ = f"; {are(undecided)} undecided" if undecided else ""
    said = [f"{one.label}: {who} worth it{open_}."]
    beats, alone = (sum(row[name] == WORTH_IT for row in rows.values()) for name in ("plain", "alone"))
    timed = any(row["alone"] for row in rows.values())
    told = f"{alone} one worker alone" if timed else "and one worker alone was not timed"
    said.append(f"{beats} beat plain training, {told}.")
    if ahead:
        said.append(_best({arm: rows[arm] for arm in ahead if rows[arm]["check"] == CONFIRMED}))
    controls = [
        row["arm"] for row in _negative(panel) if one.net.get(row["arm"], {}).get("verdict") == WORTH_IT
    ]
    if controls:
        who = "one negative control" if len(controls) == 1 else f"{len(controls)} negative controls"
        names = f": {listed(controls)}" if len(controls) <= NAMED else ""
        said.append(f"So {'is' if len(controls) == 1 else 'are'} {who}{names}.")
    return " ".join(said)


def _best(rows: dict[str, Row]) -> str:
    """The best by name; only what direct runs of the very method confirm is quoted."""
    if not rows:
        return "Direct runs have confirmed the seconds of none of them, so none is quoted."
    named = [
        f"{arm} {times_ends(row['net'], row['net_low'], row['net_high'])}"
        for arm, row in list(rows.items())[:NAMED]
    ]
    return f"Best confirmed by direct runs: {listed(named)}."


def _worth_sentences(panel: Panel, arms: Sequence[str]) -> list[str]:
    """Without a session: who ends better after as many steps, whether the controls are seen, and what that leaves open."""
    reference = panel.worth[0]["reference"]
    methods = [arm for arm in arms if arm != reference]
    rows = [row for row in panel.worth if row["arm"] in methods and row["worth"] is not None]
    better = [row["arm"] for row in rows if row["low"] > WHOLE]
    worse = sum(row["high"] < WHOLE for row in rows)
    unknown = len(rows) - len(better) - worse
    absent = len(methods) - len(rows)
    said = [
        f"After as many steps as plain training ({reference}), {len(better)} of {len(methods)} methods "
        f"{'ends' if len(better) == 1 else 'end'} better{f' ({listed(better[:NAMED])})' if better else ''} and {worse} worse; "
        f"{are(unknown)} undecided{f', {absent} without a number' if absent else ''}."
    ]
    controls = [row for row in panel.worth if row["arm"] in by_arm(_negative(panel))]
    unseen = [row["arm"] for row in controls if row["high"] is None or row["high"] >= WHOLE]
    if unseen:
        said.append(f"Not seen to be worse, so that the study cannot tell: {listed(unseen)}.")
    elif controls:
        said.append(f"All {len(controls)} negative controls end worse, as they must.")
    said.append("No link was timed yet: whether the time that a method saves makes up for this is open.")
    return said


def equal_time_figures(study: StudyData) -> dict[str, Figure]:
    """The figures by name, all links of a panel in one."""
    found: dict[str, Figure] = {}
    for panel in study.panels:
        curve = curve_of(panel)
        shown = [
            (one.label, marks) for one in timed_links(study, panel) if len(marks := marks_of(panel, one)[0])
        ]
        if curve and shown:
            found[f"equal-time-{panel.slug}"] = loss_against_time(panel, curve, shown)
    return found
