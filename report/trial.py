"""A page of methods tried on somebody's own model: loss against bytes and against predicted time, and one table.

One seed says nothing of accuracy, and a few hundred steps at one learning rate say little: the page says so before it shows
numbers, and gives a word on loss only where there are seeds enough for an interval.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from reference_impls.registry import registry
from report import numbers as write
from report.figures import colour, look, new_figure
from report.pages import Place, write_page
from report.tables import Cell, Column, View, count, seconds, size, text
from suite.analysis.statistics import MINIMUM_FOR_INTERVAL, Interval, paired_difference
from suite.links.link import duration_words, rate_words

END_SHARE: Final = 0.1
"""The loss at the end is the mean over this last share of the steps."""
SMOOTHED: Final = 0.05
"""Lines are running means over this share of the steps."""
WORDS: Final = {"higher": "no", "lower": "yes", "undecided": "maybe", "reference": "quiet"}
"""Word on the loss -> class."""


@dataclass(frozen=True)
class Run:
    """A method with one seed, a number a step. loss: mean over workers. wire_bytes: that a worker sends. seconds: predicted."""

    seed: int
    loss: tuple[float, ...]
    wire_bytes: tuple[float, ...]
    seconds: tuple[float, ...]
    diverged_at: int | None = None

    @property
    def end_loss(self) -> float | None:
        """The mean over the last steps; None where it diverged."""
        if self.diverged_at is not None or not self.loss:
            return None
        return fmean(self.loss[-max(1, round(END_SHARE * len(self.loss))) :])


@dataclass(frozen=True)
class Tried:
    """A method as configured, by its label, and its runs by seed; refused: why there are none."""

    label: str
    algorithm: str
    runs: tuple[Run, ...] = ()
    refused: str = ""

    @property
    def family(self) -> str:
        """Of the method."""
        return registry.entry(self.algorithm).family

    @property
    def end_loss(self) -> float | None:
        """Mean over seeds; None where one diverged, or none ran."""
        ends = [run.end_loss for run in self.runs]
        known = [end for end in ends if end is not None]
        return fmean(known) if known and len(known) == len(ends) else None

    @property
    def step_bytes(self) -> float | None:
        """Mean over steps and seeds."""
        return _mean(value for run in self.runs for value in run.wire_bytes)

    @property
    def step_s(self) -> float | None:
        """Predicted; mean over steps and seeds."""
        return _mean(value for run in self.runs for value in run.seconds)

    @property
    def ended(self) -> str:
        """What kept it from its end, in words; empty where nothing did."""
        lost = [
            f"seed {run.seed} at step {run.diverged_at}" for run in self.runs if run.diverged_at is not None
        ]
        return self.refused or (f"diverged: {', '.join(lost)}" if lost else "")


@dataclass(frozen=True)
class Trial:
    """Methods tried on one model; the first is what the others are compared with.

    lr: of those that were given none of their own. measured: whether `compute_s` was measured here, or stated.
    """

    source: str
    methods: Sequence[Tried]
    parameters: int
    workers: int
    steps: int
    seeds: tuple[int, ...]
    lr: float
    rate_bps: float
    delay_s: float
    compute_s: float
    measured: bool
    score: tuple[str, ...] = field(default=())

    def difference(self, method: Tried) -> Interval | None:
        """Loss at the end, the method's less the first one's, paired by seed; None where seeds do not suffice."""
        first = self.methods[0]
        if method is first or len(self.seeds) < MINIMUM_FOR_INTERVAL:
            return None
        ends = [[run.end_loss for run in one.runs] for one in (method, first)]
        if any(len(own) < len(self.seeds) or None in own for own in ends):
            return None
        mine, theirs = ([end for end in own if end is not None] for own in ends)
        return paired_difference(mine, theirs)

    def word(self, method: Tried) -> str:
        """What can be said of the loss: only an interval decides."""
        if method is self.methods[0]:
            return "reference"
        if method.ended:
            return method.ended
        found = self.difference(method)
        if found is None:
            return f"no verdict from {counted(len(self.seeds), 'seed')}"
        return "higher" if found.low > 0 else "lower" if found.high < 0 else "undecided"

    def rows(self) -> list[dict[str, Any]]:
        """A row a method, for a terminal or JSON: numbers are None where there are none."""
        first = self.methods[0]
        return [
            {
                "method": method.label,
                "end_loss": method.end_loss,
                "difference": None if found is None else [found.estimate, found.low, found.high],
                "bytes_step": method.step_bytes,
                "fewer_bytes": _ratio(first.step_bytes, method.step_bytes),
                "step_ms": None if method.step_s is None else 1e3 * method.step_s,
                "speedup": _ratio(first.step_s, method.step_s),
                "loss_is": self.word(method),
            }
            for method in self.methods
            for found in [self.difference(method)]
        ]

    def caveats(self) -> list[str]:
        """What limits the numbers, in sentences."""
        own = "measured here, forward and backward of one worker" if self.measured else "as stated"
        seeds = f"{counted(len(self.seeds), 'seed')}, {counted(self.steps, 'step')}, {self.workers} simulated workers"
        enough = len(self.seeds) >= MINIMUM_FOR_INTERVAL
        return [
            (
                f"{seeds}: intervals are 95 % t intervals of differences paired by seed, not corrected for "
                f"{counted(len(self.methods) - 1, 'comparison')}."
                if enough
                else f"{seeds}: no verdict on accuracy. Give --seeds {MINIMUM_FOR_INTERVAL} or more for intervals."
            ),
            f"The learning rate is {self.lr:g} for every method that was given none of its own, and tuned for none. What does no "
            "harm here may do it at another rate, or in a whole training.",
            "Loss is the training loss, the mean over workers, each with its own parameters; at the end: over the last "
            f"{END_SHARE:.0%} of the steps. Nothing was held out.",
            f"Seconds are predicted, not measured, for {rate_words(self.rate_bps)} a worker, "
            f"{duration_words(self.delay_s)} one way, and {write.quantity(self.compute_s, 'seconds')} of computing ({own}). "
            "What a method's codec and update take is not counted: `bandwise advise` counts it where sessions timed it.",
            *([f"The formula's own errors: {'; '.join(self.score)}."] if self.score else []),
        ]

    def findings(self) -> list[str]:
        """What a reader should know first: bytes and predicted seconds are known, loss mostly is not."""
        first, *others = [method for method in self.methods if method.step_s is not None]
        faster = sorted(
            ((first.step_s or 0.0) / other.step_s, other) for other in others if other.step_s and not other.ended
        )[::-1]  # fmt: skip
        found = []
        if faster and faster[0][0] > 1:
            best, method = faster[0]
            found.append(
                f"The shortest predicted step is that of {method.label}: {write.times(best)} as fast as {first.label}, whose "
                f"step takes {write.quantity(first.step_s, 'seconds')}. What its codec takes is not counted."
            )
        else:
            found.append(f"No method's predicted step is shorter than that of {first.label} on this link.")
        worse = [method.label for method in others if self.word(method) == "higher"]
        if worse:
            found.append(f"Higher loss than {first.label}, beyond the interval: {', '.join(worse)}.")
        broken = [f"{method.label} ({method.ended})" for method in self.methods if method.ended]
        if broken:
            found.append(f"Did not get to the end: {'; '.join(broken)}.")
        return [*found, self.caveats()[0]]


def counted(count: int, what: str) -> str:
    """`1 seed`, `3 seeds`."""
    return f"{count} {what}{'' if count == 1 else 's'}"


def _mean(values: Any) -> float | None:
    listed = list(values)
    return fmean(listed) if listed else None


def _ratio(over: float | None, under: float | None) -> float | None:
    return over / under if over is not None and under else None


# ---- the page

_DASHES: Final = ("-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2)))
"""Of the lines of one family, whose colour they share."""


def build_trial_page(trial: Trial, out: Path) -> Path:
    """Write the page."""
    place = Place(out.parent, out.name)
    axes: tuple[tuple[str, str, str, Callable[[float], str]], ...] = (
        ("Loss against bytes", "bytes that a worker has sent", "wire_bytes", write.byte_count),
        (
            "Loss against predicted time",
            "predicted seconds",
            "seconds",
            lambda x: write.quantity(x, "seconds"),
        ),
    )
    return write_page(
        place,
        "trial",
        headline=trial.findings(),
        trial=trial,
        seeds=counted(len(trial.seeds), "seed"),
        size=f"{trial.parameters:,}",
        pictures=[
            place.picture(
                column,
                _figure(trial, axis, column, words),
                f"{title}, a line a method; the table has the ends",
                title,
            )
            for title, axis, column, words in axes
        ],
        caveats=trial.caveats(),
        view=_view(trial),
    )


def _figure(trial: Trial, axis: str, column: str, words: Callable[[float], str]) -> Figure:
    """Loss, smoothed, over the sum of a column; a thin line for each seed but the first."""
    with look():
        figure, (axes,) = new_figure(7.2, 3.4)
        seen: dict[str, int] = {}
        for method in trial.methods:
            dash = _DASHES[seen.get(method.family, 0) % len(_DASHES)]
            seen[method.family] = seen.get(method.family, 0) + 1
            for i, points in enumerate(filter(None, (_points(run, column) for run in method.runs))):
                axes.plot(
                    *zip(*points, strict=True), color=colour(method.family), linestyle=dash, linewidth=1.1 if i == 0 else 0.6,
                    label=method.label if i == 0 else None,
                )  # fmt: skip
        if axes.lines:
            axes.set_xscale("log")
            axes.legend(labelcolor="linecolor")
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: words(value)))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set(xlabel=axis, ylabel="training loss")
        return figure


def _points(run: Run, column: str) -> list[tuple[float, float]]:
    """(sum so far, running mean of the loss); nothing before the first byte, which a logarithmic axis cannot show."""
    window = max(1, round(SMOOTHED * len(run.loss)))
    total, points = 0.0, []
    for i, each in enumerate(getattr(run, column)):
        total += each
        if total > 0 and math.isfinite(total):
            points.append((total, fmean(run.loss[max(0, i + 1 - window) : i + 1])))
    return points


def _view(trial: Trial) -> View:
    def difference(row: dict[str, Any]) -> Cell:
        if row["difference"] is None:
            return Cell(write.MISSING, css="quiet")
        value, low, high = row["difference"]
        return Cell(write.signed(value, 4), value, write.interval(low, high, 4, True))

    columns = (
        Column(
            "method", lambda row: Cell(row["method"], family=row["family"]), "The first is what the others are compared with."
        ),
        Column(
            "loss at the end", count("end_loss"),
            f"Training loss over the last {END_SHARE:.0%} of the steps; mean over seeds.", True,
        ),
        Column("difference", difference, "To the first method, paired by seed, with its 95 % t interval.", True),
        Column("its loss is", text("loss_is", classes=WORDS), "Decided by the interval alone."),
        Column("bytes a step", size("bytes_step"), "That a worker sends, counted; mean over workers and steps.", True),
        Column(
            "fewer bytes", lambda row: Cell(write.ratio(row["fewer_bytes"]), row["fewer_bytes"]),
            "The first method's over this one's.", True,
        ),
        Column(
            "predicted step", seconds("step_s"), "Computing, bytes over 0.91 of the rate, delays; mean over steps.", True
        ),
        Column(
            "speedup", lambda row: Cell(write.times(row["speedup"]), row["speedup"]),
            "The first method's predicted step over this one's.", True,
        ),
    )  # fmt: skip
    rows = [
        {**row, "family": method.family, "step_s": method.step_s}
        for method, row in zip(trial.methods, trial.rows(), strict=True)
    ]
    return View("methods-table", "Methods tried", columns, rows)
