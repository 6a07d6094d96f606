"""How methods end at a fixed budget: the table of methods and of controls, every seed, and who is equal, in sentences.

Nothing is said that the tables do not hold: a study that is not sensitive names nobody equal, and runs that did not finish are
counted before anything else could hide them. Of a method it says

- *equal*: the whole interval of the paired difference lies inside the margin, in a study that would have seen a bad method;
- *better by*, *worse by*: it lies wholly outside of it, on that side, by the mean; *worse* without a number: seeds diverged;
- *undecided*: there is an interval, and it is neither;
- *not known*: there is no interval, or the study is not sensitive; the reason stands beside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, Literal

import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure

from report import numbers as write
from report.figures import COLOURS, FAMILIES, colour, difference_axis, look, name_lines, new_figure
from report.numbers import are, interval, ratio, signed, span
from report.pages import slug
from report.tables import Cell, Column, Make, View, count, size, value
from suite.analysis.statistics import MINIMUM_FOR_INTERVAL
from suite.analysis.tables import Row

Word = Literal["equal", "better by", "worse by", "undecided", "not known"]
CLASSES: Final[Mapping[Word, str]] = MappingProxyType(
    {"equal": "yes", "better by": "yes", "worse by": "no", "undecided": "maybe", "not known": "maybe"}
)
LINE_HEIGHT: Final = 0.2
"""Inches a method."""


METRICS = {
    "accuracy": "accuracy (%)",
    "bits_per_byte": "bits a byte",
    "excess_loss": "excess loss",
    "test_loss": "test loss",
    "log_loss": "log loss (nats)",
}
SHARDINGS = {"iid": "shards i.i.d.", "by-class": "shards by class", "by-package": "shards by package"}


@dataclass(frozen=True)
class Panel:
    """What is compared with each other: one workload, sharding and world size, with its rows and its yardstick.

    budgets: rows by budget of steps; empty where the sweep has one budget alone. worth: rows of what each training is worth in
    steps of the reference. rho, windows: rows of net speedups by rho, and of where methods win; empty where the study has none.
    """

    workload: str
    sharding: str
    world_size: int
    summary: list[Row]
    runs: list[Row]
    verdict: Row
    facts: Mapping[str, Any]
    budgets: list[Row] = field(default_factory=list)
    worth: list[Row] = field(default_factory=list)
    rho: list[Row] = field(default_factory=list)
    windows: list[Row] = field(default_factory=list)

    @property
    def slug(self) -> str:
        """A name for anchors and files: letters, digits and hyphens."""
        return slug(f"{self.workload}-{self.sharding}-n{self.world_size}")

    @property
    def title(self) -> str:
        """For headings: shards by class."""
        return SHARDINGS.get(self.sharding, self.sharding)

    @property
    def place(self) -> str:
        """Where the panel is told from others of its study: Shards by class."""
        return self.title[0].upper() + self.title[1:]

    @property
    def whole_place(self) -> str:
        """The same with workload and workers."""
        return f"{self.workload}, {self.title}, {self.world_size} workers"

    @property
    def higher(self) -> bool:
        """Whether a higher metric is better."""
        return bool(self.facts["direction"] == "higher")

    @property
    def metric(self) -> str:
        """The metric in words; one that only its workload knows comes with its unit."""
        name, unit = str(self.facts["metric"]), f" ({self.unit})" if self.unit else ""
        return METRICS.get(name, name.replace("_", " ") + unit)

    @property
    def unit(self) -> str:
        """Of metric differences: points, bits/byte, or nothing."""
        return "" if self.facts["unit"] == "1" else str(self.facts["unit"])

    @property
    def digits(self) -> int:
        """Decimals in which the metric is written: two for points, four for the smaller units."""
        return 2 if self.facts["unit"] == "points" else 4

    @property
    def margin(self) -> float:
        """Largest difference that counts as equal."""
        return float(self.facts["margin"])

    @property
    def sensitive(self) -> bool:
        """Whether the negative controls show that a bad method would have been seen."""
        return bool(self.verdict["sensitive"])

    def judged(self, row: Row) -> tuple[Word, str, str]:
        """The one rule of what is said of the accuracy of a method.

        Args:
            row: Of the summary, of a method that is compared with a baseline.

        Returns:
            The word; the same with the difference to the baseline, where the word is of it; why it is not known, or worse
            without a number.
        """
        planned, pairs, mean = row["n"] or 0, row["n_pairs"] or 0, row["diff_mean"]
        if row["n_diverged"]:
            return "worse by", "worse", f"{row['n_diverged']} of {planned} seeds diverged"
        if mean is None or row["diff_low"] is None or row["diff_high"] is None:
            few = planned < MINIMUM_FOR_INTERVAL
            why = f"{planned} seeds" if few else f"{pairs} of {planned} seeds finished"
            return "not known", "not known", f"{why}: an interval needs {MINIMUM_FOR_INTERVAL}"
        if row["equal"] == "no":
            word: Word = "better by" if (mean > 0) == self.higher else "worse by"
            return word, f"{word} {abs(mean):.{self.digits}f} {self.unit}".rstrip(), ""
        if row["equal"] in ("yes", "undecided") and self.sensitive:
            word = "equal" if row["equal"] == "yes" else "undecided"
            return word, word, ""
        why = "" if self.sensitive else f": {self.verdict['reason']}"
        return "not known", "not known", f"not sensitive{why}"

    def differences(self, rows: Sequence[Row]) -> pd.DataFrame:
        """The metric of arms less that of their baselines with the same seed.

        Args:
            rows: Of the summary, each with a baseline.

        Returns:
            DataFrame, a row a seed in rising order, a column an arm in the order of `rows`; nan where either did not finish.
        """
        runs = pd.DataFrame(self.runs, columns=["arm", "seed", "status", "value"]).astype({"value": float})
        done = runs[runs["status"] == "done"].pivot(index="seed", columns="arm", values="value")
        needed = [row[name] for row in rows for name in ("arm", "baseline")]
        values = done.reindex(index=sorted(runs["seed"].unique()), columns=list(dict.fromkeys(needed)))
        return pd.DataFrame({row["arm"]: values[row["arm"]] - values[row["baseline"]] for row in rows})

    @property
    def families(self) -> list[str]:
        """The families that occur, in the order of the theme."""
        seen = {family(row) for row in self.summary}
        return [*(one for one in FAMILIES if one in seen), *sorted(seen - set(FAMILIES))]

    @property
    def baselines(self) -> list[Row]:
        """The uncompressed runs, other plain ways to use the machines among them."""
        return [row for row in self.summary if not row["control"] and not self._is_method(row)]

    @property
    def methods(self) -> list[Row]:
        """What is compared with a baseline; controls and plain ways to use the machines are left out."""
        return [row for row in self.summary if not row["control"] and self._is_method(row)]

    def _is_method(self, row: Row) -> bool:
        plain = {own["arm"] for own in self.windows if own["role"] == "alternative"}
        return row["baseline"] is not None and row["arm"] not in plain

    @property
    def controls(self) -> list[Row]:
        """The negative controls."""
        return [row for row in self.summary if row["control"]]


def _measured(mean: str, low: str, high: str, digits: int, sign: bool) -> Make:
    def make(row: Row) -> Cell:
        text = (signed if sign else write.plain)(row[mean], digits)
        return Cell(text, row[mean], interval(row[low], row[high], digits, sign))

    return make


def _columns(panel: Panel, ranks: bool) -> tuple[Column, ...]:
    unit, digits = f" ({panel.unit})" if panel.unit else "", panel.digits

    def equal(row: Row) -> Cell:
        if row["baseline"] is None:
            return Cell("baseline", css="quiet")
        word, short, why = panel.judged(row)
        return Cell(short, word, why, CLASSES[word])

    def seeds(row: Row) -> Cell:
        done, planned, pairs = (row[name] or 0 for name in ("n_done", "n", "n_pairs"))
        unpaired = row["n_pairs"] is not None and pairs < done
        css = "" if done == planned else "no"
        return Cell(write.share(done, planned), done, f"{pairs} pairs" if unpaired else "", css)

    def diverged(row: Row) -> Cell:
        lost = row["n_diverged"] or 0
        return Cell(write.share(lost, row["n"] or 0) if lost else "0", lost, css="no" if lost else "")

    def rate(row: Row) -> Cell:
        edge = "pinned" if row["lr_edge"] is None else "edge" if row["lr_edge"] else ""
        return Cell(write.rate(row["lr_peak"]), row["lr_peak"], edge)

    return (
        Column(
            "method", lambda row: Cell(row["arm"], note="stale" if row["n_stale"] else "", family=family(row)),
            "The sweep's label of a method with its options.",
        ),
        Column(
            "equal?", equal,
            f"equal: the 95 % interval of the difference lies inside ±{panel.margin:g}{unit}; better, worse: wholly outside.",
        ),
        Column(
            f"difference{unit}", _measured("diff_mean", "diff_low", "diff_high", digits, True),
            "Mean difference to the baseline, paired by seed, with its 95 % t interval.", True,
        ),
        Column(
            "fewer bytes", value("bytes_ratio", ratio),
            "Wire bytes of the whole training of the baseline over those of the method.", True,
        ),
        Column("bytes a step", size("wire_bytes_per_step"), "Sent on the wire a step, mean over ranks, headers left out.", True),
        Column(
            panel.metric, _measured("mean", "ci_low", "ci_high", digits, False),
            "Mean over the finished seeds with its 95 % t interval.", True,
        ),
        Column(
            "NLL difference", _measured("nll_diff_mean", "nll_diff_low", "nll_diff_high", 3, True),
            "As the difference, of the negative log-likelihood (nats).", True, True,
        ),
        Column("seeds", seeds, "Finished of planned: the n of every number in the row.", True),
        Column("diverged", diverged, "Seeds that diverged; they are in no mean, and such a method is not equal.", True),
        Column("learning rate", rate, "Peak rate, and whether the tuned one lies on an edge of its grid.", True),
        Column(
            "p", value("p_exact", write.probability), "Two-sided exact sign-flip test of the difference.", True, not ranks
        ),
        Column(
            "p (Holm)", value("p_holm", write.probability), "The same after Holm's correction over this table's methods.",
            True, not ranks,
        ),
        Column(
            "baseline", lambda row: Cell(row["baseline"] or write.MISSING), "The uncompressed run of the same optimizer.",
            hidden=True,
        ),
        Column("family", lambda row: Cell(FAMILIES.get(row["family"], row["family"])), "What kind of method it is.", hidden=True),
        Column(
            "payload a step", size("payload_bytes_per_step"), "Bytes handed to collectives a step, mean over ranks.", True, True
        ),
        Column(
            "synchronisations", count("syncs"), "Steps that synchronised parameters or momenta, mean over seeds.", True, True
        ),
    )  # fmt: skip


def family(row: Row) -> str:
    """The family of an arm; negative controls are one of their own."""
    return "control" if row["control"] else str(row["family"])


def _ordered(rows: Iterable[Row]) -> list[Row]:
    order = list(FAMILIES)

    def key(row: Row) -> tuple[bool, int, str]:
        known = row["family"] in order
        return row["baseline"] is not None, order.index(row["family"]) if known else len(order), row["arm"]

    return sorted(rows, key=key)


def methods_view(panel: Panel, ranks: bool) -> View:
    """The main table of a panel: baselines, then methods by family."""
    rows = _ordered([*panel.baselines, *panel.methods])
    return View(panel.slug, f"Methods, {panel.whole_place}", _columns(panel, ranks), rows)


def controls_view(panel: Panel) -> View:
    """The negative controls of a panel."""
    left_out = {"equal?", "p", "p (Holm)", "baseline", "family", "payload a step", "synchronisations"}
    columns = tuple(column for column in _columns(panel, False) if column.title not in left_out)
    return View(
        f"{panel.slug}-controls", f"Negative controls, {panel.whole_place}", columns, _ordered(panel.controls)
    )


def seeds(panel: Panel) -> Figure:
    """One line a method, best on top: dots are seeds, the bar is the mean, the line its 95 % t interval."""
    rows = [row for row in [*panel.methods, *panel.controls] if row["diff_mean"] is not None]
    rows.sort(key=lambda row: ((-1 if panel.higher else 1) * row["diff_mean"], row["arm"]))
    names, palette = [row["arm"] for row in rows], [colour(family(row)) for row in rows]
    found = panel.differences([row for row in rows if row["baseline"] is not None])
    dots = found.melt(var_name="arm", value_name="difference").dropna()
    with look():
        figure, (axes,) = new_figure(5.6, 0.6 + LINE_HEIGHT * max(len(rows), 2))
        bounds = [row[end] for row in rows for end in ("diff_low", "diff_high") if row[end] is not None]
        difference_axis(axes, "x", [*dots["difference"], *bounds], panel.margin)
        if panel.sensitive:
            axes.axvspan(-panel.margin, panel.margin, color=COLOURS["band"], linewidth=0, zorder=0)
        axes.axvline(0, color=COLOURS["muted"], linewidth=0.7, zorder=1)
        if rows:
            sns.stripplot(
                dots, x="difference", y="arm", order=names, hue="arm", hue_order=names, palette=palette, jitter=False,
                size=3.4, alpha=0.45, legend=False, ax=axes,
            )  # fmt: skip
        bars = pd.DataFrame(rows, columns=["diff_mean", "diff_low", "diff_high"], dtype=float)
        axes.hlines(bars.index, bars["diff_low"], bars["diff_high"], palette, linewidth=1.6)
        axes.vlines(bars["diff_mean"], bars.index - 0.3, bars.index + 0.3, palette, linewidth=1.6)
        name_lines(axes, [family(row) for row in rows])
        axes.grid(visible=False, axis="y")
        unit = f" ({panel.unit})" if panel.unit else ""
        axes.set_xlabel(f"difference to uncompressed, same seed{unit}")
        return figure


def explanation(panel: Panel) -> str:
    """What the numbers of a panel's table are."""
    facts, unit = panel.facts, f" {panel.unit}" if panel.unit else ""
    said = [
        f"{panel.workload}, {panel.world_size} workers, {facts['steps']} steps of {facts['batch_size']} examples a worker, "
        f"{facts['schedule']} learning rate.",
        f"{str(facts['metric']).replace('_', ' ').capitalize()}: {facts['direction']} is better.",
        "Brackets are 95 % t intervals over the seeds of the row, differences paired by seed.",
        f"Equal means that the interval lies inside ±{panel.margin:g}{unit}.",
    ]
    if any(row["n_stale"] for row in panel.summary):
        said.append(
            "Stale: ran with another source of the method or workload than is here, and is left out of ranks."
        )
    return " ".join(said)


