"""Net speedup against rho: where does a method end better in the same time than the best plain way to use the same machines?

rho is seconds that plain training's bf16 gradients take on the link over seconds of computing in a step. In the picture the
thick dark line is the best plain way: plain training, which is 1, or an alternative of the study, such as one worker alone. A
curve on the shaded ground above it ends better in the same time, and is thick where a verdict says so. Left nothing overlaps,
right all does. At most five methods are coloured: those with the widest window of verdicts if nothing overlaps, then those with
the greatest net speedup at any rho from 1 to 30. Their colours tell lines apart, not families; negative controls are dotted.
Diamonds were measured: they stand at the rho of a link that a session timed, where a part of communication overlaps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import pandas as pd
import yaml
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

from report.accuracy import Panel
from report.data import StudyData, by_arm, listed, name_and_options
from report.equal_time import SIGNS, WORTH_IT, Timed, timed_links
from report.figures import COLOURS, look, name_points, new_figure
from report.names import names_in
from report.numbers import MISSING, factors, plain, span, times, weight
from report.pages import Place
from report.tables import Cell, Column, View, value
from suite.analysis.rho import GRID, OVERLAPS, RIVALS, null_test
from suite.analysis.tables import Row

LINES: Final = ("sign", "adam", "quantiser", "synchronisation", "sparsifier")
"""Roles of colours that tell the coloured lines apart, the first method's first."""
BETWEEN: Final = (1.0, 30.0)
"""Values of rho among which methods without a window are compared."""
SHOWN: Final = (0.3, 1.0, 3.0, 10.0, 30.0)
"""Values of rho of columns, each of the nearest one of the grid."""
NAMED: Final = 5
"""Methods of which a sentence is made."""
ROLES: Final = ("method", "alternative", "uncompressed", "plain", "control")
"""Of arms, in the order of the table."""
BESIDE: Final = 6.0
"""How far the axis with the names goes on beyond the lines, for them to stand there."""
FINE: Final = 60
"""Points of a line that names keep away from."""
LEAST: Final = 0.1
"""Net speedups below are not drawn."""
OVERLAP: Final[Mapping[str, str]] = dict(
    zip(OVERLAPS, ("nothing overlaps", "all communication overlaps"), strict=True)
)


# ---- what a panel is of ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scale:
    """Parameters of a workload's model; context: bytes of an example, where it is a language model's."""

    parameters: int
    context: int | None

    def horizon(self, panel: Panel) -> float | None:
        """Bytes trained on per parameter at budget 1."""
        examples = panel.facts["steps"] * panel.facts["batch_size"] * panel.world_size
        return None if self.context is None else examples * self.context / self.parameters


@lru_cache
def scale_of(workload: str) -> Scale | None:
    """Of a workload by its label, such as python-gpt(size=0.15m); None where it is not known here, or cannot be made."""
    from suite.workloads import DataError, get  # only here, since torch comes with it

    name, options = name_and_options(workload)
    try:
        found = get(name, **{key: yaml.safe_load(value) for key, value in options.items()})
        parameters = sum(parameter.numel() for parameter in found.build().parameters())
    except (ValueError, DataError):  # no such workload, no such option
        return None
    return Scale(parameters, getattr(found, "context", None))


def setting(panel: Panel) -> str:
    """4 workers, 0.15 M parameters, 20 bytes trained on per parameter, 6 seeds."""
    scale = scale_of(panel.workload)
    horizon = scale.horizon(panel) if scale else None
    said = [
        f"{panel.world_size} workers",
        f"{scale.parameters / 1e6:.2g} M parameters" if scale else panel.workload,
        f"{horizon:.2g} bytes trained on per parameter" if horizon else "",
        f"{span([row['n'] for row in panel.worth])} seeds",
    ]
    return ", ".join(filter(None, said))


# ---- which methods, and where they win -------------------------------------------------------------------------------------


