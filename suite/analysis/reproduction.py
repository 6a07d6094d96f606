"""A run that is on record, and the same run done again: equal to the bit, or where they part first and by how much.

A record is a run's folder in the results, or where that is gone (a fresh clone), its row in a table. A folder holds everything to
the bit. A row of a runs table, made here or published, holds the final numbers with nine
digits, and the table of curves beside it the evaluations; the spec is then that run of the sweep's plan which has the id.

What decides a run's numbers (code, packages, processor, threads, which path compiled functions took) is compared as
well: with the same of all of it anything but equality is an error, of the record or of the program.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import pandas as pd

from suite.analysis.collect import PER_STEP, per_step
from suite.analysis.published import facts_path, published_root, read_facts, refuse_changed
from suite.analysis.tables import (
    ARM,
    BUDGET_RUNS,
    CURVES,
    NOISE,
    RUN,
    RUNS,
    SUMMARY,
    TABLES,
    Row,
    Table,
    read_frame,
    read_table,
    rows_of,
    table_path,
)
from suite.runs.files import parsed, read
from suite.runs.plan import make_plan
from suite.runs.spec import RunSpec
from suite.runs.store import Store
from suite.runs.sweep import load_sweep

RUN_ID: Final = re.compile(r"[0-9a-f]{16}")
COMPARABLE: Final = frozenset({"torch", "python", "system", "cpu", "gpu"})
"""Facts of a study that are texts, as in a run's provenance."""


class RecordError(ValueError):
    """Nothing usable is on record of a run; the message says where was looked and what to do."""


@dataclass(frozen=True)
class Recorded:
    """A run as it once ended. `place` is where that stands.

    exact: `outcome` and `metrics` are whole; otherwise they have the numbers of tables, nine digits each, and `metrics` is
    empty where no table has the curve. `attributes`: commit, environment and the like, whatever was recorded.
    """

    spec: RunSpec
    place: str
    exact: bool
    outcome: Mapping[str, Any]
    metrics: Sequence[Mapping[str, Any]] = ()
    attributes: Mapping[str, Any] = field(default_factory=dict)


def from_folder(store: Store, run_id: str) -> Recorded | None:
    """The record in the run's folder; None where the run has not ended there. Raises `StoreError` for a damaged one."""
    result = store.result(run_id)
    if result is None:
        return None
    attributes = {**(result.get("provenance") or {}), "path": result.get("path") or {}}
    if changes := attributes.get("changes"):
        attributes["changes"] = changes["sha256"]
    attributes |= {f"source of the {part}": hashed for part, hashed in (result.get("sources") or {}).items()}
    return Recorded(
        store.spec(run_id), str(store.folder(run_id)), True, result, store.metrics(run_id), attributes
    )


def find(root: Path, run_id: str) -> Recorded:
    """The record of a run under a results root: its folder, else its row. Raises `RecordError`, or `RefusedError`."""
    if not RUN_ID.fullmatch(run_id):
        raise RecordError(
            f"{run_id!r} is no run id: one has 16 hex digits, as in the column run_id of a runs table"
        )
    found = from_folder(Store(root), run_id)
    if found is not None:
        return found
    for path, table, row in _rows(root, run_id):
        if row["status"] != "missing":
            return _from_row(path, table, row)
    if refused := Store(root).refusal(run_id):
        raise refused
    raise RecordError(
        f"nothing is on record of run {run_id} under {root}: no folder with a result, no row of a runs table; "
        "`bandwise run` carries a planned run out, --results names another results folder"
    )


def _rows(root: Path, run_id: str) -> Iterator[tuple[Path, Table, Row]]:
    """Rows of the run in all runs tables, those made here first."""
    for top, table in itertools.product((root, published_root(root)), (RUNS, BUDGET_RUNS)):
        for path in sorted((top / TABLES).glob(f"**/*-{table.suffix}.csv"), reverse=True):
            if run_id in path.read_text(encoding="utf-8"):
                refuse_changed(
                    top, path.relative_to(top / TABLES).as_posix().removesuffix(f"-{table.suffix}.csv")
                )
                yield from ((path, table, row) for row in read_table(path, table) if row["run_id"] == run_id)


