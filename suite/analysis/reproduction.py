"""A run done again, held against its record: equal to the bit, or where they part first and by how much.

What decides a run's numbers (code, packages, processor, threads, which path compiled functions took) is compared as
well: with the same of all of it anything but equality is an error, of the record or of the program.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from suite.analysis.recorded import Recorded
from suite.analysis.tables import NOISE

HARMLESS: Final = frozenset({"host_hash", "cores"})
"""Attributes that are told but cannot change a number."""
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
            return f"{first}; what differs in the environment, above, may be why"
        return (
            f"{first}; the environment is the same, so either the record was changed after it was written or the "
            "training does not repeat itself: do it once more and see which of the two numbers comes"
        )

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
    result, done = now.outcome, now.outcome["status"] == "done"
    final, steps = (result.get("final") or {}) if done else {}, result.get("steps") or 0
    row = {
        "status": result["status"],
        "metric": result.get("metric"),
        "value": final.get(result.get("metric")),
        "nll": final.get("nll"),
    }
    for column, total in (
        ("payload_bytes_per_step", "payload_per_rank_mean"),
        ("wire_bytes_per_step", "wire_per_rank_mean"),
        ("wire_bytes_per_step_max", "wire_per_rank_max"),
    ):
        row[column] = result["bytes"][total] / steps if steps else None
    return row


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
