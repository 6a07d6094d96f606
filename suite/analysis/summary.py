"""Runs to one row an arm: means, paired differences, tests, bytes; and the word on equality with the check that it could fail.

Everything is computed inside a *cell*, the runs of one workload, sharding and world size. Differences pair a
run with the run of its baseline that has the same seed; seeds that either lost are left out of the pair,
counted, and keep the arm from being called equal. Nothing is filled in for a run that failed.

A method is *equal* to its baseline when the interval of the paired difference lies inside +-margin, *not
equal* when the interval lies wholly outside, else *undecided* (two one-sided tests; a 95 % interval makes
each of them at 2.5 %; Schuirmann, Journal of Pharmacokinetics and Biopharmaceutics 15, 1987). A margin that
is too wide calls anything equal, so the same study must tell the negative controls (methods known to be bad)
from the baseline, and the margin may be at most half the loss of the weakest of them. Where that fails the
study is *not sensitive*, and no method of it is called equal. Judged are the controls of optimizers that some method uses: where
none does, as SGD where a study shows only that AdamW is ahead of it, there is no verdict that they could take back.

A `Study` is what all this has to know about a sweep: its arms, planned runs, how workloads are judged, what tuning tried. It is
checked when it is made, so that a table never compares an arm with one that does not exist. `study_of` is the one place
where the analysis meets the planner, the registry and the workloads.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import pandas as pd

from reference_impls.core.registry import registry
from suite.analysis.net_speedup import Trials
from suite.analysis.statistics import (
    MINIMUM_FOR_INTERVAL,
    Interval,
    StatisticsError,
    can_rank,
    holm,
    mean_interval,
    sign_flip_p,
)
from suite.analysis.tables import ARM, CELL, RUN, SENSITIVITY, SUMMARY, Row, checked, frame_of
from suite.runs.files import canonical_json
from suite.runs.plan import Plan
from suite.runs.spec import RunSpec, judgement, source_hash, workload_hash
from suite.runs.sweep import WHOLE, Rates, Sweep, Tuned, WorkloadChoice, load_rates


class StudyError(ValueError):
    """A study contradicts itself; the message names the arm or the run."""


@dataclass(frozen=True)
class Arm:
    """A label for a method with its options. `baseline` is None for an uncompressed run, which has none.

    `source_hash` is that of the method now; a result with another one is stale. `lr_edges` says for (workload
    label, sharding, world size) whether the tuned rate lies on an edge of its grid.
    """

    name: str
    algorithm: str
    family: str
    baseline: str | None = None
    control: bool = False
    source_hash: str | None = None
    lr_edges: Mapping[tuple[str, str, int], bool] = field(default_factory=dict)


@dataclass(frozen=True)
class Yardstick:
    """How a workload is judged: metric, the unit and direction ("higher", "lower" is better), the margin of
    "equal", and why there is no such verdict, if there is none. `source_hash`: of a workload from outside, as it is now.
    """

    metric: str
    unit: str
    direction: str
    margin: float
    no_verdict: str = ""
    source_hash: str | None = None


@dataclass(frozen=True)
class Entry:
    """One planned run, the arm it belongs to, the workload's label (its name, with the options it was given), and its
    budget, where the sweep is over several.
    """

    arm: str
    workload: str
    spec: RunSpec
    budget: float = WHOLE


@dataclass(frozen=True)
class Study:
    """A sweep as the analysis sees it. Raises StudyError when arms, baselines and runs do not fit together.

    `yardsticks` are by workload label; `ranks` says that the sweep compares methods by tests, not by
    intervals alone; `command` remakes the study, as tables say it; `called` is how a command here
    names it; `about` is one sentence for the reader. `references`: arms that run at all budgets, net speedups are read on the
    first. `trials`: by workload's label, sharding, world size and arm, the metric by tuning seed at every rate, of arms that
    were tuned by two seeds or more; nan where a run failed.
    """

    name: str
    arms: tuple[Arm, ...]
    entries: tuple[Entry, ...]
    yardsticks: Mapping[str, Yardstick]
    ranks: bool = False
    command: str = ""
    about: str = ""
    called: str = ""
    references: tuple[str, ...] = ()
    trials: Mapping[tuple[str, str, int, str], Trials] = field(default_factory=dict)

    def __post_init__(self) -> None:
        known = self.by_name
        if len(known) != len(self.arms):
            raise StudyError(f"sweep {self.name}: two arms have one name")
        for arm in self.arms:
            if arm.baseline is None:
                continue
            if arm.baseline not in known:
                raise StudyError(
                    f"sweep {self.name}: arm {arm.name} names the baseline {arm.baseline}, which is no arm"
                )
            if known[arm.baseline].baseline is not None:
                raise StudyError(
                    f"sweep {self.name}: {arm.baseline} has a baseline, so it cannot be {arm.name}'s"
                )
        for entry in self.entries:
            if entry.arm not in known:
                raise StudyError(
                    f"sweep {self.name}: run {entry.spec.run_id} belongs to the unknown arm {entry.arm}"
                )
            if entry.workload not in self.yardsticks:
                raise StudyError(f"sweep {self.name}: nothing says how workload {entry.workload} is judged")

    def again(self, verb: str, *more: str) -> str:
        """A command on the study as people can give it here."""
        return shlex.join(["bandwise", verb, self.called or self.name, *more])

    @property
    def whole(self) -> list[Entry]:
        """The planned runs of budget 1: all of them where the sweep has no other."""
        return [entry for entry in self.entries if entry.budget == WHOLE]

    @property
    def by_name(self) -> dict[str, Arm]:
        """The arms by name."""
        return {arm.name: arm for arm in self.arms}


def _tuned(sweep: Sweep, rates: Rates) -> list[Tuned]:
    """The entries that the sweep uses: of arms that it still has and that pin no rate."""
    found = [
        rates.find(panel, arm) for panel in sweep.panels() for arm in sweep.arms_of(panel) if arm.lr is None
    ]
    return [entry for entry in found if entry is not None]


def _yardstick(sweep: Sweep, choice: WorkloadChoice) -> Yardstick:
    told = judgement(choice.name, choice.options)
    told["margin"] = sweep.margin or told["margin"]
    return Yardstick(**told, source_hash=workload_hash(choice.name))


def study_of(plan: Plan) -> Study:
    """The study that a plan stands for. Raises ValueError for unknown names, StudyError for contradictions."""
    sweep = plan.sweep
    edges: dict[str, dict[tuple[str, str, int], bool]] = {}
    trials: dict[tuple[str, str, int, str], Trials] = {}
    for entry in _tuned(sweep, load_rates(sweep.rates_path)):
        cell = (entry.workload, entry.sharding, entry.world_size)
        edges.setdefault(entry.arm, {})[cell] = entry.edge != "none"
        chosen = next((i for i, trial in enumerate(entry.trials) if entry.is_of(trial)), None)
        if chosen is not None and len(entry.trials[chosen].values) > 1:
            failed = (math.nan,) * len(entry.trials[chosen].values)
            trials[*cell, entry.arm] = Trials([trial.values or failed for trial in entry.trials], chosen)
    arms = []
    for arm in sweep.arms.values():
        baseline = None if arm.baseline == arm.label else arm.baseline
        arms.append(
            Arm(
                name=arm.label,
                algorithm=arm.algorithm,
                family=registry.entry(arm.algorithm).family,
                baseline=baseline,
                control=arm.control,
                source_hash=source_hash(arm.algorithm),
                lr_edges=edges.get(arm.label, {}),
            )
        )
    return Study(
        name=sweep.name,
        arms=tuple(arms),
        entries=tuple(
            Entry(run.arm.label, run.panel.workload.label, run.spec, run.budget) for run in plan.runs
        ),
        yardsticks={choice.label: _yardstick(sweep, choice) for choice in sweep.workloads},
        ranks=sweep.ranks,
        command=shlex.join(["bandwise", "sweep", sweep.published_as]),
        about=sweep.title,
        called=sweep.called,
        references=sweep.references,
        trials=trials,
    )


def tuning_rows(sweep: Sweep) -> list[Row]:
    """What tuning tried for the arms of the sweep, one row a learning rate; empty where nothing was tuned."""
    return [
        {
            "workload": entry.workload,
            "sharding": entry.sharding,
            "world_size": entry.world_size,
            "arm": entry.arm,
            "lr": trial.lr,
            "options": canonical_json(trial.options) if trial.options else None,
            "status": trial.status,
            "value": trial.value,
            "nll": trial.nll,
            "chosen": entry.is_of(trial),
            "edge": entry.is_of(trial) and entry.edge != "none",
        }
        for entry in _tuned(sweep, load_rates(sweep.rates_path))
        for trial in entry.trials
    ]


# ---- from runs to arms


Cell = tuple[str, str, int]
"""A workload's label, a sharding, a number of workers."""