def _from_row(path: Path, table: Table, row: Row) -> Recorded:
    specs = make_plan(load_sweep(row["sweep"])).specs
    spec = next((spec for spec in specs if spec.run_id == row["run_id"]), None)
    if spec is None:
        raise RecordError(
            f"{path} has run {row['run_id']}, but sweep {row['sweep']} plans no such run any more: check out "
            f"{row['commit'] or 'the commit of its table'} and give the command there"
        )
    numbers = {name: row[name] for name in ("value", "nll", *PER_STEP) if row.get(name) is not None}
    beside = path.name.removesuffix(f"{table.suffix}.csv")
    facts = path.with_name(f"{beside}study.json")
    found = parsed(read(facts) or "{}", facts).get("provenance", {})
    attributes = {
        **{name: values[0] for name, values in found.items() if len(values) == 1 and name in COMPARABLE},
        "commit": row["commit"],
        "environment_hash": row["environment"],
    }
    outcome = {"status": row["status"], "metric": row["metric"], **numbers}
    curves = path.with_name(f"{beside}{CURVES.suffix}.csv")
    has_curve = table is RUNS and curves.is_file()  # runs at other budgets have none, nor have older tables
    curve = tuple(_curve(read_frame(curves, CURVES), row)) if has_curve else ()
    return Recorded(spec, str(path), False, outcome, curve, attributes)


def _curve(curves: pd.DataFrame, row: Row) -> Iterator[dict[str, Any]]:
    """The run's evaluations."""
    own = curves[(curves[RUN] == [row[name] for name in RUN]).all(axis="columns")]
    for line in rows_of(own):
        named = {
            row["metric"]: line["value"],
            **{name: line[name] for name in ("nll", "train_loss", "wire_bytes")},
        }
        yield {"step": line["step"]} | {name: value for name, value in named.items() if value is not None}


TRAINED: Final = ("status", "steps", "value", "nll", *PER_STEP)
"""Columns that a training decides."""


@dataclass(frozen=True)
class Again:
    """A study that is published, and trained here again.

    runs: that both tables have, and whose training has ended here. equal: of these the runs with the same numbers in all columns
    and evaluations. evaluations: of the runs, in both tables. Where any run differs: first: what does first, in words; elsewhere:
    facts of both machines that differ, in words; means: of arms, in both tables; within: of these the ones that lie in the
    published interval.
    """

    name: str
    runs: int
    equal: int
    evaluations: int
    first: str = ""
    elsewhere: tuple[str, ...] = ()
    means: int = 0
    within: int = 0

    def __str__(self) -> str:
        """quick: 300 of 300 runs equal the published ones in every number, 912 evaluations on the way among them."""
        if self.equal == self.runs:
            return (
                f"{self.name}: {self.equal} of {self.runs} runs equal the published ones in every number, "
                f"{self.evaluations:,} evaluations on the way among them"
            )
        means = f", {self.within} of {self.means} means lie in the published intervals" if self.means else ""
        why = f"; other than published: {', '.join(self.elsewhere)}" if self.elsewhere else ""
        return f"{self.name}: {self.equal} of {self.runs} runs equal the published ones{means}; {self.first}{why}"


def of_study(root: Path, name: str) -> Again | None:
    """Hold the runs of a study's tables that were made here against the published ones.

    Args:
        root: The results folder.
        name: Of the study.

    Returns:
        What came of it; None where either table is missing, or they have no run in common. Raises as `refuse_changed`.
    """
    ours, theirs = (_runs_of(top, name) for top in (root, published_root(root)))
    if ours is None or theirs is None:
        return None
    refuse_changed(published_root(root), name)
    ours = ours[ours["status"] != "missing"]
    both = ours.index.intersection(theirs.index)
    if both.empty:
        return None
    apart = [*_apart(ours.loc[both], theirs.loc[both], "at the end")]
    curves = [_curves_of(top, name, both) for top in (root, published_root(root))]
    evaluations = 0
    if (mine := curves[0]) is not None and (other := curves[1]) is not None:
        evaluations = len(mine.index.intersection(other.index))
        apart += _apart(mine, other, "on the way")
    differing = {run_id for run_id, _ in apart}
    found = Again(name, len(both), len(both) - len(differing), evaluations)
    if not apart:
        return found
    means, within = _means(root, name)
    return replace(
        found, first=apart[0][1], elsewhere=tuple(_facts_apart(root, name)), means=means, within=within
    )


def _means(root: Path, name: str) -> tuple[int, int]:
    """How many arms have a mean here and a published interval, and how many of the means lie in it."""
    ours, theirs = (
        read_frame(table_path(top, SUMMARY, name), SUMMARY) for top in (root, published_root(root))
    )
    both = ours[[*ARM, "mean"]].merge(theirs[[*ARM, "ci_low", "ci_high"]], on=ARM).dropna()
    return len(both), int(both["mean"].between(both["ci_low"], both["ci_high"]).sum())


def _runs_of(root: Path, name: str) -> pd.DataFrame | None:
    """What trainings decided, by run id, at all budgets."""
    frames = [
        read_frame(path, table).reindex(columns=["run_id", *TRAINED])
        for table in (RUNS, BUDGET_RUNS)
        if (path := table_path(root, table, name)).is_file()
    ]
    return pd.concat(frames).set_index("run_id") if frames else None