def ranked(panel: Panel) -> list[Row]:
    """Rows of the table `windows` of methods if nothing overlaps, in the order of the module's rule."""
    least, most = BETWEEN
    best: dict[str, float] = {}
    for row in panel.rho:
        if row["overlap"] == "none" and least <= row["rho"] <= most:
            best[row["arm"]] = max(row["net"], best.get(row["arm"], 0.0))

    def place(row: Row) -> tuple[float, float, str]:
        return -_width(row), -best.get(row["arm"], 0.0), row["arm"]

    return sorted(windows(panel, "method"), key=place)


def windows(panel: Panel, *roles: str, overlap: str = "none") -> list[Row]:
    """Rows of the table `windows` of arms with these roles."""
    return [row for row in panel.windows if row["overlap"] == overlap and row["role"] in roles]


def lines_of(panel: Panel) -> pd.DataFrame:
    """The table `rho` with the role of every arm."""
    return pd.DataFrame(panel.rho).merge(pd.DataFrame(windows(panel, *ROLES))[["arm", "role"]], on="arm")


def _width(row: Row) -> float:
    """Of its window of verdicts, in the logarithm of rho."""
    if row["sure_from"] is None:
        return -1.0
    return math.log(min(row["sure_to"], GRID[-1]) / max(row["sure_from"], GRID[0]))


def nets_at(panel: Panel, rho: float) -> tuple[float, dict[str, Row]]:
    """The value of the grid that is nearest, and rows of the table `rho` there by arm, if nothing overlaps."""
    near = min((row["rho"] for row in panel.rho), key=lambda one: abs(math.log(one / rho)))
    return near, by_arm(panel.rho, rho=near, overlap="none")


def _at(rho: float) -> str:
    """0.9; beyond the grid below or above which of its ends."""
    if rho == 0:
        return f"below {weight(GRID[0])}"
    return f"above {weight(GRID[-1])}" if math.isinf(rho) else weight(rho)


def _span(start: str, end: str, first: float, last: float) -> str:
    if first == 0 and math.isinf(last):
        return "at every rho"
    if first == 0:
        return f"up to rho {end}"
    return f"from rho {start} on" if math.isinf(last) else f"from rho {start} to {end}"


def window(row: Row) -> str:
    """From rho 0.9 [0.8, 1.1] to 31 [25, 40], by estimates; empty where there is none."""
    if row["from_rho"] is None:
        return ""
    start, end = (
        f"{_at(row[f'{name}_rho'])} [{_at(row[f'{name}_low'])}, {_at(row[f'{name}_high'])}]"
        for name in ("from", "to")
    )
    return _span(start, end, row["from_rho"], row["to_rho"])


def sure_window(row: Row) -> str:
    """The same by verdicts, of which there are none below the least rho that was looked at."""
    if row["sure_from"] is None:
        return ""
    first = row["sure_from"] or GRID[0]
    return _span(_at(first), _at(row["sure_to"]), first, row["sure_to"])


def _brief(words: str) -> str:
    """A window below a heading that says it is of rho."""
    return words.removeprefix("from ").replace("rho ", "") or MISSING


def sentences(panel: Panel) -> list[str]:
    """Where each of the first methods wins, how many win nowhere, and the null test."""
    methods = ranked(panel)
    having = [row for row in methods if row["from_rho"] is not None]
    sure = [row for row in methods if row["sure_from"] is not None]
    said = [
        f"{len(sure) or 'None'} of {len(methods)} methods "
        f"{'beats' if len(sure) < 2 else 'beat'} every plain way to use the machines at some rho by verdict, if nothing overlaps."
    ]
    said += [_wins(row, panel.worth[0]["reference"]) for row in having[:NAMED]]
    overlapped = [
        row["arm"] for row in windows(panel, "method", overlap="all") if row["sure_from"] is not None
    ]
    said.append(
        f"If all communication overlaps, {len(overlapped) or 'none'} {'does' if len(overlapped) < 2 else 'do'}"
        f"{f': {listed(overlapped)}' if overlapped else ''}."
    )
    return [*said, null_sentence(panel)]


def uncounted(panel: Panel) -> str:
    """What is left out of times where no method's own computing was measured; else empty."""
    timed = any(row["kappa"] is not None for row in windows(panel, "method"))
    return "" if timed else " and methods compute nothing of their own"


