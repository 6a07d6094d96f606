"""Speed joined to accuracy: what a whole training of every arm of a sweep would take on every link.

A session times kinds of steps, a sweep trains. They are joined where they are of the same workload (options and
version included), number of workers, batch and bucket size; nothing else is ever put together. An arm's seconds are
composed round by round from its cases (`suite.analysis.speed`) and set against as many steps of the reference in the same
round: the fixed-budget speedup. An arm is refused, with the reason, where a case was not timed or is not what the sweep asks
for now, its link stayed disturbed, fewer than six rounds are whole, its method has another version than was timed, or
direct runs contradict the composition.

*Speed alone*: a session without a sweep has no training to compose and no accuracy to set speed against. Every kind of step that
was timed stands for itself; of local steps it is the round that the arm's options ask for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final

import pandas as pd

from reference_impls import create
from reference_impls.core.errors import UnsupportedError
from reference_impls.core.registry import registry
from suite.analysis.speed import (
    LOCAL,
    Check,
    CompositionError,
    LinkSamples,
    Makeup,
    compose_rounds,
    composition,
    interval,
    judged,
    makeup_of,
    moved,
    planned_kinds,
    speedup,
)
from suite.analysis.statistics import MINIMUM_FOR_INTERVAL, cells
from suite.analysis.tables import ARMS, CONTRADICTED, PLACE, WHOLE_RUN, Row, frame_of
from suite.runs.files import canonical_json
from suite.runs.spec import RunSpec
from suite.timing.store import AVERAGE, ROUND

if TYPE_CHECKING:
    from reference_impls.core.algorithm import Algorithm

Cases = Mapping[str, str]
"""kind -> case id."""


@dataclass(frozen=True)
class Wanted:
    """A training to compose: an arm under a sharding, its spec (any seed), and the cases that it needs now.

    `steps`: of the sweep. `cases` is None where they were not worked out again. `ran`: steps of each kind that a finished run
    of it took.
    """

    arm: str
    sharding: str
    spec: RunSpec
    steps: int
    cases: Cases | None = None
    ran: Mapping[str, int] | None = None


def differences(record: Mapping[str, Any], spec: RunSpec) -> str:
    """In what a session and a run are not of the same kind; empty where they can be joined."""
    pairs = {
        "workload": (record["workload"]["name"], spec.workload.name),
        "version of the workload": (record["workload"]["version"], spec.workload.version),
        "options of the workload": (dict(record["workload"]["options"]), dict(spec.workload.options)),
        "workers": (record["world_size"], spec.world_size),
        "batch size": (record["batch_size"], spec.batch_size),
        "bucket size in bytes": (record["bucket_bytes"], spec.bucket_bytes),
    }
    return "; ".join(
        f"another {name}: timed {timed}, trained {trained}"
        for name, (timed, trained) in pairs.items()
        if canonical_json(timed) != canonical_json(trained)
    )


Rounds = Mapping[tuple[str, str, str], tuple[pd.Series, pd.Series]]
"""By link, sharding and arm the seconds of a training and of the sweep's steps of the reference, by round."""


def joined(
    record: Mapping[str, Any], wanted: Sequence[Wanted], checks: Mapping[str, list[Check]]
) -> tuple[pd.DataFrame, Rounds]:
    """A session that belongs to a sweep, with its trainings.

    Args:
        record: Of the session.
        wanted: The trainings.
        checks: What direct runs say, by link.

    Returns:
        The table `arms`, a row for every link and training; and of those that it does not refuse what net speedups are made of.
    """
    rows: list[Row] = []
    rounds: dict[tuple[str, str, str], tuple[pd.Series, pd.Series]] = {}
    for samples in (LinkSamples(link, record["cases"]) for link in record["links"]):
        reference = samples.step(samples.link.get("reference"))
        for want in wanted:
            row, seconds = _joined(record, samples, want, checks.get(samples.label, []))
            rows.append(row)
            if not row["refused"]:
                rounds[samples.label, want.sharding, want.arm] = seconds, want.steps * reference
    return frame_of(ARMS, rows), rounds


def _joined(
    record: Mapping[str, Any], samples: LinkSamples, want: Wanted, checks: list[Check]
) -> tuple[Row, pd.Series]:
    used = record["uses"].get(want.arm, {}).get(want.sharding, {})
    seconds = pd.Series(dtype="float64")
    row = {
        **_row(samples.label, want.sharding, want.arm, WHOLE_RUN, want.spec.algorithm.name),
        "steps": want.spec.steps,
        "stale": _stale(record, used),
    }
    try:
        _joinable(record, want, used)
        kinds = planned_kinds(want.spec)
        parts = makeup_of(want.spec, kinds, list(used))
        row |= _made_of(parts, list(used))
        planned = {kind: kinds.count(kind) for kind in set(kinds)}
        if want.ran is not None and dict(want.ran) != planned:
            raise CompositionError(f"a finished run took the steps {dict(want.ran)}, planned are {planned}")
        numbers, seconds = _numbers(samples, parts, used)
    except CompositionError as error:
        return {**row, "refused": True, "reason": str(error)}, seconds
    word, by, reason = judged(want.arm, row["composition"], checks)
    row |= {"check": word, "checked_by": by, "reason": reason or None}
    return row | ({"refused": True} if word == CONTRADICTED else numbers), seconds


