"""Run folders to tables: every run of a study as a row, and every arm as one, with the word on equality.

Arms are computed inside a *cell*, the runs of one workload, sharding and world size. Differences pair a run with the run of its
baseline that has the same seed; seeds that either lost are left out of the pair, counted, and keep the arm from being called
equal. Nothing is filled in for a run that failed. Judged are the controls of optimizers that some method uses: where none does,
as SGD where a study shows only that AdamW is ahead of it, there is no verdict that they could take back.

`collect` reads the folders of a study's runs, and of the tables of its session what methods compute themselves (kappa); so other
sweeps in the same results tree do not leak in. A run
that failed keeps its status and reason and has no value; a run that was never started is a row with the status *missing*. What
a run noted as it trained lies beside its result, in `metrics.jsonl`, and is read with the same doubt: a curve that is damaged,
or does not end where the result says, is refused by name, the run keeps its result and has no curve. `write` puts the tables
under results/tables beside a small JSON file with what a table cannot hold.
"""

from __future__ import annotations

import datetime
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final

import pandas as pd

from reference_impls.core.registry import create, registry
from suite.analysis.equal_time import worth_table
from suite.analysis.gates import gate_rows
from suite.analysis.published import ATTRIBUTES, FACTS_SCHEMA, counted, facts_path
from suite.analysis.rho import own_computing, rho_tables
from suite.analysis.speed import fragments_averaged, planned_kinds
from suite.analysis.statistics import (
    MINIMUM_FOR_INTERVAL,
    Control,
    Equality,
    Interval,
    Sensitivity,
    can_rank,
    equality,
    holm,
    mean_interval,
    sensitivity,
    sign_flip_p,
)
from suite.analysis.study import Cell, Entry, Study, Yardstick, study_of, tuning_rows
from suite.analysis.tables import (
    ARM,
    BUDGET_RUNS,
    BUDGET_SWEEP,
    CELL,
    CURVES,
    GATES,
    RUN,
    RUNS,
    SENSITIVITY,
    SUMMARY,
    TUNING,
    WORTH,
    Row,
    Table,
    Value,
    checked,
    frame_of,
    rows_of,
    table_path,
    to_csv,
)
from suite.runs.files import RefusedError, canonical_json, dump, write_atomic
from suite.runs.plan import make_plan
from suite.runs.spec import RunSpec, is_older
from suite.runs.store import AGAIN, LIVE, Status, Store
from suite.runs.sweep import WHOLE, Sweep, load_sweep

if TYPE_CHECKING:
    from reference_impls.core.algorithm import Algorithm

# ---- frames of runs to frames of arms