def in_short(panel: Panel, names: Mapping[str, str] = MappingProxyType({})) -> tuple[str, str]:
    """The answer of a panel if nothing overlaps.

    Args:
        panel: Judged over rho.
        names: Labels in words.

    Returns:
        Where methods win by verdict, the best of them at some rho, and what to do elsewhere; and for what that holds.
    """
    methods = windows(panel, "method")
    spans, overlapped = _sure_spans(methods), _sure_spans(windows(panel, "method", overlap="all"))
    also = f"; if all does, {f'by verdict {_spans_in_words(overlapped)}' if overlapped else 'nowhere'}"
    holds = f"That holds for {setting(panel)}, if nothing overlaps{uncounted(panel)}{also if spans else ''}."
    if not spans:
        unbounded = [row["arm"] for row in windows(panel, *RIVALS) if row["worth"] == math.inf]
        said = (
            f"No method beats every plain way to use the machines: none of {len(methods)}, at any rho"
            f"{''.join(f'; {arm} ends better than all budgets, so that nobody knows what would' for arm in unbounded)}."
        )
        return said, holds
    where = _spans_in_words(spans)
    best: list[str] = []
    for rho in SHOWN:
        at, nets = nets_at(panel, rho)
        own = [nets[row["arm"]] for row in methods if row["arm"] in nets]
        ahead = [row for row in own if row["verdict"] == WORTH_IT]
        if ahead:
            top = max(ahead, key=lambda row: float(row["net"]))
            net = net_words(top["net"], top["net_low"], top["net_high"])
            best.append(
                f"{net}{'' if best else ' times as long'} at rho {weight(at)} ({names.get(top['arm'], top['arm'])})"
            )
    lines = lines_of(panel)
    plainly = best_plain(lines[lines["overlap"] == "none"])
    said = f"{where[0].upper()}{where[1:]}, some method beats every plain way to use the machines in the same time"
    said += f"; to end as well plain training takes {', '.join(best)}." if best else "."
    # elsewhere by estimates
    begins = min(row["from_rho"] or 0.0 for row in methods if row["to_rho"])
    ends = max(row["to_rho"] or 0.0 for row in methods)
    first = plainly.loc[plainly["rho"] < begins, "arm"]
    if not first.empty:
        ways = ", then ".join(names.get(arm, arm) or "plain training" for arm in dict.fromkeys(first))
        said += f" Below rho {weight(begins)}, by estimates, {ways} is best."
    if ends < GRID[-1]:
        last = names.get(plainly["arm"].iloc[-1], plainly["arm"].iloc[-1]) or "plain training"
        said += f" Beyond, from rho {weight(ends)} on by estimates, {last} is best."
    return said, holds


def _sure_spans(methods: Sequence[Row]) -> list[list[float]]:
    """Windows of verdicts, those that overlap as one."""
    spans: list[list[float]] = []
    sure = [row for row in methods if row["sure_from"] is not None]
    for first, last in sorted((row["sure_from"] or float(GRID[0]), row["sure_to"]) for row in sure):
        if spans and first <= spans[-1][1]:
            spans[-1][1] = max(spans[-1][1], last)
        else:
            spans.append([first, last])
    return spans


def _spans_in_words(spans: Sequence[Sequence[float]]) -> str:
    return listed([_span(_at(first), _at(last), first, last) for first, last in spans])


def _wins(row: Row, reference: str) -> str:
    verdict = f"by verdict {sure_window(row)}" if sure_window(row) else "though by no verdict"
    said = f"{row['arm']} beats every plain way {window(row)}, {verdict}."
    ends = [
        f"{where}, {'plain training' if row[arm] == reference else row[arm]} is ahead"
        for where, arm in (("Before", "from_arm"), ("beyond", "to_arm"))
        if row[arm]
    ]
    joined = "; ".join(ends)
    return f"{said} {joined[0].upper()}{joined[1:]}." if ends else said


def null_sentence(panel: Panel) -> str:
    """Whether what trains as plain training does is worth 1."""
    rows = pd.DataFrame(panel.windows, columns=[*panel.windows[0]])
    found = null_test(rows).to_dict("records")
    if not found:
        return "No arm trains as plain training does, so that there is no null test."
    told = [
        f"{row['arm']} is worth {net_words(row['worth'], row['low'], row['high'])}, {'' if row['passed'] else 'not '}passed"
        for row in found
    ]
    return f"Null test: {'; '.join(told)}."


