"""How methods end at a fixed budget: the table of methods and of controls, every seed, and who is equal, in sentences.

The picture shows each paired difference as a dot, with the mean and its interval over it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch
from matplotlib.path import Path

from report.drawing import numbers as write
from report.drawing.numbers import interval, number, ratio, signed
from report.drawing.scales import bare, difference_axis, look, new_figure
from report.drawing.table import Cell, Column, Line, Row, View, bytes_cell, chips
from report.drawing.theme import COLOURS, FAMILIES, colour
from report.study.data import Panel

ACCURACY_CLASSES = {
    "equal": "yes",
    "better by": "yes",
    "worse by": "no",
    "undecided": "maybe",
    "not known": "maybe",
}


def _seeds(row: Row) -> Cell:
    done, planned, pairs = (int(number(row[c]) or 0) for c in ("n_done", "n", "n_pairs"))
    unpaired = row["n_pairs"] is not None and pairs < done
    text = write.share(done, planned)
    return Cell(text, done, f"{pairs} pairs" if unpaired else "", css="" if done == planned else "no")


def _interval(row: Row, mean: str, low: str, high: str, digits: int, sign: bool) -> Cell:
    value, ends = number(row[mean]), (number(row[low]), number(row[high]))
    text = (write.signed if sign else write.plain)(value, digits)
    return Cell(text, value, write.interval(*ends, digits, sign), ends)


def _lr(row: Row) -> Cell:
    note = {True: "edge", False: "", None: "pinned"}[None if row["lr_edge"] is None else bool(row["lr_edge"])]
    return Cell(write.rate(row["lr_peak"]), row["lr_peak"], note)


def _equal(row: Row, panel: Panel) -> Cell:
    if row["baseline"] is None:
        return Cell("baseline", "baseline", css="quiet")
    judged = panel.judged(row)
    return Cell(judged.short, judged.word, judged.reason, css=ACCURACY_CLASSES[judged.word])


def _arm(row: Row) -> Cell:
    return Cell(row["arm"], row["arm"], "stale" if row["n_stale"] else "")


def _line(row: Row, panel: Panel) -> Line:
    lost = row["n_diverged"] or 0
    syncs = number(row["syncs"])
    cells = {
        "method": _arm(row),
        "equal": _equal(row, panel),
        "difference": _interval(row, "diff_mean", "diff_low", "diff_high", panel.digits, True),
        "ratio": Cell(write.ratio(row["bytes_ratio"]), row["bytes_ratio"]),
        "bytes": bytes_cell(row["wire_bytes_per_step"]),
        "metric": _interval(row, "mean", "ci_low", "ci_high", panel.digits, False),
        "nll": _interval(row, "nll_diff_mean", "nll_diff_low", "nll_diff_high", 3, True),
        "seeds": _seeds(row),
        "diverged": Cell(write.share(lost, (row["n"] or 0)) if lost else "0", lost, css="no" if lost else ""),
        "lr": _lr(row),
        "p": Cell(write.probability(row["p_exact"]), row["p_exact"]),
        "holm": Cell(write.probability(row["p_holm"]), row["p_holm"]),
        "baseline": Cell(row["baseline"] or write.MISSING, row["baseline"]),
        "family": Cell(FAMILIES.get(row["family"], row["family"]), row["family"]),
        "payload": bytes_cell(row["payload_bytes_per_step"]),
        "syncs": Cell(write.MISSING if syncs is None else f"{syncs:g}", syncs),
    }
    return Line(cells, "control" if row["control"] else row["family"])


def _columns(panel: Panel, ranks: bool) -> tuple[Column, ...]:
    unit = f" ({panel.unit})" if panel.unit else ""
    return (
        Column("method", "method", "The sweep's label of a method with its options."),
        Column("equal", "equal?",
            f"equal: the 95 % interval of the difference lies inside ±{panel.margin:g}{unit}; better, worse: wholly outside.",
        ),
        Column(
            "difference", f"difference{unit}",
            "Mean difference to the baseline, paired by seed, with its 95 % t interval.", True, True,
        ),
        Column("ratio", "fewer bytes", "Wire bytes a step of the baseline over those of the method.", True),
        Column("bytes", "bytes a step", "Sent on the wire a step, mean over ranks, headers left out.", True),
        Column("metric", panel.metric, "Mean over the finished seeds with its 95 % t interval.", True, True),
        Column("nll", "NLL difference", "As the difference, of the negative log-likelihood (nats).", True, True),
        Column("seeds", "seeds", "Finished of planned: the n of every number in the row.", True),
        Column("diverged", "diverged", "Seeds that diverged; they are in no mean, and such a method is not equal.", True),
        Column("lr", "learning rate", "Peak rate, and whether the tuned one lies on an edge of its grid.", True),
        Column("p", "p", "Two-sided exact sign-flip test of the difference.", True, hidden=not ranks),
        Column("holm", "p (Holm)", "The same after Holm's correction over this table's methods.", True, hidden=not ranks),
        Column("baseline", "baseline", "The uncompressed run of the same optimizer.", hidden=True),
        Column("family", "family", "What kind of method it is.", hidden=True),
        Column("payload", "payload a step", "Bytes handed to collectives a step, mean over ranks.", True, hidden=True),
        Column("syncs", "synchronisations", "Steps that synchronised parameters or momenta, mean over seeds.", True, hidden=True),
    )  # fmt: skip


def _ordered(rows: Iterable[Row]) -> list[Row]:
    order = list(FAMILIES)

    def key(row: Row) -> tuple[bool, int, str]:
        family = row["family"]
        return (
            row["baseline"] is not None,
            order.index(family) if family in order else len(order),
            row["arm"],
        )

    return sorted(rows, key=key)


def methods_view(panel: Panel, ranks: bool) -> View:
    """The main table of a panel: baselines, then methods by family."""
    lines = tuple(_line(row, panel) for row in _ordered([*panel.baselines, *panel.methods]))
    caption = f"Methods, {panel.workload}, {panel.title}, {panel.world_size} workers"
    return View(panel.slug, caption, _columns(panel, ranks), lines, chips(lines))


def controls_view(panel: Panel) -> View:
    """The negative controls of a panel."""
    wanted = ("method", "difference", "ratio", "bytes", "metric", "nll", "seeds", "diverged", "lr")
    columns = tuple(column for column in _columns(panel, False) if column.key in wanted)
    lines = tuple(_line(row, panel) for row in _ordered(panel.controls))
    caption = f"Negative controls, {panel.workload}, {panel.title}, {panel.world_size} workers"
    return View(f"{panel.slug}-controls", caption, columns, lines)


LINE_HEIGHT = 0.2
"""Inches a method."""
SEPARATE = 1500
"""More dots than these are drawn as one path a method, in a fifth of the bytes; dots on each other then look like one."""
DOT = 3.4
"""Points across."""


def _many(axes: Axes, dots: list[tuple[str, float]], names: list[str], shades: list[str]) -> None:
    """The dots of each method as strokes without length, whose round ends are the dots."""
    values: dict[str, list[float]] = {name: [] for name in names}
    for name, value in dots:
        values[name].append(value)
    for line, (name, shade) in enumerate(zip(names, shades, strict=True)):
        ends = [(value, line) for value in values[name] for _ in range(2)]
        if not ends:
            continue
        path = Path(ends, [Path.MOVETO, Path.LINETO] * (len(ends) // 2))
        path.should_simplify = False
        axes.add_patch(
            PathPatch(path, fill=False, edgecolor=shade, alpha=0.45, linewidth=DOT, capstyle="round")
        )


def paired(panel: Panel, rows: Sequence[Row]) -> list[tuple[str, float]]:
    """(arm, difference) for each seed that the arm and its baseline finished."""
    differences = panel.differences([row for row in rows if row["baseline"] is not None])
    return [(str(arm), float(value)) for arm in differences for value in differences[arm].dropna()]


def seeds(panel: Panel, width: float = 5.5) -> Figure:
    """One line a method, best on top: dots are seeds, the bar is the mean, the line its 95 % t interval."""
    rows = [row for row in [*panel.methods, *panel.controls] if row["diff_mean"] is not None]
    sign = 1 if panel.facts["direction"] == "lower" else -1
    rows.sort(key=lambda row: ((row["diff_mean"] or 0.0) * sign, row["arm"]))
    names = [row["arm"] for row in rows]
    shades = [colour("control" if row["control"] else row["family"]) for row in rows]
    dots = paired(panel, rows)
    height = 0.55 + LINE_HEIGHT * max(len(rows), 2)
    with look():
        figure, (axes,) = new_figure(width, height)
        figure.subplots_adjust(
            left=1.9 / width, right=1 - 0.12 / width, bottom=0.45 / height, top=1 - 0.06 / height
        )
        bounds = [number(row[c]) for row in rows for c in ("diff_low", "diff_high")]
        values = [*(d for _, d in dots), *(b for b in bounds if b is not None)]
        difference_axis(axes, "x", values, panel.margin)
        bare(axes, "x")
        if panel.sensitive:
            axes.axvspan(-panel.margin, panel.margin, color=COLOURS["band"], linewidth=0, zorder=0)
        axes.axvline(0, color=COLOURS["muted"], linewidth=0.7, zorder=1)
        if len(dots) > SEPARATE:
            _many(axes, dots, names, shades)
        else:
            for line, (arm, shade) in enumerate(zip(names, shades, strict=True)):
                own = [value for name, value in dots if name == arm]
                axes.scatter(own, [line] * len(own), DOT**2, shade, linewidths=0, alpha=0.45, zorder=3)
        for line, (row, shade) in enumerate(zip(rows, shades, strict=True)):
            low, high, mean = (number(row[name]) for name in ("diff_low", "diff_high", "diff_mean"))
            if low is not None and high is not None:
                axes.plot([low, high], [line, line], color=shade, linewidth=1.6, zorder=3)
            if mean is not None:
                axes.plot([mean], [line], "|", color=shade, markersize=9, markeredgewidth=1.6)
        axes.set_yticks(range(len(names)), names)
        for tick, shade in zip(axes.get_yticklabels(), shades, strict=True):
            tick.set_color(shade)
        axes.set_ylim(len(names) - 0.4, -0.6)
        unit = f" ({panel.unit})" if panel.unit else ""
        axes.set_xlabel(f"difference to the uncompressed run of the same seed{unit}")
        axes.set_ylabel("")
        return figure


def _number(row: Row, column: str) -> float:
    value = row[column]
    if not isinstance(value, int | float):
        raise TypeError(f"column {column} of arm {row['arm']} is empty")
    return float(value)


def _difference(panel: Panel, row: Row) -> str:
    low, high = row["diff_low"], row["diff_high"]
    if not isinstance(low, float | int) or not isinstance(high, float | int):
        return signed(_number(row, "diff_mean"), panel.digits)
    mean = signed(_number(row, "diff_mean"), panel.digits)
    return f"{mean} {interval(low, high, panel.digits, sign=True)}"


def _pairs(rows: list[Row]) -> str:
    counts = sorted({int(_number(row, "n_pairs")) for row in rows})
    return f"n = {counts[0]}" if len(counts) == 1 else f"n = {counts[0]} to {counts[-1]}"


def equality_sentence(panel: Panel, place: str) -> str:
    """How many methods are equal and which of them sends least; or that the study cannot say."""
    if not panel.methods:
        return f"{place}: no method was compared."
    if not panel.sensitive:
        return f"{place}: not sensitive, so no method is called equal ({panel.verdict['reason']})."
    equal = [row for row in panel.methods if row["equal"] == "yes"]
    undecided = sum(row["equal"] == "undecided" for row in panel.methods)
    unit = f" {panel.unit}" if panel.unit else ""
    tail = f"; {undecided} {'is' if undecided == 1 else 'are'} undecided" if undecided else ""
    if not equal:
        return f"{place}: none of {len(panel.methods)} methods is shown to be within ±{panel.margin:g}{unit}{tail}."
    best = max(equal, key=lambda row: (_number(row, "bytes_ratio"), row["arm"]))
    return (
        f"{place}: {len(equal)} of {len(panel.methods)} methods are within ±{panel.margin:g}{unit} of the uncompressed "
        f"run of their own optimizer{tail}. {best['arm']} sends least of them: {ratio(_number(best, 'bytes_ratio'))} "
        f"fewer bytes at {_difference(panel, best)}{unit} (95 % paired t, {_pairs([best])})."
    )


def option_sentence(panel: Panel, place: str) -> str | None:
    """The method whose own options differ most, where their intervals do not overlap and the margin is
    passed.
    """
    widest: tuple[float, Row, Row] | None = None
    measured = [row for row in panel.methods if row["diff_low"] is not None]
    for worse in measured:
        for better in measured:
            if worse["algorithm"] != better["algorithm"] or worse["baseline"] != better["baseline"]:
                continue
            first, second = (worse, better) if panel.facts["direction"] == "higher" else (better, worse)
            gap = _number(second, "diff_low") - _number(first, "diff_high")
            if gap > panel.margin and (widest is None or gap > widest[0]):
                widest = (gap, worse, better)
    if widest is None:
        return None
    _, worse, better = widest
    unit = f" {panel.unit}" if panel.unit else ""
    return (
        f"{place}: options decide: {worse['arm']} ends at {_difference(panel, worse)}{unit}, "
        f"{better['arm']} at {_difference(panel, better)}{unit} (95 % paired t, {_pairs([worse, better])})."
    )
