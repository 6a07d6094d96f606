"""Speed joined to accuracy: what a whole training of every arm of a sweep would take on every link.

A session times kinds of steps, a sweep trains. They are joined where they are of the same workload (options and
version included), number of workers, batch and bucket size; nothing else is ever put together. An arm's seconds are
composed round by round from its cases (`compose`) and set against as many steps of the reference in the same round:
the fixed-budget speedup. An arm is refused, with the reason, where a case was not timed or is not what the sweep asks
for now, its link stayed disturbed, fewer than six rounds are whole, its method has another version than was timed, or
direct runs contradict the composition.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

from reference_impls import info
from suite.analysis.compose import CompositionError, Makeup, composition, makeup, planned_kinds
from suite.analysis.direct import CONTRADICTED, Check, checked, compose_rounds
from suite.analysis.speed import LinkSamples, interval, moved, speedup, spread_out
from suite.analysis.speed_columns import WHOLE_RUN
from suite.analysis.statistics import MINIMUM_FOR_INTERVAL
from suite.analysis.tables import Row, Value
from suite.runs.files import canonical_json
from suite.runs.spec import RunSpec

Cases = Mapping[str, str]
"""kind -> case id."""


@dataclass(frozen=True)
class Wanted:
    """A training to compose: an arm under a sharding, its spec (any seed), and the cases that it needs now.

    `cases` is None where they were not worked out again. `ran`: steps of each kind that a finished run of it took.
    """

    arm: str
    sharding: str
    spec: RunSpec
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


def joined_rows(
    record: Mapping[str, Any], wanted: list[Wanted], checks: Mapping[str, list[Check]]
) -> list[Row]:
    """The table `arms` of a session that belongs to a sweep: a row for every link and training."""
    links = [LinkSamples(link, record["cases"]) for link in record["links"]]
    return [
        _run_row(record, samples, want, checks.get(samples.label, [])) for samples in links for want in wanted
    ]


def _run_row(record: Mapping[str, Any], samples: LinkSamples, want: Wanted, checks: list[Check]) -> Row:
    used = record["uses"].get(want.arm, {}).get(want.sharding)
    row = {
        **blank(samples.label, want.sharding, want.arm, WHOLE_RUN, want.spec.algorithm.name),
        "steps": want.spec.steps,
        "stale": stale(record, used or {}),
    }
    try:
        _joinable(record, want, used or {})
        kinds = planned_kinds(want.spec)
        parts = makeup(kinds, list(used or {}))
        row |= described(parts, list(used or {}))
        planned = {kind: kinds.count(kind) for kind in set(kinds)}
        if want.ran is not None and dict(want.ran) != planned:
            raise CompositionError(f"a finished run took the steps {dict(want.ran)}, planned are {planned}")
        row |= numbers(samples, parts, used or {})
    except CompositionError as error:
        return {**row, "refused": True, "reason": str(error)}
    word, by, reason = checked(want.arm, str(row["composition"]), checks)
    row |= {"check": word, "checked_by": by, "reason": reason or None}
    if word == CONTRADICTED:
        return {**row, **_NO_NUMBERS, "refused": True}
    return row


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


def stale(record: Mapping[str, Any], used: Cases) -> bool:
    """Whether the source of a method has moved since one of these cases was timed."""
    return any(moved(case) == "source" for case in record["cases"] if case["case_id"] in set(used.values()))


def numbers(samples: LinkSamples, parts: Makeup, used: Cases) -> dict[str, Value]:
    """Composed seconds and speedups. Raises CompositionError where the link gives none."""
    if not samples.usable:
        raise CompositionError(str(samples.link.get("reason") or "the link stayed disturbed"))
    seconds = compose_rounds(samples, parts, used)
    run = interval(seconds)
    if run is None:
        raise CompositionError(
            f"{len(seconds)} rounds in which all its blocks were undisturbed, and it takes {MINIMUM_FOR_INTERVAL}"
        )
    over = {
        name: speedup({number: parts.steps * s for number, s in samples.step(str(case_id)).items()}, seconds)
        for name in ("reference", "default")
        if (case_id := samples.link.get(name))
    }
    to_reference, to_default = over.get("reference", {}), over.get("default", {})
    if len(to_reference) < MINIMUM_FOR_INTERVAL:
        raise CompositionError(
            f"{len(to_reference)} rounds in which it and the reference were undisturbed, and it takes "
            f"{MINIMUM_FOR_INTERVAL}"
        )
    return {
        "n": len(seconds),
        **spread_out("seconds", run),
        "step_s": median(seconds.values()) / parts.steps,
        "n_pairs": len(to_reference),
        **spread_out("speedup", interval(to_reference)),
        "n_default_pairs": len(to_default),
        **spread_out("default_speedup", interval(to_default), "default_low", "default_high"),
    }


_NUMBERS: Final = (
    "n", "seconds", "seconds_low", "seconds_high", "step_s", "n_pairs", "speedup", "speedup_low", "speedup_high",
    "n_default_pairs", "default_speedup", "default_low", "default_high",
)  # fmt: skip
_NO_NUMBERS: Final[Mapping[str, Value]] = dict.fromkeys(_NUMBERS)


def blank(link: str, sharding: str, arm: str, kind: str, algorithm: str) -> Row:
    """A row of the table `arms` that says nothing yet."""
    return {
        "link": link,
        "sharding": sharding,
        "arm": arm,
        "kind": kind,
        "algorithm": algorithm,
        "family": info(algorithm).family,
        "steps": None,
        "steps_by_kind": None,
        "composition": None,
        **_NO_NUMBERS,
        "check": None,
        "checked_by": None,
        "stale": False,
        "refused": False,
        "reason": None,
    }


def described(parts: Makeup, timed: list[str]) -> dict[str, Value]:
    """What a training or unit is composed of, as cells."""
    return {
        "steps_by_kind": canonical_json(dict(parts.units)),
        "composition": composition(parts, timed),
    }