def _joinable(record: Mapping[str, Any], want: Wanted, used: Cases) -> None:
    """Raises CompositionError where the session has not timed what this training does."""
    if other := differences(record, want.spec):
        raise CompositionError(other)
    if not used:
        raise CompositionError("the session has not timed this arm; run it again")
    if want.cases is not None and dict(want.cases) != dict(used):
        other = ", ".join(
            sorted(k for k in want.cases.keys() | used.keys() if want.cases.get(k) != used.get(k))
        )
        raise CompositionError(f"the session timed other options of it ({other}); run the session again")
    cases = {case["case_id"]: case for case in record["cases"]}
    if absent := sorted(kind for kind, case_id in used.items() if case_id not in cases):
        raise CompositionError(f"the session's record lacks the case of {', '.join(absent)}")
    outdated = sorted({case["algorithm"] for i in used.values() if moved(case := cases[i]) == "version"})
    if outdated:
        raise CompositionError(
            f"timed with another version of {', '.join(outdated)} than there is now; run the session again"
        )


def _stale(record: Mapping[str, Any], used: Cases) -> bool:
    """Whether the source of a method has moved since one of these cases was timed."""
    return any(moved(case) == "source" for case in record["cases"] if case["case_id"] in set(used.values()))


def _numbers(samples: LinkSamples, parts: Makeup, used: Cases) -> tuple[Row, pd.Series]:
    """Composed seconds and speedups, and the seconds by round. Raises CompositionError where the link gives none."""
    if not samples.usable:
        raise CompositionError(samples.link.get("reason") or "the link stayed disturbed")
    seconds = compose_rounds(samples, parts, used)
    run = interval(seconds)
    if run is None:
        raise CompositionError(
            f"{len(seconds)} rounds in which all its blocks were undisturbed, and it takes {MINIMUM_FOR_INTERVAL}"
        )
    to_reference, to_default = (
        speedup(parts.steps * samples.step(samples.link.get(name)), seconds)
        for name in ("reference", "default")
    )
    if len(to_reference) < MINIMUM_FOR_INTERVAL:
        raise CompositionError(
            f"{len(to_reference)} rounds in which it and the reference were undisturbed, and it takes "
            f"{MINIMUM_FOR_INTERVAL}"
        )
    row = {
        "n": len(seconds),
        **cells(run, "seconds", "seconds_"),
        "step_s": run.estimate / parts.steps,
        "n_pairs": len(to_reference),
        **cells(interval(to_reference), "speedup", "speedup_"),
        "n_default_pairs": len(to_default),
        **cells(interval(to_default), "default_speedup", "default_"),
    }
    return row, seconds


def _row(link: str, sharding: str, arm: str, kind: str, algorithm: str) -> Row:
    """A row of the table `arms` that says nothing yet."""
    family = registry.entry(algorithm).family
    place = dict(zip(PLACE, (link, sharding, arm), strict=True))
    return {**place, "kind": kind, "algorithm": algorithm, "family": family, "stale": False, "refused": False}


def _made_of(parts: Makeup, timed: list[str]) -> Row:
    """What a training or unit is composed of, as cells."""
    return {"steps_by_kind": canonical_json(dict(parts.units)), "composition": composition(parts, timed)}


ANY_ROUND: Final = "round"
"""The kind of an arm's round whose length is not known."""
_HORIZON: Final = 4096
"""Steps that are looked through for a round."""


def speed_only(record: Mapping[str, Any]) -> pd.DataFrame:
    """The table `arms` of a session without a sweep: a row for every link, arm and kind of step."""
    rows: list[Row] = []
    for samples in (LinkSamples(link, record["cases"]) for link in record["links"]):
        for arm, by_sharding in record["uses"].items():
            chosen = record["spec"]["arms"][arm]
            for sharding, used in by_sharding.items():
                for kind, made in _units(used, chosen["algorithm"], chosen["options"]).items():
                    row = _row(samples.label, sharding, arm, kind, chosen["algorithm"])
                    row["stale"] = _stale(record, used)
                    rows.append(row)
                    try:
                        if isinstance(made, str):
                            raise CompositionError(made)
                        row |= {"steps": made.steps, **_made_of(made, list(used))}
                        row |= _numbers(samples, made, used)[0]
                    except CompositionError as error:
                        row |= {"refused": True, "reason": str(error)}
    return frame_of(ARMS, rows)


def _units(used: Cases, algorithm: str, options: Mapping[str, Any]) -> dict[str, Makeup | str]:
    """What is timed of an arm, by kind; a reason in place of what cannot be."""
    found: dict[str, Makeup | str] = {
        kind: Makeup(1, {kind: 1}, rounds=False) for kind in sorted(used) if not kind.startswith(ROUND)
    }
    if len(found) < len(used):
        length = _round_length(create(algorithm, **options).algorithm)
        if isinstance(length, int):
            kind = f"{ROUND}{length}"
            found[kind] = Makeup(length, {kind: 1}, rounds=True)
        else:
            found[ANY_ROUND] = length
    return found


def _round_length(method: Algorithm) -> int | str:
    """Steps from one meeting to the next as the method plans them, or why that cannot be said."""
    if method.plans_from_data:
        return "how long its rounds are depends on the data"
    try:
        fast, slow = (_longer_round(method, rate) for rate in (1.0, 1e-12))
    except UnsupportedError as error:
        return str(error)
    if fast != slow:
        return "its rounds follow the learning rate, and a session without a sweep has none"
    return f"its rounds are longer than {_HORIZON} steps" if fast is None else fast


def _longer_round(method: Algorithm, rate: float) -> int | None:
    """Steps of the longer of the first two rounds (the first may begin late, the second be cut by the end); or None."""
    from reference_impls.runtime.alone import planned  # here, since it needs torch

    rounds, length = list[int](), 0
    for kind, _ in planned(method, 2, repeat(rate, _HORIZON)):
        length += kind == LOCAL
        if kind == AVERAGE:
            rounds.append(length + 1)
            length = 0
        if len(rounds) == 2:
            break
    return max(rounds, default=None)