def measured_nets(links: Sequence[Timed]) -> list[Row]:
    """Net speedups that sessions measured, at the rho of their links.

    Args:
        links: Of a panel, as sessions timed them.

    Returns:
        A row a link and arm that has one: `arm`, `link`, `rho` of plain bf16 gradients by the probed rate and the seconds of
        computing there, `net` and `time` with the ends of their intervals, `net_low` and so on.
    """
    return [
        {"arm": arm, "link": one.label, "rho": one.link.rho["value"]}
        | {f"{name}{end}": row[f"{name}{end}"] for name in ("net", "time") for end in ("", "_low", "_high")}
        for one in links
        if one.link.rho is not None
        for arm, row in one.net.items()
        if row["net"] is not None and 0 < row["net"] < math.inf
    ]


def measured_sentences(panel: Panel, measured: Sequence[Row]) -> list[str]:
    """How many measured times of trainings lie between those predicted if nothing and if all overlaps, and how many reach there.

    Times, since net speedups share the seeds' errors of worth with what they are held against. Predictions are read off the
    grid of rho by the logarithm. The farthest is named. What has none, such as plain training itself and what diverged, is left
    out.
    """
    held = [(row, times) for row in measured if (times := _predicted(panel, row))]
    if not held:
        return []
    within = reach = 0
    farthest = (0.0, held[0][0])
    for row, times in held:
        low, high = min(times), max(times)
        ends = [row["time"] if row[name] is None else row[name] for name in ("time_low", "time_high")]
        within += low <= row["time"] <= high
        reach += ends[0] <= high and ends[1] >= low
        off = row["time"] / min(max(row["time"], low), high) - 1
        farthest = max(farthest, (off, row), key=lambda one: abs(one[0]))
    places = {row["link"]: f"{row['link']} (rho {weight(row['rho'])})" for row, _ in held}
    off, worst = farthest
    return [
        f"Measured on {listed([*places.values()])}: {within} of {len(held)} trainings take a time between the predicted "
        f"ones, if nothing and if all overlaps, {reach} reach there with their interval"
        + (
            f"; the farthest, {worst['arm']} on {worst['link']}, takes {abs(off):.0%} {'more' if off > 0 else 'less'}."
            if off
            else "."
        )
    ]


def _predicted(panel: Panel, at: Row) -> list[float]:
    """The times of an arm's training at a rho, one an overlap, between two values of the grid; none where it has none there."""
    of = {
        overlap: [row for row in panel.rho if (row["arm"], row["overlap"]) == (at["arm"], overlap)]
        for overlap in OVERLAPS
    }
    if not all(own and all(0 < row["net"] < math.inf for row in own) for own in of.values()):
        return []
    found = []
    for own in of.values():
        grid, times = ([math.log(row[name]) for row in own] for name in ("rho", "time"))
        found.append(math.exp(float(np.interp(math.log(at["rho"]), grid, times))))
    return found


# ---- the picture -----------------------------------------------------------------------------------------------------------