Equality = Literal["yes", "no", "undecided", "not sensitive"]


@dataclass(frozen=True)
class Control:
    """What one negative control lost against its baseline, in the workload's unit; a loss is positive.

    loss is None when fewer than six pairs finished; collapsed says that every seed diverged, which is a loss
    without bound. planned: seeds that were to run.
    """

    name: str
    loss: Interval | None
    collapsed: bool = False
    planned: int = MINIMUM_FOR_INTERVAL


@dataclass(frozen=True)
class Sensitivity:
    """Whether a study could have seen a bad method: the verdict, the reason in a sentence, the weakest
    control and its loss.
    """

    sensitive: bool
    reason: str
    weakest: str | None
    weakest_loss: float | None


def _positive(margin: float) -> float:
    if not (math.isfinite(margin) and margin > 0):
        raise StatisticsError(
            f"an equivalence margin is a positive number in the workload's unit, not {margin}"
        )
    return margin


def equivalence(difference: Interval, margin: float) -> Equality:
    """Equality from the interval of a paired difference alone: "yes" inside (-margin, margin), "no" wholly
    outside.

    Raises StatisticsError for a margin that is not positive or an interval that is not finite.
    """
    _positive(margin)
    if not (math.isfinite(difference.low) and math.isfinite(difference.high)):
        raise StatisticsError("equivalence needs a finite interval; count failed runs apart")
    if -margin < difference.low and difference.high < margin:
        return "yes"
    if difference.low >= margin or difference.high <= -margin:
        return "no"
    return "undecided"