# ---- in sentences, each with its n and its interval


def _difference(panel: Panel, row: Row) -> str:
    mean = signed(row["diff_mean"], panel.digits)
    return f"{mean} {interval(row['diff_low'], row['diff_high'], panel.digits, sign=True)}".strip()


def equality_sentence(panel: Panel, place: str) -> str:
    """How many methods are equal and which of them sends least; or that the study cannot say."""
    if not panel.methods:
        return f"{place}: no method was compared."
    if not panel.sensitive:
        return f"{place}: not sensitive, so no method is called equal ({panel.verdict['reason']})."
    equal = [row for row in panel.methods if row["equal"] == "yes"]
    undecided = sum(row["equal"] == "undecided" for row in panel.methods)
    unit = f" {panel.unit}" if panel.unit else ""
    tail = f"; {are(undecided)} undecided" if undecided else ""
    if not equal:
        return f"{place}: none of {len(panel.methods)} methods is shown to be within ±{panel.margin:g}{unit}{tail}."
    best = max(equal, key=lambda row: (row["bytes_ratio"], row["arm"]))
    return (
        f"{place}: {len(equal)} of {len(panel.methods)} methods are within ±{panel.margin:g}{unit} of the uncompressed "
        f"run of their own optimizer{tail}. {best['arm']} sends least of them: {ratio(best['bytes_ratio'])} "
        f"fewer bytes at {_difference(panel, best)}{unit} (95 % paired t, n = {best['n_pairs']})."
    )


def option_sentence(panel: Panel, place: str) -> str:
    """The method whose own options differ most, where their intervals do not overlap and the margin is passed; else empty."""
    measured = [row for row in panel.methods if row["diff_low"] is not None]
    pairs: list[tuple[float, Row, Row]] = [
        (above["diff_low"] - below["diff_high"], below, above)
        for below in measured
        for above in measured
        if (below["algorithm"], below["baseline"]) == (above["algorithm"], above["baseline"])
    ]
    gap, below, above = max(pairs, key=lambda pair: pair[0], default=(0.0, {}, {}))
    if gap <= panel.margin:
        return ""
    worse, better = (below, above) if panel.higher else (above, below)
    unit, n = f" {panel.unit}" if panel.unit else "", span([worse["n_pairs"], better["n_pairs"]])
    return (
        f"{place}: options decide: {worse['arm']} ends at {_difference(panel, worse)}{unit}, "
        f"{better['arm']} at {_difference(panel, better)}{unit} (95 % paired t, n = {n})."
    )