def _curves_of(root: Path, name: str, run_ids: pd.Index) -> pd.DataFrame | None:
    """Evaluations of these runs, by run id and step; None where there is no table of them."""
    path = table_path(root, CURVES, name)
    if not path.is_file():
        return None
    runs = read_frame(table_path(root, RUNS, name), RUNS)[[*RUN, "run_id"]]
    found = read_frame(path, CURVES).merge(runs, on=RUN)
    columns = ["value", "nll", "train_loss", "wire_bytes"]
    return found[found["run_id"].isin(run_ids)].set_index(["run_id", "step"])[columns]


def _apart(ours: pd.DataFrame, theirs: pd.DataFrame, where: str) -> Iterator[tuple[str, str]]:
    """Run id, and in words what differs first, of every row that is not the same in both."""
    rows = ours.index.union(theirs.index)
    mine, other = ours.reindex(rows), theirs.reindex(rows)
    differs = ~((mine == other) | (mine.isna() & other.isna())).to_numpy(bool)
    for row in np.flatnonzero(differs.any(axis=1)).tolist():
        run_id, *step = rows[row] if isinstance(rows[row], tuple) else (rows[row],)
        column = int(differs[row].argmax())
        at = f"after step {step[0]}" if step else where
        here, there = (str(frame.iat[row, column]) for frame in (mine, other))
        yield str(run_id), f"run {run_id} has {mine.columns[column]} {here} {at}, published is {there}"


def _facts_apart(root: Path, name: str) -> Iterator[str]:
    """What of the machine that numbers depend on is not as it was."""
    here, there = (read_facts(facts_path(top, name)) or {} for top in (root, published_root(root)))
    for fact in sorted(COMPARABLE):
        now, then = (
            ", ".join(map(str, facts.get("provenance", {}).get(fact, []))) for facts in (here, there)
        )
        if now != then:
            yield f"{fact} {now or 'none'} (there {then or 'none'})"


HARMLESS: Final = frozenset({"host_hash", "cores"})
"""Attributes that are shown but cannot change a number."""
MOVING: Final = frozenset(
    {"attempt", "lost_s", "provenance", "train_s", "path", "sources", "spec", "schema_version"}
)
"""What of a result tells when, where and how it was computed, and nothing of what."""

Word = Literal["equal", "other environment", "not equal"]
Place = tuple[str, Any]


@dataclass(frozen=True)
class Difference:
    """Something that is not now what it was then; `by` is now minus then where both are numbers."""

    what: str
    then: Any
    now: Any

    @property
    def by(self) -> float | None:
        """Now minus then, None where one is no number."""
        numbers = [v for v in (self.then, self.now) if isinstance(v, int | float) and not isinstance(v, bool)]
        return float(numbers[1] - numbers[0]) if len(numbers) == 2 else None

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"what": self.what, "then": self.then, "now": self.now, "by": self.by}

    def __str__(self) -> str:
        by = "" if self.by is None else f" (by {self.by:.3g})"
        return f"{self.what}: {_said(self.then)} then, {_said(self.now)} now{by}"


@dataclass(frozen=True)
class Reproduction:
    """The verdict on one run done again.

    environment: what decides numbers and differs. harmless: what differs besides. gaps: the first evaluation that
    differs, then the numbers of the result that do. doubts: what keeps "same environment" from being certain.
    """

    run_id: str
    compared: str
    environment: tuple[Difference, ...]
    harmless: tuple[Difference, ...]
    gaps: tuple[Difference, ...]
    doubts: tuple[str, ...]

    @property
    def word(self) -> Word:
        """equal, other environment (which may explain the gaps), or not equal although the environment is the same."""
        if not self.gaps:
            return "equal"
        return "other environment" if self.environment else "not equal"

    def sentence(self) -> str:
        """The verdict, and what to do about it."""
        if self.word == "equal":
            return f"equal {self.compared}"
        first = f"not equal: first at {self.gaps[0]}"
        if self.word == "other environment":
            return f"{first}; what differs in the environment, above, may be why{self._checkout()}"
        return (
            f"{first}; the environment is the same, so either the record was changed after it was written or the "
            "training does not repeat itself: do it once more and see which of the two numbers comes"
        )

    def _checkout(self) -> str:
        """How to have the code of the record, where it is another one."""
        commit = next((one.then for one in self.environment if one.what == "commit"), "")
        if not commit:
            return ""
        return f"; the code of the record: `git worktree add ../bandwise-{commit[:12]} {commit}`"

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "run_id": self.run_id,
            "verdict": self.word,
            "compared": self.compared,
            "gaps": [gap.as_dict() for gap in self.gaps],
            "environment": [one.as_dict() for one in self.environment],
            "harmless": [one.as_dict() for one in self.harmless],
            "doubts": list(self.doubts),
        }


