"""Two result sets held against each other, A before and B after: accuracy paired run by run, bytes, speed, and what is
missing.

An arm's runs are paired by seed (the same case: sweep, workload, sharding, workers, arm, seed), whether or not the
options behind the label have moved; `n_same` says for how many the run itself, its id, is the same. Differences are B
minus A. Arms whose pairs are all equal to the digit are *identical*, which is no matter of chance; Holm's correction is
over all other arms with six pairs or more, in all sweeps at once. Speedups come from different days, so they are not
paired: their ratio is bounded by the ends of the two intervals, at 90 % or more.

A result set is the tables of a results folder, of a study published under a label, or of git at a commit. Of a results folder
each set is what any reader finds: made there where it is whole, else published (`published.source`). Tables are read by the
columns that a comparison needs, so tables of older versions compare as well.
"""

from __future__ import annotations

import csv
import io
import json
import subprocess
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any, Final, Literal

import pandas as pd
from scipy import stats

from reference_impls.errors import nearest
from suite.analysis.columns import ARM, RUN, RUNS, Table
from suite.analysis.published import (
    FACTS,
    FOLDER,
    SESSION,
    STUDY_FACTS,
    labels,
    published_root,
    sessions_held,
    source,
    studies_of,
)
from suite.analysis.speed_columns import ARMS
from suite.analysis.statistics import (
    MAXIMUM_EXACT,
    MINIMUM_FOR_INTERVAL,
    holm,
    paired_difference,
    sign_flip_p,
    smallest_attainable_p,
)
from suite.analysis.tables import TABLES, cell_value, frame_of, rows_of

CHECKOUT: Final = Path(__file__).resolve().parents[2]
COMMITTED: Final = (f"results/{FOLDER}/{TABLES}/", "results/tables/v1/")
"""Where commits have tables: now, and before published data were parted from local ones."""
RUN_COLUMNS: Final = [*RUN, "run_id", "status", "reason", "metric", "value", "wire_bytes_per_step"]
_PLACE: Final = ["link", "sharding", "arm", "kind"]
_SPEEDUP: Final = ["speedup", "speedup_low", "speedup_high"]
SPEED_COLUMNS: Final = [*_PLACE, "n_pairs", *_SPEEDUP]


class ResultSetError(ValueError):
    """A side cannot be read; the message says what it could be."""


@dataclass(frozen=True)
class StudyResults:
    """The runs of one sweep on one side, and the facts of the study (units, directions, provenance)."""

    runs: pd.DataFrame
    facts: Mapping[str, Any]

    def judged(self, workload: str) -> tuple[str, str]:
        """Unit and direction ("higher", "lower" is better) of a workload. Raises `ResultSetError`."""
        for entry in self.facts["workloads"]:
            if entry["workload"] == workload:
                return entry["unit"], entry["direction"]
        raise ResultSetError(f"the facts of study {self.facts['sweep']} do not say how {workload} is judged")


@dataclass(frozen=True)
class SessionResults:
    """The arms of one timing session on one side, and its facts."""

    arms: pd.DataFrame
    facts: Mapping[str, Any]


@dataclass(frozen=True)
class ResultSet:
    """Everything of a side: studies by the sweep's name, sessions by theirs; `label` says what it is."""

    label: str
    studies: Mapping[str, StudyResults]
    sessions: Mapping[str, SessionResults]


def read_results(name: str, results_root: Path, checkout: Path = CHECKOUT) -> ResultSet:
    """A side by the path of a results folder, the label of a published study, or a commit. Raises `ResultSetError`."""
    for path in (Path(name), published_root(results_root) / name):
        if path.is_dir():
            return _folder(path)
    files = _committed(name, checkout)
    if files is None:
        raise ResultSetError(
            f"{name!r} is no folder, no label of a published study and no commit{nearest(name, labels(results_root))}"
        )
    return _side(f"commit {name}", files)


def _folder(path: Path) -> ResultSet:
    """The tables of a results folder; what is published under a label is one by itself."""
    sets = dict.fromkeys(studies_of(path), ("-runs.csv", STUDY_FACTS))
    sets |= {f"{SESSION}{name}": ("-arms.csv", FACTS) for name in sessions_held(path)}
    files = {
        f"{name}{end}": _text(file)
        for name, ends in sets.items()
        for end in ends
        if (file := source(path, name).root / TABLES / f"{name}{end}").is_file()
    }
    return _side(str(path), files)


def _text(path: Path) -> str:
    return path.read_bytes().decode("utf-8")


