"""The check of composed seconds: trainings from start to end, timed in the same rounds as the blocks.

A training composed of blocks leaves out whatever happens between them, so some arms are also trained whole. The ratio
composed over direct is taken within a round. Where its 95 % interval lies inside 0.9 to 1.1 composing is confirmed,
where it lies wholly outside it is contradicted; else, and below six pairs, it is not confirmed. Direct runs stand for
all arms that are composed alike on their link: of one kind of step, of several kinds, of rounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any, Final

from suite.analysis.compose import CompositionError, Makeup, composed_s, composition, makeup, planned_kinds
from suite.analysis.speed import LinkSamples, interval, paired, spread_out
from suite.analysis.statistics import MINIMUM_FOR_INTERVAL, Interval
from suite.analysis.tables import Row
from suite.runs.spec import RunSpec
from suite.workloads import get

LOW: Final = 0.9
HIGH: Final = 1.1
CONFIRMED, NOT_CONFIRMED, CONTRADICTED = "confirmed", "not confirmed", "contradicted"
_WORST: Final = (CONTRADICTED, NOT_CONFIRMED, CONFIRMED)


@dataclass(frozen=True)
class Check:
    """What the direct runs of one arm say: composed like (``one kind``, ``several kinds``, ``rounds``), verdict, why."""

    arm: str
    like: str
    verdict: str
    reason: str


def alike(word: str) -> str:
    """The class of a composition: rounds are one, however their seconds were found."""
    return word.partition(" ")[0] if word.startswith("rounds") else word


def compose_rounds(samples: LinkSamples, parts: Makeup, used: Mapping[str, str]) -> dict[int, float]:
    """Composed seconds of a training in every round in which all its cases have undisturbed blocks.

    `used`: kind -> case id. Raises CompositionError.
    """
    needed = used if parts.rounds else {kind: used[kind] for kind in parts.units}
    by_kind = {kind: samples.unit(case_id) for kind, case_id in needed.items()}
    common = set.intersection(*(set(found) for found in by_kind.values())) if by_kind else set()
    return {
        number: composed_s(parts, {kind: found[number] for kind, found in by_kind.items()})
        for number in sorted(common)
    }


def verdict(ratio: Interval | None, n: int) -> tuple[str, str]:
    """Verdict and reason from the interval of composed over direct; n counts the pairs."""
    if ratio is None:
        return NOT_CONFIRMED, f"{n} undisturbed direct runs, and it takes {MINIMUM_FOR_INTERVAL}"
    said = f"composed over direct seconds is {ratio.estimate:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]"
    if ratio.low >= LOW and ratio.high <= HIGH:
        return CONFIRMED, ""
    if ratio.high < LOW or ratio.low > HIGH:
        return CONTRADICTED, f"{said}, outside {LOW} to {HIGH}"
    return NOT_CONFIRMED, f"{said}, partly outside {LOW} to {HIGH}"


def direct_rows(record: Mapping[str, Any]) -> tuple[list[Row], dict[str, list[Check]]]:
    """The table `direct`, and what it says of each link (by label)."""
    rows: list[Row] = []
    checks: dict[str, list[Check]] = {}
    for link in record["links"]:
        samples = LinkSamples(link, record["cases"])
        for key in sorted({(run["sharding"], run["arm"]) for run in link["direct"]}):
            same = [run for run in link["direct"] if (run["sharding"], run["arm"]) == key]
            runs = sorted(same, key=lambda run: (run["round"], run["attempt"]))
            row, check = _direct(record, samples, runs)
            rows.append(row)
            checks.setdefault(samples.label, []).append(check)
    return rows, checks


def checked(arm: str, word: str, checks: Iterable[Check]) -> tuple[str | None, str | None, str]:
    """Verdict, arms it is by, and reason for an arm composed in this way; the worst of several verdicts counts."""
    found = list(checks)
    relevant = [c for c in found if c.arm == arm] or [c for c in found if c.like == alike(word)]
    if not relevant:
        return None, None, ""
    worst = min(relevant, key=lambda c: (_WORST.index(c.verdict), c.arm))
    names = ", ".join(sorted({c.arm for c in relevant}))
    reason = f"direct runs of {worst.arm}: {worst.reason}" if worst.reason else ""
    return worst.verdict, names, reason


def _direct(
    record: Mapping[str, Any], samples: LinkSamples, runs: Sequence[Mapping[str, Any]]
) -> tuple[Row, Check]:
    """Row and check of one arm; its runs differ in their seeds, which decide nothing about the steps."""
    first = runs[0]
    arm, sharding, spec = str(first["arm"]), str(first["sharding"]), RunSpec.from_dict(first["spec"])
    good: dict[int, Mapping[str, Any]] = {}
    for run in runs:
        if not run["disturbed"]:
            good.setdefault(int(run["round"]), run)
    seconds = {number: float(run["seconds"]) for number, run in good.items()}
    used = record["uses"].get(arm, {}).get(sharding, {})
    composed: dict[int, float] = {}
    like, fault = "", ""
    try:
        kinds = planned_kinds(spec)
        parts = makeup(kinds, list(used))
        like = alike(composition(parts, list(used)))
        composed = compose_rounds(samples, parts, used)
        fault = _other_steps(kinds, runs)
    except CompositionError as error:
        fault = str(error)
    ratio = paired(lambda of_blocks, whole: of_blocks / whole, composed, seconds)
    middle = interval(ratio) if samples.usable else None
    word, reason = verdict(middle, len(ratio))
    if not samples.usable:
        reason = "the link stayed disturbed"
    if fault:
        word, reason = CONTRADICTED if composed else NOT_CONFIRMED, fault
    both = sorted(ratio)
    metric = get(spec.workload.name, **spec.workload.options).metric
    values = [run["final"][metric] for run in good.values() if run["final"]]
    row: Row = {
        "link": samples.label,
        "sharding": sharding,
        "arm": arm,
        "run_id": spec.run_id,
        "steps": spec.steps,
        "n": len(ratio),
        "n_disturbed": sum(bool(run["disturbed"]) for run in runs),
        "direct_s": median(seconds[number] for number in both) if both and samples.usable else None,
        "composed_s": median(composed[number] for number in both) if both and samples.usable else None,
        **spread_out("ratio", middle),
        "verdict": word,
        "reason": reason or None,
        "value": fmean(values) if values else None,
    }
    return row, Check(arm, like, word, reason)


def _other_steps(kinds: Sequence[str], runs: Sequence[Mapping[str, Any]]) -> str:
    """Why what was trained is not what was planned, or nothing."""
    planned = {kind: kinds.count(kind) for kind in sorted(set(kinds))}
    other = [dict(run["steps_by_kind"]) for run in runs if dict(run["steps_by_kind"]) != planned]
    return f"it took the steps {other[0]}, planned were {planned}" if other else ""