def compare(then: Recorded, now: Recorded) -> Reproduction:
    """Hold a run that was done again, and is recorded whole, against what stood on record."""
    differing = attribute_differences(then.attributes, now.attributes)
    gaps = [*curve_gap(then, now), *outcome_gaps(then, now)]
    return Reproduction(
        then.spec.run_id,
        _compared(then),
        tuple(one for one in differing if one.what not in HARMLESS),
        tuple(one for one in differing if one.what in HARMLESS),
        tuple(gaps),
        tuple(_doubts(then, now)),
    )


def _compared(then: Recorded) -> str:
    if then.exact:
        return "to the bit: every evaluation, the final numbers, the bytes"
    if then.metrics:
        return "to the nine digits of the tables: every evaluation, the final numbers, the bytes"
    return "to the nine digits of the table: final numbers and bytes (the curve lies in no table)"


def attribute_differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[Difference]:
    """What was recorded then and is something else now, by name; what was not recorded cannot differ."""
    return [
        Difference(name, then[name], now.get(name))
        for name in sorted(then)
        if then[name] is not None and then[name] != now.get(name)
    ]


def curve_gap(then: Recorded, now: Recorded) -> list[Difference]:
    """The first number of the first evaluation that differs, as a list of one or none.

    Evaluations change no bit of a training, so those that only one of the two has are passed over (see `_doubts`), and
    what was not recorded then cannot differ.
    """
    again = {line["step"]: line for line in now.metrics}
    for number, old in enumerate(then.metrics, start=1):
        new = again.get(old["step"], old)
        for name in sorted(old, key=lambda key: (key != "train_loss", key)):
            if not _same(old[name], new.get(name), then.exact):
                where = f"evaluation {number} (step {old['step']}), {name}"
                return [Difference(where, old[name], new.get(name))]
    return []


def outcome_gaps(then: Recorded, now: Recorded) -> list[Difference]:
    """Numbers and words of the result that differ; of a table's row those it has, to nine digits."""
    new = lasting(now.outcome) if then.exact else _as_row(now)
    old = lasting(then.outcome) if then.exact else dict(then.outcome)
    passed = {"best"} if then.exact and _evaluated(then) != _evaluated(now) else set()
    return [
        Difference(name, old.get(name), new.get(name))
        for name in sorted((old.keys() | new.keys()) - passed)
        if not _same(old.get(name), new.get(name), then.exact) and (then.exact or name in old)
    ]


def lasting(result: Mapping[str, Any]) -> dict[str, Any]:
    """What two trainings of one run must have in common, flattened: ``bytes.by[0].wire_bytes`` -> number."""
    return {name: value for key in result.keys() - MOVING for name, value in _flat(key, result[key])}


def _flat(name: str, value: Any) -> Iterator[Place]:
    if isinstance(value, Mapping):
        for key in value:
            yield from _flat(f"{name}.{key}", value[key])
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _flat(f"{name}[{index}]", item)
    else:
        yield name, value


def _as_row(now: Recorded) -> dict[str, Any]:
    """The numbers of a result that its row in a runs table has."""
    result = now.outcome
    final = (result.get("final") or {}) if result["status"] == "done" else {}
    return {
        "status": result["status"],
        "metric": result.get("metric"),
        "value": final.get(result.get("metric")),
        "nll": final.get("nll"),
        **per_step(result),
    }


def _same(old: Any, new: Any, exact: bool) -> bool:
    if exact or not isinstance(old, float) or not isinstance(new, int | float):
        return bool(old == new)
    return format(old, ".9g") == format(0.0 if abs(new) < NOISE else float(new), ".9g")


def _evaluated(record: Recorded) -> list[int]:
    """Steps after which it was evaluated."""
    return [line["step"] for line in record.metrics]


def _doubts(then: Recorded, now: Recorded) -> Iterator[str]:
    if then.metrics and _evaluated(then) != _evaluated(now):
        both = len(set(_evaluated(then)) & set(_evaluated(now)))
        yield f"{len(then.metrics)} evaluations then, {len(now.metrics)} now: the {both} that both have were compared"
    if not then.exact:
        yield "only commit and environment are on record, so what else differs is not known"
    for when, record in (("then", then), ("now", now)):
        if record.attributes.get("dirty") and not record.attributes.get("changes"):
            yield f"files of the checkout were changed {when}, so its commit does not say all of the code"


def _said(value: Any) -> str:
    return repr(value) if isinstance(value, float) else str(value)
