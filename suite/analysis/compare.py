"""Two sides held against each other, A before and B after: accuracy paired run by run, bytes, speed, and what is missing.

An arm's runs are paired by seed (the same case: sweep, workload, sharding, workers, arm, seed), whether or not the
options behind the label have moved; `n_same` says for how many the run itself, its id, is the same. Differences are B
minus A. Arms whose pairs are all equal to the digit are *identical*, which is no matter of chance; Holm's correction is
over all other arms with six pairs or more, in all sweeps at once. Speedups come from different days, so they are not
paired: their ratio is bounded by the ends of the two intervals, at 90 % or more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any, Final, Literal

from scipy import stats

from suite.analysis.sides import SessionSide, Side, SideError, StudySide, read_side
from suite.analysis.statistics import (
    MAXIMUM_EXACT,
    MINIMUM_FOR_INTERVAL,
    holm,
    paired_difference,
    sign_flip_p,
    smallest_attainable_p,
)
from suite.analysis.tables import Row

ALPHA: Final = 0.05
HARDWARE: Final = ("cpu", "cores", "system")
ENVIRONMENT: Final = ("commit", "environment_hash", "torch", "python", "threads")

Word = Literal["identical", "better", "worse", "no change", "undecided", "too few"]
SpeedWord = Literal["faster", "slower", "no change"]
Key = tuple[str, str, int, str]
RunKey = tuple[str, str, int, str, int]


@dataclass(frozen=True)
class ArmChange:
    """What became of one arm: means over the pairs, B minus A with its 95 % paired t interval, exact p.

    n_a, n_b: finished runs on the sides. word: better and worse respect the metric's direction and need the interval
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
    """Speedup of one arm of a session on the sides, with 95 % intervals, and B over A with conservative bounds.

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
    sides say of their machines and code where they differ, as (study or session, what, A, B).
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


def compare(a: Side, b: Side, sweep: str | None = None) -> Comparison:
    """Hold two sides against each other, in all they have in common or in one sweep alone."""
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
    pairs: dict[str, tuple[StudySide, StudySide] | tuple[SessionSide, SessionSide]]
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
        tuple(_told(pairs, HARDWARE)),
        tuple(_told(pairs, ENVIRONMENT)),
    )


def again_held(then: Path, now: Path, session: str) -> Comparison:
    """A session in two results folders: what is on record, and the same held again. Raises `SideError`."""
    a, b = (_session_alone(read_side(str(root), root), session) for root in (then, now))
    return compare(a, b)


def _session_alone(side: Side, session: str) -> Side:
    if session not in side.sessions:
        raise SideError(
            f"{side.label} has no tables of session {session}: `bandwise session {session}` holds it"
        )
    return Side(side.label, {}, {session: side.sessions[session]})


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


def _by_run(study: StudySide) -> dict[RunKey, Row]:
    found = {}
    for row in study.runs:
        if row["status"] != "missing":
            key = (str(row["workload"]), str(row["sharding"]), int(row["world_size"] or 0), str(row["arm"]))
            found[*key, int(row["seed"] or 0)] = row
    return found


def _arms(sweep: str, a: StudySide, b: StudySide) -> Iterator[ArmChange]:
    own, other = _by_run(a), _by_run(b)
    for key in sorted({run[:4] for run in own.keys() & other.keys()}):
        yield _arm(sweep, key, b, _finished(own, key), _finished(other, key))


def _finished(runs: Mapping[RunKey, Row], key: Key) -> dict[int, Row]:
    return {run[4]: row for run, row in sorted(runs.items()) if run[:4] == key and row["status"] == "done"}


def _arm(sweep: str, key: Key, study: StudySide, a: Mapping[int, Row], b: Mapping[int, Row]) -> ArmChange:
    unit, direction = study.judged(key[0])
    seeds = [seed for seed in a if seed in b and a[seed]["metric"] == b[seed]["metric"]]
    before, after = ([float(side[seed]["value"] or 0.0) for seed in seeds] for side in (a, b))
    metric = str(next(iter([*b.values(), *a.values()]), {}).get("metric", ""))
    change = ArmChange(
        sweep, *key, metric, unit, direction, len(a), len(b), len(seeds),
        n_same=sum(a[seed]["run_id"] == b[seed]["run_id"] for seed in seeds),
        a=fmean(before) if seeds else None,
        b=fmean(after) if seeds else None,
        difference=fmean(after) - fmean(before) if seeds else None,
        low=None, high=None, p=None, p_holm=None,
        bytes=_bytes([a[seed] for seed in seeds], [b[seed] for seed in seeds]),
        word="too few",
    )  # fmt: skip
    if seeds and before == after:
        return replace(change, difference=0.0, low=0.0, high=0.0, word="identical")
    if len(seeds) < MINIMUM_FOR_INTERVAL:
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


def _bytes(a: list[Row], b: list[Row]) -> float | None:
    before, after = ([row["wire_bytes_per_step"] for row in side] for side in (a, b))
    if not before or None in before or None in after:
        return None
    total = sum(float(value or 0.0) for value in before)
    return sum(float(value or 0.0) for value in after) / total if total else None


def _turned(sweep: str, a: StudySide, b: StudySide) -> Iterator[Turned]:
    own, other = _by_run(a), _by_run(b)
    for run in sorted(own.keys() & other.keys()):
        before, after = own[run], other[run]
        if before["status"] != after["status"]:
            reason = str((before if after["status"] == "done" else after)["reason"] or "")
            yield Turned(sweep, run, str(before["status"]), str(after["status"]), reason)


def _only(own: Mapping[str, StudySide], other: Mapping[str, StudySide]) -> Iterator[str]:
    """What one side has alone: a line an arm with its seeds, or a sweep."""
    for sweep in sorted(own):
        if sweep not in other:
            yield f"sweep {sweep}"
            continue
        found: dict[Key, list[int]] = {}
        for run in sorted(_by_run(own[sweep]).keys() - _by_run(other[sweep]).keys()):
            found.setdefault(run[:4], []).append(run[4])
        for (workload, sharding, workers, arm), seeds in found.items():
            listed = ", ".join(map(str, seeds))
            yield f"sweep {sweep}: {arm} on {workload}, {sharding}, {workers} workers, seeds {listed}"


def _speeds(session: str, a: SessionSide, b: SessionSide) -> Iterator[SpeedChange]:
    def by_arm(side: SessionSide) -> dict[tuple[str, ...], tuple[float, float, float, int]]:
        names, numbers = ("link", "sharding", "arm", "kind"), ("speedup", "speedup_low", "speedup_high")
        found = {}
        for row in side.arms:
            value, low, high = (row[name] for name in numbers)
            if isinstance(value, float) and isinstance(low, float) and isinstance(high, float) and low > 0:
                found[tuple(str(row[name]) for name in names)] = (value, low, high, int(row["n_pairs"] or 0))
        return found

    before, after = by_arm(a), by_arm(b)
    for key in sorted(before.keys() & after.keys()):
        old, new = before[key], after[key]
        low, high = new[1] / old[2], new[2] / old[1]
        word: SpeedWord = "faster" if low > 1 else "slower" if high < 1 else "no change"
        link, sharding, arm, kind = key
        times, rounds = new[0] / old[0], (old[3], new[3])
        yield SpeedChange(
            session, link, sharding, arm, kind, *old[:3], *new[:3], times, low, high, *rounds, word
        )


def _told(
    pairs: Mapping[str, tuple[StudySide | SessionSide, StudySide | SessionSide]], names: tuple[str, ...]
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