def _committed(commit: str, checkout: Path) -> dict[str, str] | None:
    """The tables that git has at a commit, by their path below the tables' folder; None for no commit.

    Raises `ResultSetError` where git does not say.
    """
    found = subprocess.run(
        ["git", "-C", str(checkout), "rev-parse", "--verify", "--quiet", "--end-of-options", f"{commit}^{{commit}}"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if found.stderr.strip():
        raise ResultSetError(
            f"{commit!r} is no folder and no label of a published study, and git does not say whether it is a commit: "
            f"{found.stderr.strip().splitlines()[0]}"
        )
    name = found.stdout.strip()
    if not name:
        return None
    for place in COMMITTED:
        packed = subprocess.run(
            ["git", "-C", str(checkout), "archive", "--format=tar", name, place],
            capture_output=True,
            check=False,
        )
        if packed.returncode == 0:
            with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
                opened = ((member.name, archive.extractfile(member)) for member in archive if member.isfile())
                return {
                    path.removeprefix(place): file.read().decode("utf-8") for path, file in opened if file
                }
    return {}


def _side(label: str, files: Mapping[str, str]) -> ResultSet:
    studies = {
        sweep: StudyResults(
            _frame(text, RUNS, RUN_COLUMNS, name), _facts(files, f"{sweep}-study.json", label)
        )
        for name, text in files.items()
        if name.endswith("-runs.csv") and (sweep := name.removesuffix("-runs.csv"))
    }
    sessions = {
        session: SessionResults(
            _frame(text, ARMS, SPEED_COLUMNS, name), _facts(files, f"session-{session}-facts.json", label)
        )
        for name, text in files.items()
        if name.startswith("session-")
        and name.endswith("-arms.csv")
        and (session := name.removeprefix("session-").removesuffix("-arms.csv"))
    }
    if not studies and not sessions:
        raise ResultSetError(f"{label} has no tables of runs or sessions: `bandwise report SWEEP` makes them")
    return ResultSet(label, studies, sessions)


def _facts(files: Mapping[str, str], name: str, label: str) -> Mapping[str, Any]:
    if name not in files:
        raise ResultSetError(f"{label} lacks {name}, which stands beside the table: make the tables again")
    found: Mapping[str, Any] = json.loads(files[name])
    return found


def _frame(text: str, table: Table, names: Sequence[str], source: str) -> pd.DataFrame:
    """The columns of a file's text that a comparison needs; other versions of a table may have more."""
    lines = list(csv.DictReader(io.StringIO(text, newline="")))
    if lines and (lacking := [name for name in names if name not in lines[0]]):
        raise ResultSetError(f"{source} lacks the columns {', '.join(lacking)}: it is too old to be compared")
    needed = tuple(column for column in table.columns if column.name in names)
    rows = ({column.name: cell_value(line[column.name], column) for column in needed} for line in lines)
    return frame_of(Table(table.suffix, needed, 0), rows)


ALPHA: Final = 0.05
HARDWARE: Final = ("cpu", "gpu", "cores", "system")
ENVIRONMENT: Final = ("commit", "environment_hash", "torch", "python", "threads")

Word = Literal["identical", "better", "worse", "no change", "undecided", "too few"]
SpeedWord = Literal["faster", "slower", "no change"]
RunKey = tuple[str, str, int, str, int]


@dataclass(frozen=True)
class ArmChange:
    """What became of one arm: means over the pairs, B minus A with its 95 % paired t interval, exact p.

    n_a, n_b: finished runs in the result sets. word: better and worse respect the metric's direction and need the interval
    beyond 0 and p_holm at most 5 %; undecided is the interval alone. bytes: wire bytes a step, B over A; None where
    they are not known or A sends nothing.
    """

    sweep: str
    workload: str
    sharding: str
    world_size: int
    arm: str
    metric: str
    unit: str
    direction: str
    n_a: int
    n_b: int
    n_pairs: int
    n_same: int
    a: float | None
    b: float | None
    difference: float | None
    low: float | None
    high: float | None
    p: float | None
    p_holm: float | None
    bytes: float | None
    word: Word


@dataclass(frozen=True)
class SpeedChange:
    """Speedup of one arm of a session in the result sets, with 95 % intervals, and B over A with conservative bounds.

    n_a, n_b: rounds.
    """

    session: str
    link: str
    sharding: str
    arm: str
    kind: str
    a: float
    a_low: float
    a_high: float
    b: float
    b_low: float
    b_high: float
    ratio: float
    low: float
    high: float
    n_a: int
    n_b: int
    word: SpeedWord


@dataclass(frozen=True)
class Turned:
    """A run that ended in another way: done on one side, diverged on the other."""

    sweep: str
    run: RunKey
    a: str
    b: str
    reason: str


@dataclass(frozen=True)
class Comparison:
    """All of it. only_a, only_b: runs, and sweeps or sessions, that one side alone has. hardware, environment: what the
    result sets say of their machines and code where they differ, as (study or session, what, A, B).
    """

    a: str
    b: str
    arms: tuple[ArmChange, ...]
    speeds: tuple[SpeedChange, ...]
    turned: tuple[Turned, ...]
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]
    hardware: tuple[tuple[str, str, str, str], ...]
    environment: tuple[tuple[str, str, str, str], ...]

    @property
    def smallest_p(self) -> float | None:
        """The least p after Holm that the tested arms' pairs could give; None where none was tested."""
        tested = [change for change in self.arms if change.p is not None]
        if not tested:
            return None
        return smallest_attainable_p(max(change.n_pairs for change in tested), len(tested))

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "smallest_p": self.smallest_p}