def summarise(study: Study, runs: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """What the runs of a study say of its arms, and whether they could have said otherwise.

    Args:
        study: Its arms and how its workloads are judged.
        runs: The table `runs`.

    Returns:
        The tables `summary`, a row an arm and cell, and `sensitivity`, a row a cell.
    """
    arms = _arms(study, runs.sort_values(RUN, kind="stable"))
    by_cell: Iterable[tuple[Any, pd.DataFrame]] = arms.groupby(CELL)
    judged: dict[Cell, Sensitivity] = {cell: _judge(study, cell[0], of_cell) for cell, of_cell in by_cell}
    return _summary_table(study, _with_tests(study, arms), judged), _sensitivity_table(study, arms, judged)


def paired(study: Study, runs: pd.DataFrame) -> pd.DataFrame:
    """Every finished run beside the finished run of its baseline with the same seed, whose columns end in `_of_baseline`."""
    done = runs.loc[runs["status"] == "done", [*RUN, "steps", "value", "nll", "wire_bytes_per_step"]]
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
    ends = [(found.low, found.high) for found in known]
    columns = [f"{name}_low", f"{name}_high"]
    return pd.DataFrame(ends, known.index, columns, dtype="float64").reindex(intervals.index)


def _arms(study: Study, runs: pd.DataFrame) -> pd.DataFrame:
    """What is counted and averaged of the runs of every arm and cell, which are the index."""
    by_arm = runs.groupby(ARM)
    done, pairs = runs[runs["status"] == "done"], paired(study, runs)
    sent = pairs["wire_bytes_per_step"]
    pairs = pairs.assign(
        gap=pairs["value"] - pairs["value_of_baseline"],
        nll_gap=pairs["nll"] - pairs["nll_of_baseline"],
        ratio=(pairs["wire_bytes_per_step_of_baseline"] / sent).where(sent != 0, math.inf).where(sent.notna())
        * (pairs["steps_of_baseline"] / pairs["steps"]).astype("float64"),
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
    return Interval(-difference.estimate, -difference.high, -difference.low)


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
            sign_flip_p(gaps) if test and can_rank(len(gaps), count) else math.nan
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


# ---- from folders to runs


SYNCHRONISING: Final = ("average", "sync")
ENDED: Final = ("done", "diverged")
"""What a run is that has a curve: others say nothing of the method."""
Standing = tuple[Status, dict[str, Any] | None]
"""How a run stands, and its result where there is one that can be used."""


@dataclass(frozen=True)
class Collected:
    """The tables of one study, and its facts: what a reader asks first, as plain JSON values.

    tables: `runs`, which are those of budget 1 and of which summary and sensitivity speak, and all others; those of a sweep over
    budgets only where there is one.
    """

    sweep: str
    tables: Mapping[Table, pd.DataFrame]
    facts: dict[str, Any]

    def rows(self, table: Table) -> list[Row]:
        """The rows of one of the tables; none where the study has no such table."""
        return rows_of(self.tables[table]) if table in self.tables else []


PER_STEP: Final = {
    "payload_bytes_per_step": "payload_per_rank_mean",
    "wire_bytes_per_step": "wire_per_rank_mean",
    "wire_bytes_per_step_max": "wire_per_rank_max",
}
"""Column of the table of runs -> total of a result's bytes."""


def per_step(result: Mapping[str, Any]) -> dict[str, float | None]:
    """Bytes a step of a run with this result; None where there is none."""
    found, steps = result.get("bytes", {}), int(result.get("steps") or 0)
    return {
        column: found[total] / steps if steps and total in found else None
        for column, total in PER_STEP.items()
    }


def _reason(status: Status) -> str | None:
    """The reason without what changes from minute to minute, so that the tables stay the same."""
    if status.state in LIVE:
        return "not finished yet; the same `bandwise sweep` goes on from here"
    return status.reason or None


def _run_row(standing: Standing, study: Study, entry: Entry) -> Row:
    spec, arm = entry.spec, study.by_name[entry.arm]
    status, found = standing
    result = found or {}
    metric = study.yardsticks[entry.workload].metric
    final = result.get("final") or {}
    if status.state == "done" and metric not in final:
        status = Status(
            "invalid", f"result.json is refused (final lacks the metric {metric} of its workload)"
        )
    done = status.state == "done"
    value = final.get(metric)
    kinds = result.get("steps_by_kind") or {}
    provenance = result.get("provenance") or {}
    return {
        **dict(zip(CELL, entry.cell, strict=True)),
        "arm": arm.name,
        "seed": spec.seed,
        "run_id": spec.run_id,
        "sweep": study.name,
        "algorithm": spec.algorithm.name,
        "family": arm.family,
        "options": canonical_json(spec.algorithm.options),
        "backend": spec.backend,
        "steps": spec.steps,
        "batch_size": spec.batch_size,
        "workers": None if spec.world_size == entry.cell[2] else spec.world_size,
        "lr_peak": spec.lr.peak,
        "status": status.state,
        "reason": _reason(status),
        "metric": metric,
        "value": value if done else None,
        "nll": final.get("nll") if done else None,
        **per_step(result),
        "syncs": sum(int(kinds.get(kind, 0)) for kind in SYNCHRONISING) if result else None,
        "kinds": sent_by_kind(spec, result),
        "commit": provenance.get("commit"),
        "environment": provenance.get("environment_hash"),
        "stale": is_older(
            result.get("sources") or {},
            {"algorithm": arm.source_hash, "workload": study.yardsticks[entry.workload].source_hash},
        ),
    }


def sent_by_kind(spec: RunSpec, result: Mapping[str, Any]) -> str | None:
    """The column `kinds`. What the planning of steps sends is spread over all; fragments of other sizes are other kinds."""
    from reference_impls.core.algorithm import Algorithm  # here, since it loads torch

    counts: Mapping[str, int] = result.get("steps_by_kind") or {}
    if not counts:
        return None
    sent: Counter[str] = Counter()
    for row in result["bytes"]["by"]:
        sent[row["kind"]] += row["wire_bytes"] / spec.world_size
    planning, algorithm = sent["plan"] / sum(counts.values()), None
    if registry.load(spec.algorithm.name).behind is not Algorithm.behind:
        algorithm = create(spec.algorithm.name, **spec.algorithm.options).algorithm
    found: dict[str, list[float]] = {}
    for kind, n in counts.items():
        parts = {kind: (n, sent[kind] / n)}
        if algorithm and kind == "average" and hasattr(algorithm, "fragments"):
            parts = _by_fragment(spec, algorithm, result["steps"], sent[kind])
        behind = algorithm.behind(kind) if algorithm else 1
        found |= {name: [of, round(planning + nbytes, 3), behind] for name, (of, nbytes) in parts.items()}
    return canonical_json(found)


def _by_fragment(
    spec: RunSpec, algorithm: Algorithm, steps: int, sent: float
) -> dict[str, tuple[int, float]]:
    """How many of so many steps average a share of the model, and bytes of one, by share. sent: bytes of all."""
    kinds = planned_kinds(spec)[:steps]
    shares = fragments_averaged(spec, algorithm, kinds)
    leaving = Counter(share for kind, share in zip(kinds, shares, strict=True) if kind == "average")
    whole = sum(share * n for share, n in leaving.items())
    return {f"average of {share:.4g}": (n, sent * share / whole) for share, n in leaving.items()}


def _facts(
    store: Store,
    study: Study,
    states: Iterable[str],
    origins: Sequence[Mapping[str, Any] | None],
) -> dict[str, Any]:
    """Facts of a study. origins: the provenance of each planned run, None of one without a result."""
    provenances = [provenance for provenance in origins if provenance is not None]
    notes = (store.note(entry.spec.run_id) for entry in study.entries)
    ended = [datetime.datetime.fromtimestamp(note.updated_s, datetime.UTC) for note in notes if note]
    days = {f"{moment:%Y-%m-%d %H:%M} UTC" for moment in ended}
    # of arms that train as the sweep says, where there are any
    whole = sorted(study.whole, key=lambda entry: not study.by_name[entry.arm].apart)
    panels = {entry.cell: entry.spec for entry in whole}
    budgets = sorted({entry.budget for entry in study.entries})
    return {
        "schema_version": FACTS_SCHEMA,
        "sweep": study.name,
        "about": study.about,
        "command": study.command,
        "ranks": study.ranks,
        "first_finished": min(days, default=None),
        "last_finished": max(days, default=None),
        "statuses": dict(sorted(Counter(states).items())),
        **({"budgets": budgets} if len(budgets) > 1 else {}),
        "workloads": [
            {
                "workload": label,
                "sharding": sharding,
                "world_size": world_size,
                "steps": spec.steps,
                "batch_size": spec.batch_size,
                "bucket_bytes": spec.bucket_bytes,
                "schedule": spec.lr.schedule,
                "warmup": spec.lr.warmup,
                "metric": study.yardsticks[label].metric,
                "unit": study.yardsticks[label].unit,
                "direction": study.yardsticks[label].direction,
                "margin": study.yardsticks[label].margin,
            }
            for (label, sharding, world_size), spec in sorted(panels.items(), key=lambda item: item[0])
        ],
        "sources": {arm.name: arm.source_hash for arm in study.arms if arm.source_hash},
        "origins": counted(
            (e.cell, provenance)
            for e, provenance in zip(study.entries, origins, strict=True)
            if provenance is not None
        ),
        "provenance": {
            key: sorted({str(known[key]) for known in provenances if known.get(key) is not None})
            for key in ATTRIBUTES
        },
    }


def collect(
    results_root: Path | str, study: Study, tuning: Iterable[Row] = (), gates: Sequence[Row] = ()
) -> Collected:
    """Read every planned run of a study and derive its tables.

    Args:
        results_root: Under which the runs lie.
        study: What was planned.
        tuning: Rows of the table `tuning`, from the tuning sweep, if any.
        gates: Rows of the table `gates`, which there is where there are some.

    Returns:
        The tables. A run whose files are damaged is a row with the status *invalid* and why.

    Raises:
        StoreError: The disk cannot be read.
    """
    store = Store(results_root)
    standings = {entry.spec.run_id: store.state(entry.spec.run_id) for entry in study.entries}
    origins = [
        None if result is None else result.get("provenance") or {}
        for _, result in (standings[entry.spec.run_id] for entry in study.entries)
    ]
    every = frame_of(RUNS, [_run_row(standings[entry.spec.run_id], study, entry) for entry in study.entries])
    every["budget"] = [entry.budget for entry in study.entries]
    runs, others = every[every["budget"] == WHOLE], every[every["budget"] != WHOLE]
    curves = _curves(store, study, {run_id: result for run_id, (_, result) in standings.items()})
    summary, sensitivity = summarise(study, runs)
    tables = {
        RUNS: runs[list(RUNS.names)],
        SUMMARY: summary,
        SENSITIVITY: sensitivity,
        TUNING: frame_of(TUNING, tuning),
        CURVES: curves,
    }
    if len(others):
        tables |= {
            BUDGET_RUNS: others[list(BUDGET_RUNS.names)],
            BUDGET_SWEEP: _budget_table(study, every),
        }
    if study.references:
        tables[WORTH] = worth_table(study, every)
    if study.by_rho:
        kappas = own_computing(results_root, study.name)
        tables |= rho_tables(study, every, {arm: max(0.0, median(own)) for arm, own in kappas.items()})
    if gates:
        tables[GATES] = frame_of(GATES, gates)
    return Collected(study.name, tables, _facts(store, study, every["status"], origins))


# ---- curves


def read_curve(store: Store, result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The evaluations of a run with this result, in order; none where it kept none. Raises `RefusedError`."""
    run_id, metric = result["run_id"], result["metric"]
    lines = store.metrics(run_id)
    path = store.folder(run_id) / "metrics.jsonl"
    for number, line in enumerate(lines, start=1):
        for name in {metric, "nll"} & line.keys():
            if isinstance(line[name], bool) or not isinstance(line[name], int | float | None):
                raise RefusedError(
                    path, f"is refused (line {number}: {name} is {line[name]!r}, not a number)", AGAIN
                )
    if lines and result["status"] == "done":
        last = lines[-1]
        if (last["step"], last["train_loss"]) != (result["steps"], result["train_loss_last"]):
            raise RefusedError(path, "is refused (it does not end as result.json does)", AGAIN)
    return lines


def _curves(store: Store, study: Study, results: Mapping[str, Mapping[str, Any] | None]) -> pd.DataFrame:
    """The table `curves`: a row an evaluation of every run of budget 1 that is done or has diverged. results: by run id."""
    rows: list[Row] = []
    for entry in study.whole:
        result = results[entry.spec.run_id]
        if result is None or result["status"] not in ENDED or "metric" not in result:
            continue
        with suppress(RefusedError):  # `bandwise publish --check` names it
            for line in read_curve(store, result):
                row = {
                    **dict(zip(CELL, entry.cell, strict=True)),
                    "arm": entry.arm,
                    "seed": entry.spec.seed,
                    "step": line["step"],
                    "value": _float(line.get(result["metric"])),
                    "nll": _float(line.get("nll")),
                    "train_loss": _float(line["train_loss"]),
                    "wire_bytes": _float(line.get("wire_bytes")),
                }
                rows.append(row)
    return frame_of(CURVES, rows)


def _float(value: Any) -> Value:
    return None if value is None else float(value)


# ---- budgets


def _budget_table(study: Study, runs: pd.DataFrame) -> pd.DataFrame:
    """The table `ladder`: a row an arm and budget. runs: rows of the table `runs` of all budgets, with `budget`."""
    place = [*ARM, "budget"]
    several = runs.groupby(ARM)["budget"].transform("nunique") > 1
    ordered = runs[several].sort_values([*RUN, "budget"])
    done = ordered[ordered["status"] == "done"]
    every = ordered.groupby(place)
    table = pd.DataFrame(
        {
            "steps": every["steps"].first(),
            "n": every.size(),
            "n_done": done.groupby(place).size(),
            "n_diverged": (ordered["status"] == "diverged").groupby([ordered[name] for name in place]).sum(),
            "mean": done.groupby(place)["value"].mean(),
        }
    ).join(ends_of(interval_by(done, "value", place), "ci"))
    table = table.fillna({"n_done": 0}).astype({"n_done": "int64"}).reset_index()
    yards = [study.yardsticks[workload] for workload in table["workload"]]
    return checked(
        BUDGET_SWEEP, table.assign(metric=[yard.metric for yard in yards], unit=[yard.unit for yard in yards])
    )


# ---- files


def documents(results_root: Path | str, collected: Collected) -> dict[Path, str]:
    """The files of the tables and of the facts, with their text. The same collection gives the same bytes."""
    root = Path(results_root)
    texts = {
        table_path(root, table, collected.sweep): to_csv(table, frame)
        for table, frame in collected.tables.items()
    }
    return {**texts, facts_path(root, collected.sweep): dump(collected.facts, indent=1) + "\n"}


def write(results_root: Path | str, collected: Collected) -> list[Path]:
    """Write the tables and the facts; returns the files."""
    made = documents(results_root, collected)
    for path, text in made.items():
        write_atomic(path, text)
    return list(made)


def collect_sweep(results_root: Path | str, sweep: Sweep | str) -> Collected:
    """The tables of a sweep, given by its name, its file or as read, from the run folders under the root.

    Raises UnknownSweepError, YamlError or StoreError, each with what to do.
    """
    found = load_sweep(sweep) if isinstance(sweep, str) else sweep
    return collect(results_root, study_of(make_plan(found)), tuning_rows(found), gate_rows(found))