def sensitivity(
    controls: Sequence[Control], margin: float, unit: str = "", no_verdict: str = ""
) -> Sensitivity:
    """Whether the study tells every negative control from the baseline, and the margin is at most half the
    weakest loss.

    A control is told apart when the interval of its loss lies above 0, or when all its seeds diverged. The
    weakest control is the one with the smallest mean loss. Without controls, or with one that could not be
    measured, the study is not sensitive; nor on a workload that says why it supports no verdict.
    """
    _positive(margin)
    if no_verdict:
        return Sensitivity(False, f"this workload supports no verdict on equality: {no_verdict}", None, None)
    suffix = f" {unit}" if unit else ""
    if not controls:
        return Sensitivity(
            False,
            "no negative control ran, so nothing shows that a bad method would have been seen",
            None,
            None,
        )
    unmeasured = sorted(c.name for c in controls if c.loss is None and not c.collapsed)
    if planned := [c.planned for c in controls if c.name in unmeasured and c.planned < MINIMUM_FOR_INTERVAL]:
        return Sensitivity(
            False, f"{min(planned)} seeds: an interval needs {MINIMUM_FOR_INTERVAL}", None, None
        )
    if unmeasured:
        return Sensitivity(
            False, f"too few seeds of {', '.join(unmeasured)} finished to measure the loss", None, None
        )
    losses = sorted((math.inf if c.loss is None else c.loss.estimate, c.name) for c in controls)
    weakest_loss, weakest = losses[0]
    hidden = sorted(c.name for c in controls if c.loss is not None and c.loss.low <= 0)
    if hidden:
        reason = f"with this many seeds {', '.join(hidden)} cannot be told from the baseline"
        return Sensitivity(False, reason, weakest, weakest_loss)
    lost = "diverged" if math.isinf(weakest_loss) else f"lost {weakest_loss:.2f}{suffix}"
    if margin > weakest_loss / 2:
        reason = f"the margin of {margin:g}{suffix} is more than half of what the weakest control lost"
        return Sensitivity(False, f"{reason} ({weakest} {lost})", weakest, weakest_loss)
    reason = f"every control is told from its baseline, and the weakest ({weakest}) {lost}"
    return Sensitivity(
        True, f"{reason}, at least twice the margin of {margin:g}{suffix}", weakest, weakest_loss
    )