def compare(a: ResultSet, b: ResultSet, sweep: str | None = None) -> Comparison:
    """hold two result sets against each other, in all they have in common or in one sweep alone."""
    own, other = ({name: s for name, s in side.studies.items() if sweep in (None, name)} for side in (a, b))
    arms: list[ArmChange] = []
    turned: list[Turned] = []
    for name in sorted(own.keys() & other.keys()):
        arms += _arms(name, own[name], other[name])
        turned += _turned(name, own[name], other[name])
    timed = sorted(a.sessions.keys() & b.sessions.keys()) if sweep is None else []
    only = [list(_only(own, other)), list(_only(other, own))]
    if sweep is None:
        only[0] += [f"session {name}" for name in sorted(a.sessions.keys() - b.sessions.keys())]
        only[1] += [f"session {name}" for name in sorted(b.sessions.keys() - a.sessions.keys())]
    pairs: dict[str, tuple[StudyResults, StudyResults] | tuple[SessionResults, SessionResults]]
    pairs = {f"sweep {n}": (own[n], other[n]) for n in sorted(own.keys() & other.keys())}
    pairs |= {f"session {n}": (a.sessions[n], b.sessions[n]) for n in timed}
    return Comparison(
        a.label,
        b.label,
        tuple(judged(arms)),
        tuple(change for name in timed for change in _speeds(name, a.sessions[name], b.sessions[name])),
        tuple(turned),
        tuple(only[0]),
        tuple(only[1]),
        tuple(_provenance_changes(pairs, HARDWARE)),
        tuple(_provenance_changes(pairs, ENVIRONMENT)),
    )


def again_held(then: Path, now: Path, session: str) -> Comparison:
    """A session in two results folders: what is on record, and the same held again. Raises `ResultSetError`."""
    a, b = (_session_alone(read_results(str(root), root), session) for root in (then, now))
    return compare(a, b)


def _session_alone(side: ResultSet, session: str) -> ResultSet:
    if session not in side.sessions:
        raise ResultSetError(
            f"{side.label} has no tables of session {session}: `bandwise session {session}` holds it"
        )
    return ResultSet(side.label, {}, {session: side.sessions[session]})


def judged(arms: list[ArmChange]) -> list[ArmChange]:
    """The same arms with Holm's p over all that were tested, and the words that follow."""
    adjusted = iter(holm([change.p for change in arms if change.p is not None]))
    return [
        change if change.p is None else _worded(replace(change, p_holm=next(adjusted))) for change in arms
    ]


def _worded(change: ArmChange) -> ArmChange:
    low, high, p = change.low, change.high, change.p_holm
    if low is None or high is None or p is None or low <= 0 <= high:
        return change
    if p > ALPHA:
        return replace(change, word="undecided")
    good = (low > 0) == (change.direction == "higher")
    return replace(change, word="better" if good else "worse")


def _held(study: StudyResults) -> pd.DataFrame:
    """The runs that there are, one a seed, in order."""
    there = study.runs[study.runs["status"] != "missing"]
    return there.drop_duplicates(RUN, keep="last").sort_values(RUN)


def _pairs(a: StudyResults, b: StudyResults) -> pd.DataFrame:
    """Runs of the same case, whose columns end in `_a` and `_b`."""
    return _held(a).merge(_held(b), on=RUN, suffixes=("_a", "_b"))