def net_against_rho(panel: Panel, overlaps: Sequence[str] = OVERLAPS, timed: Sequence[Timed] = ()) -> Figure:
    """The picture of a panel, a pane an overlap; the first has the names. timed: links on which sessions timed it."""
    frame = lines_of(panel)
    frame = frame[frame["net"] > 0]
    best = {overlap: best_plain(own) for overlap, own in frame.groupby("overlap")}
    frame = frame[np.isfinite(frame["net"].astype(float))]
    shades = dict(zip((row["arm"] for row in ranked(panel)), LINES, strict=False))
    marks = [row for row in measured_nets(timed) if row["arm"] in shades]
    drawn = [*frame.loc[frame["arm"].isin(shades), "net"], *(y for own in best.values() for y in own["net"])]
    limits = max(LEAST, min(drawn) / 1.25), 1.6 * max(drawn)
    with look():
        both = len(overlaps) > 1
        figure, panes = new_figure(
            10.4 if both else 6.8, 5.6 if both else 4.8, len(overlaps), ratios=(2.8, 1)[: len(overlaps)]
        )
        for axes, overlap in zip(panes, overlaps, strict=True):
            axes.set_title(OVERLAP[overlap] if both else "")
            axes.set(xscale="log", yscale="log", xlim=(GRID[0], GRID[-1]), ylim=limits)
            axes.xaxis.set_major_locator(FixedLocator((0.1, 0.3, 1, 3, 10, 30, 100)))
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            for axis in (axes.xaxis, axes.yaxis):
                axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
                axis.set_minor_locator(NullLocator())
            _draw(axes, frame[frame["overlap"] == overlap], best[overlap], shades)
            _mark(axes, marks, shades)
        first = panes[0]
        for other in panes[1:]:
            other.set_yticklabels([])
        first.set_xlim(right=BESIDE * GRID[-1])
        first.set_xlabel("rho: seconds to send plain bf16 gradients over seconds to compute a step")
        first.set_ylabel("net speedup over plain training")
        figure.suptitle(
            f"{'Net speedup against rho: ' if both else ''}{setting(panel)}", x=0.01, ha="left", fontsize=10.5
        )
        ground = "better than every plain way"
        if not best[overlaps[0]]["bounded"].all():
            ground = "nothing, since a plain way is worth more than was tried"
        first.text(
            0.012, 0.985, f"shaded: {ground}", transform=first.transAxes, ha="left", va="top", style="italic",
            color=COLOURS["muted"],
        )  # fmt: skip
        name_points(first, *_names(frame[frame["overlap"] == overlaps[0]], best[overlaps[0]], shades))
        return figure


def best_plain(rows: pd.DataFrame) -> pd.DataFrame:
    """The best plain way at every rho.

    Args:
        rows: Of the table `rho` of one overlap, with `role`.

    Returns:
        A row a rho, rising: `rho`, `net`, and the `arm`, empty where it is plain training. Where one's net lies beyond the
        budgets its lower end counts, and the row is not `bounded`.
    """
    found = pd.DataFrame(
        {"rho": sorted(rows["rho"].unique()), "net": 1.0, "arm": "", "bounded": True}
    ).set_index("rho")
    for arm, own in rows[rows["role"].isin(RIVALS)].groupby("arm"):
        own = own.set_index("rho")[["net", "net_low"]].astype(float).reindex(found.index)
        found["bounded"] &= ~np.isinf(own["net"])
        ahead = own["net"].where(np.isfinite(own["net"]), own["net_low"])
        found.loc[ahead > found["net"], "arm"] = arm
        found["net"] = np.fmax(found["net"], ahead)
    return found.reset_index()


def _draw(axes: Axes, rows: pd.DataFrame, best: pd.DataFrame, shades: Mapping[str, str]) -> None:
    top = axes.get_ylim()[1]
    axes.fill_between(
        best["rho"], best["net"], top, where=best["bounded"], color=COLOURS["band"], linewidth=0, zorder=0
    )
    axes.plot(GRID[[0, -1]], [1, 1], color=COLOURS["baseline"], linewidth=0.8, linestyle=(0, (5, 3)))
    for arm, own in rows.groupby("arm"):
        role = own["role"].iloc[0]
        at, net = own["rho"].to_numpy(float), own["net"].to_numpy(float)
        if arm in shades:
            shade = COLOURS[shades[str(arm)]]
            low, high = (own[end].to_numpy(float) for end in ("net_low", "net_high"))
            axes.fill_between(at, low, high, color=shade, alpha=0.16, linewidth=0)
            axes.plot(at, net, color=shade, linewidth=1.2, zorder=3)
            sure = np.where(own["verdict"] == WORTH_IT, net, math.nan)
            axes.plot(at, sure, color=shade, linewidth=2.8, zorder=3)
        elif role == "alternative":
            axes.plot(at, net, color=COLOURS["baseline"], linewidth=0.8, linestyle=(0, (5, 3)))
        elif role != "plain":  # which lies on 1
            style = (0, (1, 2)) if role == "control" else "solid"
            axes.plot(at, net, color=COLOURS["muted"], linewidth=0.7, linestyle=style, alpha=0.6)
    axes.plot(best["rho"], best["net"], color=COLOURS["baseline"], linewidth=3.4, zorder=2)