def equality(
    difference: Interval | None, margin: float, study: Sensitivity, *, planned: int, done: int, diverged: int
) -> Equality:
    """The word that stands in the table, from the interval, the study's sensitivity and what became of the
    planned seeds.

    A diverged seed makes "no", whatever the other seeds did. "yes" needs every planned seed: seeds lost for
    another reason leave "undecided". "not sensitive" replaces "yes" and "undecided" in a study that could not
    have seen a bad method, but a measured "no" stays. difference is None when fewer than six pairs finished.
    """
    if not 0 <= done + diverged <= planned:
        raise StatisticsError(
            f"{done} done and {diverged} diverged of {planned} planned runs does not add up"
        )
    if diverged:
        return "no"
    word: Equality = "undecided" if difference is None else equivalence(difference, margin)
    if word == "no":
        return "no"
    if not study.sensitive:
        return "not sensitive"
    return word if done == planned else "undecided"


# ---- frames of runs to frames of arms


def summarise(study: Study, runs: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """What the runs of a study say of its arms, and whether they could have said otherwise.

    Args:
        study: Its arms and how its workloads are judged.
        runs: The table `runs`.

    Returns:
        The tables `summary`, a row an arm and cell, and `sensitivity`, a row a cell.

    Raises:
        StudyError: An arm has two runs of one seed, or runs that differ in their learning rate.
    """
    refuse_two_of_a_seed(study, runs)
    arms = _arms(study, runs.sort_values(RUN, kind="stable"))
    by_cell: Iterable[tuple[Any, pd.DataFrame]] = arms.groupby(CELL)
    judged: dict[Cell, Sensitivity] = {cell: _judge(study, cell[0], of_cell) for cell, of_cell in by_cell}
    return _summary_table(study, _with_tests(study, arms), judged), _sensitivity_table(study, arms, judged)


def paired(study: Study, runs: pd.DataFrame) -> pd.DataFrame:
    """Every finished run beside the finished run of its baseline with the same seed, whose columns end in `_of_baseline`."""
    done = runs.loc[runs["status"] == "done", [*RUN, "value", "nll", "wire_bytes_per_step"]]
    own = done.merge(arms_of(study)[["arm", "baseline"]], on="arm")
    other = done.rename(columns={"arm": "baseline"})
    return own.merge(other, on=[*CELL, "baseline", "seed"], suffixes=("", "_of_baseline")).sort_values(RUN)


def interval_by(frame: pd.DataFrame, column: str, by: list[str] = ARM) -> pd.Series:
    """The t interval of a column's mean for every group of rows; None where fewer than six have a value."""
    return frame.dropna(subset=column).groupby(by)[column].agg(_interval)


def _interval(values: pd.Series) -> Interval | None:
    return mean_interval(values.tolist()) if len(values) >= MINIMUM_FOR_INTERVAL else None


def ends_of(intervals: pd.Series, name: str) -> pd.DataFrame:
    """The ends of intervals, as columns `<name>_low` and `<name>_high`."""
    known = intervals.dropna()
    ends = {
        "low": known.map(lambda interval: interval.low),
        "high": known.map(lambda interval: interval.high),
    }
    return pd.DataFrame(
        {f"{name}_{end}": values.astype("float64") for end, values in ends.items()}, intervals.index
    )


def refuse_two_of_a_seed(study: Study, runs: pd.DataFrame, *more: str) -> None:
    """Raises StudyError where an arm has two runs of one seed in a cell, and with the same in the columns `more`."""
    for row in runs[runs.duplicated([*RUN, *more])].itertuples():
        raise StudyError(
            f"sweep {study.name}: arm {row.arm} has two runs of seed {row.seed} on {row.workload}, "
            f"{row.sharding}; give them two arms"
        )


def _arms(study: Study, runs: pd.DataFrame) -> pd.DataFrame:
    """What is counted and averaged of the runs of every arm and cell, which are the index."""
    by_arm = runs.groupby(ARM)
    for workload, sharding, _, arm in (
        by_arm["lr_peak"].nunique(dropna=False).loc[lambda rates: rates > 1].index
    ):
        raise StudyError(
            f"sweep {study.name}: the runs of arm {arm} on {workload}, {sharding}, differ in lr_peak; "
            "give them several arms"
        )
    done, pairs = runs[runs["status"] == "done"], paired(study, runs)
    sent = pairs["wire_bytes_per_step"]
    pairs = pairs.assign(
        gap=pairs["value"] - pairs["value_of_baseline"],
        nll_gap=pairs["nll"] - pairs["nll_of_baseline"],
        ratio=(pairs["wire_bytes_per_step_of_baseline"] / sent)
        .where(sent != 0, math.inf)
        .where(sent.notna()),
    )
    of_done, of_pairs = done.groupby(ARM), pairs.groupby(ARM)
    differences = interval_by(pairs, "gap")
    arms = pd.DataFrame(
        {
            "n": by_arm.size(),
            "n_done": of_done["value"].count(),
            "n_diverged": (runs["status"] == "diverged").groupby([runs[name] for name in ARM]).sum(),
            "n_stale": by_arm["stale"].sum(),
            "lr_peak": by_arm["lr_peak"].first(),
            **{
                name: of_done[name].mean()
                for name in ("wire_bytes_per_step", "payload_bytes_per_step", "syncs")
            },
            "mean": of_done["value"].mean(),
            "nll_mean": of_done["nll"].mean(),
            "n_pairs": of_pairs["gap"].count(),
            "diff_mean": of_pairs["gap"].mean(),
            "nll_diff_mean": of_pairs["nll_gap"].mean(),
            "bytes_ratio": of_pairs["ratio"].mean(),
            "bytes_ratio_low": of_pairs["ratio"].min(),
            "bytes_ratio_high": of_pairs["ratio"].max(),
            "difference": differences,
            "gaps": pairs.dropna(subset="gap").groupby(ARM)["gap"].agg(list),
        }
    ).join(
        [
            ends_of(interval_by(done, "value"), "ci"),
            ends_of(differences, "diff"),
            ends_of(interval_by(pairs, "nll_gap"), "nll_diff"),
        ]
    )
    counts = ["n", "n_done", "n_diverged", "n_stale", "n_pairs"]
    arms[counts] = arms[counts].fillna(0).astype("int64")
    return arms.reset_index().merge(arms_of(study), on="arm", how="left")


def arms_of(study: Study) -> pd.DataFrame:
    """A row an arm with what a study says of it: algorithm, family, baseline (missing: it has none), control."""
    names = ("name", "algorithm", "family", "baseline", "control")
    arms = pd.DataFrame(
        [[getattr(arm, name) for name in names] for arm in study.arms], columns=["arm", *names[1:]]
    )
    return arms.astype({"arm": "str", "algorithm": "str", "family": "str", "baseline": "str"})


def _judge(study: Study, workload: str, arms: pd.DataFrame) -> Sensitivity:
    """Whether the negative controls among the arms of a cell show that a bad method would have been seen."""
    yard = study.yardsticks[workload]
    used = arms.loc[~arms["control"] & arms["baseline"].notna(), "baseline"]
    controls = arms[arms["control"]]
    of_methods = controls[controls["baseline"].isin(used)]
    rows: Iterable[Any] = (controls if of_methods.empty else of_methods).itertuples()
    losses = [
        Control(row.arm, _loss(row.difference, yard.direction), row.n_diverged == row.n, row.n)
        for row in rows
    ]
    return sensitivity(losses, yard.margin, yard.unit, yard.no_verdict)


def _loss(difference: Interval | None, direction: str) -> Interval | None:
    """A difference to the baseline as a loss, which is positive where the arm is worse."""
    if not isinstance(difference, Interval) or direction == "lower":
        return difference if isinstance(difference, Interval) else None
    return Interval(-difference.estimate, -difference.high, -difference.low, difference.n)


def _sensitivity_table(study: Study, arms: pd.DataFrame, judged: Mapping[Cell, Sensitivity]) -> pd.DataFrame:
    controls = arms.groupby(CELL)["control"].sum()
    return frame_of(
        SENSITIVITY,
        (
            {
                **dict(zip(CELL, cell, strict=True)),
                "controls": int(controls[cell]),
                **asdict(verdict),
                "margin": study.yardsticks[cell[0]].margin,
                "unit": study.yardsticks[cell[0]].unit,
            }
            for cell, verdict in judged.items()
        ),
    )


def _with_tests(study: Study, arms: pd.DataFrame) -> pd.DataFrame:
    """The arms with exact p and Holm-adjusted p; empty where the sweep does not rank or too few seeds finished.

    The table that Holm corrects over holds every compared arm of a cell; one without a complete set of pairs enters with p = 1.
    """
    stale = arms[[*ARM, "n_stale"]].rename(columns={"arm": "baseline"})
    stale_baseline = arms.merge(stale, on=[*CELL, "baseline"], how="left", suffixes=("", "_of_baseline"))[
        "n_stale_of_baseline"
    ]
    compared = arms["baseline"].notna() & ~arms["control"]
    comparisons = compared.groupby([arms[name] for name in CELL]).transform("sum")
    tested = (
        compared
        & (arms["n_pairs"] == arms["n"])
        & (arms["n_stale"] == 0)
        & ~(stale_baseline > 0)
        & study.ranks
    )
    exact = pd.Series(
        [
            sign_flip_p(gaps, [0.0] * len(gaps)) if test and can_rank(len(gaps), count) else math.nan
            for test, gaps, count in zip(tested, arms["gaps"], comparisons, strict=True)
        ],
        arms.index,
    )
    corrected = (
        exact[compared]
        .fillna(1.0)
        .groupby([arms[name] for name in CELL])
        .transform(lambda p: holm(p.to_list()))
    )
    return arms.assign(p_exact=exact, p_holm=corrected.where(exact.notna()))


def _summary_table(study: Study, arms: pd.DataFrame, judged: Mapping[Cell, Sensitivity]) -> pd.DataFrame:
    is_baseline = arms["baseline"].isna()
    arms.loc[is_baseline & (arms["n_done"] > 0), ["bytes_ratio", "bytes_ratio_low", "bytes_ratio_high"]] = 1.0
    yards = [study.yardsticks[workload] for workload in arms["workload"]]
    edges = {arm.name: arm.lr_edges for arm in study.arms}
    cells = list(zip(*(arms[name] for name in CELL), strict=True))
    rows: Iterable[Any] = arms.itertuples()
    words = [
        _equal(row, study.yardsticks[cell[0]], judged[cell]) for row, cell in zip(rows, cells, strict=True)
    ]
    table = arms.assign(
        n_pairs=arms["n_pairs"].astype("Int64").mask(is_baseline),
        metric=[yard.metric for yard in yards],
        unit=[yard.unit for yard in yards],
        margin=[yard.margin for yard in yards],
        equal=pd.Series(words, arms.index, dtype="str"),
        lr_edge=pd.Series(
            [edges[arm].get(cell) for arm, cell in zip(arms["arm"], cells, strict=True)],
            arms.index,
            dtype="boolean",
        ),
    )
    return checked(SUMMARY, table[list(SUMMARY.names)])


def _equal(arm: Any, yard: Yardstick, study: Sensitivity) -> Equality | None:
    """The word on the equality of an arm, a row of `_arms`; None for baselines and controls."""
    if pd.isna(arm.baseline) or arm.control:
        return None
    difference = arm.difference if isinstance(arm.difference, Interval) else None
    word = equality(difference, yard.margin, study, planned=arm.n, done=arm.n_pairs, diverged=arm.n_diverged)
    if word == "no" and yard.no_verdict and not arm.n_diverged:
        return "not sensitive"  # its margin was not measured, so a difference beyond it says nothing either
    return word