def _arms(sweep: str, a: StudyResults, b: StudyResults) -> Iterator[ArmChange]:
    done_a, done_b = (runs[runs["status"] == "done"] for runs in map(_held, (a, b)))
    metrics = pd.concat([done_b, done_a]).groupby(ARM)["metric"].first()
    n_a, n_b = (done.groupby(ARM).size() for done in (done_a, done_b))
    groups: Iterable[tuple[Any, pd.DataFrame]] = _pairs(a, b).groupby(ARM)
    for key, of_arm in groups:
        workload, sharding, workers, arm = key
        done = of_arm[(of_arm[["status_a", "status_b"]] == "done").all(axis="columns")]
        pairs = done[done["metric_a"] == done["metric_b"]]
        before, after = pairs["value_a"].tolist(), pairs["value_b"].tolist()
        unit, direction = b.judged(workload)
        change = ArmChange(
            sweep, workload, sharding, int(workers), arm, metrics.get(key, ""), unit, direction,
            int(n_a.get(key, 0)), int(n_b.get(key, 0)), len(pairs),
            n_same=int((pairs["run_id_a"] == pairs["run_id_b"]).sum()),
            a=fmean(before) if before else None,
            b=fmean(after) if before else None,
            difference=fmean(after) - fmean(before) if before else None,
            low=None, high=None, p=None, p_holm=None,
            bytes=_bytes(pairs),
            word="too few",
        )  # fmt: skip
        yield _tested(change, before, after)


def _tested(change: ArmChange, before: list[float], after: list[float]) -> ArmChange:
    if before and before == after:
        return replace(change, difference=0.0, low=0.0, high=0.0, word="identical")
    if len(before) < MINIMUM_FOR_INTERVAL:
        return change
    interval = paired_difference(after, before)
    return replace(
        change,
        difference=interval.estimate,
        low=interval.low,
        high=interval.high,
        p=paired_p(after, before),
        word="no change",
    )


def paired_p(values: list[float], baseline: list[float]) -> float:
    """Two-sided p of no difference: the exact sign-flip test, Student's paired test above 24 pairs."""
    if len(values) <= MAXIMUM_EXACT:
        return sign_flip_p(values, baseline)
    return float(stats.ttest_rel(values, baseline).pvalue)


def _bytes(pairs: pd.DataFrame) -> float | None:
    sent = pairs[["wire_bytes_per_step_a", "wire_bytes_per_step_b"]]
    before, after = (sum(sent[name].tolist()) for name in sent)
    return after / before if before and sent.notna().all(axis=None) else None


def _turned(sweep: str, a: StudyResults, b: StudyResults) -> Iterator[Turned]:
    pairs = _pairs(a, b)
    for row in rows_of(pairs[pairs["status_a"] != pairs["status_b"]]):
        run = row["workload"], row["sharding"], row["world_size"], row["arm"], row["seed"]
        reason = row["reason_a"] if row["status_b"] == "done" else row["reason_b"]
        yield Turned(sweep, run, row["status_a"], row["status_b"], reason or "")


def _only(own: Mapping[str, StudyResults], other: Mapping[str, StudyResults]) -> Iterator[str]:
    """What one side has alone: a line an arm with its seeds, or a sweep."""
    for sweep in sorted(own):
        if sweep not in other:
            yield f"sweep {sweep}"
            continue
        runs = _held(own[sweep]).merge(_held(other[sweep])[RUN], how="left", indicator=True)
        groups: Iterable[tuple[Any, pd.Series]] = runs[runs["_merge"] == "left_only"].groupby(ARM)["seed"]
        for (workload, sharding, workers, arm), seeds in groups:
            listed = ", ".join(map(str, seeds))
            yield f"sweep {sweep}: {arm} on {workload}, {sharding}, {workers} workers, seeds {listed}"


def _speeds(session: str, a: SessionResults, b: SessionResults) -> Iterator[SpeedChange]:
    before, after = (side.arms[side.arms["speedup_low"] > 0].dropna(subset=_SPEEDUP) for side in (a, b))
    pairs = before.merge(after, on=_PLACE, suffixes=("_a", "_b")).sort_values(_PLACE)
    for row in rows_of(pairs):
        (old, old_low, old_high), (new, new_low, new_high) = (
            [row[f"{name}_{side}"] for name in _SPEEDUP] for side in "ab"
        )
        low, high = new_low / old_high, new_high / old_low
        word: SpeedWord = "faster" if low > 1 else "slower" if high < 1 else "no change"
        yield SpeedChange(
            session, row["link"], row["sharding"], row["arm"], row["kind"], old, old_low, old_high, new, new_low, new_high,
            new / old, low, high, row["n_pairs_a"] or 0, row["n_pairs_b"] or 0, word,
        )  # fmt: skip


def _provenance_changes(
    pairs: Mapping[str, tuple[StudyResults | SessionResults, StudyResults | SessionResults]],
    names: tuple[str, ...],
) -> Iterator[tuple[str, str, str, str]]:
    for what, (a, b) in pairs.items():
        for name in names:
            before, after = (_words(side.facts.get("provenance", {}).get(name)) for side in (a, b))
            if before and after and before != after:
                yield what, name.replace("_", " "), before, after


def _words(value: Any) -> str:
    if value is None:
        return ""
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