def _mark(axes: Axes, marks: Sequence[Row], shades: Mapping[str, str]) -> None:
    """What was measured: a diamond with its interval, of which an open end goes on to the rim of the picture."""
    bottom, top = axes.get_ylim()
    for row in marks:
        at, shade = row["rho"], COLOURS[shades[row["arm"]]]
        low, high = row["net_low"] or bottom, min(row["net_high"] or top, top)
        axes.vlines(at, low, high, color=shade, linewidth=1.0, zorder=4)
        axes.scatter(
            at, row["net"], 24, shade, marker="D", edgecolor=COLOURS["paper"], linewidth=0.8, zorder=5
        )


def _names(
    rows: pd.DataFrame, best: pd.DataFrame, shades: Mapping[str, str]
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Where names of coloured lines and of the parts of the best plain way stand, and what they keep away from."""
    lines = {arm: own.set_index("rho")["net"].astype(float).map(math.log) for arm, own in rows.groupby("arm")}
    thick, beside = best.set_index("rho")["net"].map(math.log), GRID[-1] * 1.06
    points = [
        {"x": beside, "y": math.exp(lines[arm].iloc[-1]), "name": arm, "family": shade}
        for arm, shade in shades.items()
        if arm in lines
    ]
    parts = [part for _, part in best.groupby((best["arm"] != best["arm"].shift()).cumsum())]
    for part in parts:
        middle = part.iloc[len(part) // 2]
        x, y = (beside, part["net"].iloc[-1]) if part is parts[-1] else (middle["rho"], middle["net"])
        points.append({"x": x, "y": y, "name": middle["arm"] or "plain training", "family": "baseline"})
    at = np.linspace(math.log(GRID[0]), math.log(GRID[-1]), FINE)
    seen = [thick, *(lines[arm] for arm in shades if arm in lines)]
    taken = [
        pd.DataFrame({"x": np.exp(at), "y": np.exp(np.interp(at, np.log(one.index), one))}) for one in seen
    ]
    return pd.DataFrame(points), pd.concat(taken)


def rho_figures(study: StudyData) -> dict[str, Figure]:
    """The figures by name; README has the one where nothing overlaps."""
    judged = {panel.slug: (panel, timed_links(study, panel)) for panel in study.panels if panel.rho}
    alone = {
        f"rho-alone-{slug}": net_against_rho(one, OVERLAPS[:1], timed)
        for slug, (one, timed) in judged.items()
    }
    return {f"rho-{slug}": net_against_rho(one, timed=timed) for slug, (one, timed) in judged.items()} | alone


# ---- on a page -------------------------------------------------------------------------------------------------------------


def rho_parts(study: StudyData, place: Place) -> list[dict[str, Any]]:
    """What the template shows: a part for every panel that is judged over rho. Pictures become files of the page's place."""
    return [_part(study, panel, place) for panel in study.panels if panel.rho]


def _part(study: StudyData, panel: Panel, place: Place) -> dict[str, Any]:
    timed = timed_links(study, panel)
    figure = net_against_rho(panel, timed=timed)
    alt = f"{study.heading(panel)}: net speedup against rho, a line a method; the table has the numbers"
    picture = place.picture(f"rho-{panel.slug}", figure, alt)
    to_shares = figure.transFigure.inverted().transform
    panes = [
        to_shares(axes.transData.transform((rho, 1.0)))[0]
        for axes in figure.axes
        for rho in (GRID[0], GRID[-1])
    ]
    return {
        "slug": panel.slug,
        "heading": study.heading(panel),
        "short": " ".join(in_short(panel, names_in(study.sweep))),
        "sentences": [*sentences(panel), *measured_sentences(panel, measured_nets(timed))],
        "view": windows_view(panel),
        "picture": picture,
        "panes": " ".join(f"{end:.4f}" for end in panes),
        "ends": [f"{end:g}" for end in (GRID[0], GRID[-1])],
    }


def windows_view(panel: Panel) -> View:
    """A row an arm: methods first, in the order of the rule, then alternatives and what else ran."""
    methods = ranked(panel)
    shades = dict(zip((row["arm"] for row in methods), LINES, strict=False))
    overlapped = by_arm(panel.windows, overlap="all")
    of_all = "The same if all communication overlaps."

    def worth(row: Row) -> Cell:
        if row["worth"] is None:
            return Cell(MISSING, css="quiet")
        return Cell(net_words(row["worth"], row["low"], row["high"]), row["worth"])

    def remark(row: Row) -> Cell:
        own, of_overlap = row["reason"], overlapped[row["arm"]]["reason"]
        other = f"if all overlaps, {of_overlap}" if of_overlap and of_overlap != own else ""
        return Cell("; ".join(filter(None, (own, other))) or MISSING, css="reason")

    columns = (
        Column(
            "method", lambda row: Cell(row["arm"], family=shades.get(row["arm"], ""), note=_kind(row)),
            "Coloured as in the picture.",
        ),
        Column(
            "beats every plain way at rho", lambda row: Cell(_brief(window(row))),
            "By estimates, with 95 % intervals of the ends, if nothing overlaps.", hidden=True,
        ),
        Column(
            "by verdict at rho", lambda row: Cell(_brief(sure_window(row)), css="yes" if sure_window(row) else ""),
            "Where it is worth it by paired tests, by Holm over the methods, against plain training and every alternative.",
        ),
        Column("worth", worth, "The share of its steps after which plain training ends as well, with its 95 % interval.", True),
        Column(
            "bytes", lambda row: Cell(MISSING if row["bytes"] is None else f"{row['bytes']:.3g}", row["bytes"]),
            "Bytes a step on the wire over those of plain bf16 all-reduce.", True,
        ),
        *(_net_column(*nets_at(panel, rho)) for rho in SHOWN),
        Column("overlapped", lambda row: Cell(_brief(window(overlapped[row["arm"]]))), of_all, hidden=True),
        Column("overlapped, by verdict", lambda row: Cell(_brief(sure_window(overlapped[row["arm"]]))), of_all, hidden=True),
        Column("steps", value("steps", plain), "Over those of plain training.", True, True),
        Column(
            "computing", value("compute", plain),
            "Of a step, over that of plain training, with the method's own where it was measured.", True, True,
        ),
        Column("remark", remark, "Why it has no window or no verdict, or who is ahead inside.", hidden=True),
    )  # fmt: skip
    rest = [row for role in ROLES[1:] for row in windows(panel, role)]
    return View(f"{panel.slug}-windows", f"Windows of rho, {panel.whole_place}", columns, [*methods, *rest])


def _kind(row: Row) -> str:
    words = {"method": "", "uncompressed": "another optimizer", "plain": "null test"}
    return words.get(row["role"], str(row["role"]))


def net_words(value: float, low: float, high: float) -> str:
    """3.06 [2.81, 3.33]; below or above an end of what plain training was run for where it lies beyond."""
    if high == 0:  # no training of it is worth less
        return "diverged"
    if value == 0:
        return f"below {high:.2f}"
    if math.isinf(value):
        return f"above {low:.2f}"
    return f"{value:.2f}, above {low:.2f}" if math.isinf(high) else f"{value:.2f} [{low:.2f}, {high:.2f}]"


def _net_column(rho: float, nets: Mapping[str, Row]) -> Column:
    def make(row: Row) -> Cell:
        net = nets.get(row["arm"])
        if net is None:
            return Cell(MISSING, css="quiet")
        sign, css = SIGNS.get(net["verdict"], ("", ""))
        if not 0 < net["net"] < math.inf:
            return Cell(net_words(net["net"], net["net_low"], net["net_high"]), net["net"], css=css)
        return Cell(
            f"{sign} {times(net['net'])}".strip(), net["net"], factors(net["net_low"], net["net_high"]), css
        )

    about = "Net speedup if nothing overlaps, with its 95 % interval; the sign is its verdict."
    return Column(f"rho {weight(rho)}", make, about, True)
