"""The blocks of one link as samples, the seconds of trainings that are composed of them, and the check of these.

A sample is the seconds a unit of one undisturbed block; a repeated block takes the place of the disturbed one of
its round. Quantities of two cases or two modes are combined within a round before anything is summarised, so what a
whole round had in common (a slow minute of the machine) drops out of every ratio.

*What a training consists of* says the method itself: its `plan`, asked with the run's own learning rates, so nothing has
to be trained for it. A method with kinds of steps costs the sum of count times seconds over the kinds. A method of
local steps costs the sum over its rounds of T(H), the seconds of a round of H steps, which is measured at a few H:
between them it is interpolated linearly, beyond them extrapolated with the slope of the nearest two. A method may do both,
one after the other: data-parallel steps at first, say, then rounds.

*The check*: a training composed of blocks leaves out whatever happens between them, so some arms are also trained whole, timed in
the same rounds as the blocks. The ratio composed over direct is taken within a round. Where its 95 % interval lies inside 0.9 to
1.1 composing is confirmed, where it lies wholly outside it is contradicted; else, and below six pairs, it is not confirmed.
Direct runs stand for all arms that are composed alike on their link: of one kind of step, of several kinds, of rounds.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any, Final

from reference_impls import create
from reference_impls.algorithm import Clock
from reference_impls.collectives import Group
from reference_impls.errors import UnknownAlgorithmError
from reference_impls.registry import registry
from suite.analysis.statistics import MINIMUM_FOR_INTERVAL, Interval, median_interval
from suite.analysis.tables import Row, Value
from suite.runs.files import canonical_json
from suite.runs.spec import RunSpec, learning_rate, source_hash
from suite.timing.case import ROUND
from suite.workloads import get

PHASES: Final = ("forward_backward", "encode", "communication", "decode", "update")
ROUND_TRIP: Final = "round-trip"
"""What the probe calls its smallest messages; they say nothing of a rate."""

Samples = Mapping[int, float]
"""One value a round."""


class LinkSamples:
    """The undisturbed blocks of one link, by case, mode and round. `steps`: steps in a unit, by case."""

    def __init__(self, link: Mapping[str, Any], cases: Sequence[Mapping[str, Any]]) -> None:
        self.link = link
        self.label = str(link["label"])
        self.usable = link["status"] == "done"
        self.steps = {str(case["case_id"]): int(case["unit_steps"]) for case in cases}
        self._blocks: dict[tuple[str, str], dict[int, Mapping[str, Any]]] = {}
        for block in sorted(link["blocks"], key=lambda block: (block["round"], block["attempt"])):
            if not block["disturbed"]:
                rounds = self._blocks.setdefault((block["case_id"], block["mode"]), {})
                rounds.setdefault(int(block["round"]), block)

    def blocks(self, case_id: str, mode: str = "run") -> Mapping[int, Mapping[str, Any]]:
        """Undisturbed blocks by round."""
        return self._blocks.get((case_id, mode), {})

    def unit(self, case_id: str, mode: str = "run") -> dict[int, float]:
        """Seconds a unit by round: those of the block's slowest rank over its units."""
        found = self.blocks(case_id, mode).items()
        return {number: float(block["unit_s"]) for number, block in found}

    def step(self, case_id: str, mode: str = "run") -> dict[int, float]:
        """Seconds a step by round."""
        return {number: value / self.steps[case_id] for number, value in self.unit(case_id, mode).items()}

    def disturbed(self, case_id: str) -> int:
        """Disturbed blocks of the mode run."""
        return sum(
            bool(b["disturbed"]) for b in self.link["blocks"] if (b["case_id"], b["mode"]) == (case_id, "run")
        )


def paired(function: Callable[[float, float], float], left: Samples, right: Samples) -> dict[int, float]:
    """The function of both samples in every round that has both."""
    return {number: function(left[number], right[number]) for number in sorted(left.keys() & right.keys())}


def interval(samples: Samples | Sequence[float]) -> Interval | None:
    """Median with its order-statistic interval, or None below six values."""
    values = list(samples.values()) if isinstance(samples, Mapping) else list(samples)
    return median_interval(values) if len(values) >= MINIMUM_FOR_INTERVAL else None


def spread_out(name: str, found: Interval | None, low: str = "", high: str = "") -> dict[str, Value]:
    """An interval as three cells: `name`, and its ends under `low` and `high`; empty where there is none."""
    stem = name.removesuffix("_s")
    return {
        name: found.estimate if found else None,
        low or f"{stem}_low": found.low if found else None,
        high or f"{stem}_high": found.high if found else None,
    }


def speedup(reference: Samples, other: Samples) -> dict[int, float]:
    """Reference over other by round."""
    return paired(lambda of_reference, own: of_reference / own, reference, other)


def case_rows(record: Mapping[str, Any]) -> list[Row]:
    """The table `cases` of a session record: a row for every link and case."""
    links = [LinkSamples(link, record["cases"]) for link in record["links"]]
    return [_case_row(samples, case) for samples in links for case in record["cases"]]


def _case_row(samples: LinkSamples, case: Mapping[str, Any]) -> Row:
    case_id, link = str(case["case_id"]), samples.link
    units = samples.steps[case_id]
    own, null = samples.step(case_id), samples.step(case_id, "null")
    run = interval(samples.unit(case_id)) if samples.usable else None
    over = {name: _over(samples, link.get(name), own) for name in ("reference", "default")}
    exposed = paired(lambda with_, without: with_ - without, own, null)
    step = run and Interval(run.estimate / units, run.low / units, run.high / units, run.n, run.method)
    return {
        "link": samples.label,
        "case": str(case["label"]),
        "case_id": case_id,
        "role": str(case["role"]),
        "algorithm": str(case["algorithm"]),
        "kind": str(case["kind"]),
        "unit_steps": units,
        "reference": case_id == link.get("reference"),
        "default": case_id == link.get("default"),
        "n": len(own),
        "n_disturbed": samples.disturbed(case_id),
        **spread_out("unit_s", run),
        **spread_out("step_s", step),
        "screen_s": _screened(samples, case_id),
        "n_pairs": len(over["reference"]),
        **spread_out("speedup", interval(over["reference"]) if samples.usable else None),
        "n_default_pairs": len(over["default"]),
        **spread_out(
            "default_speedup",
            interval(over["default"]) if samples.usable else None,
            "default_low",
            "default_high",
        ),
        "null_s": median(null.values()) if null and samples.usable else None,
        "n_exposed": len(exposed),
        **spread_out("exposed_s", interval(exposed) if samples.usable else None),
        "exposed_s": median(exposed.values()) if exposed and samples.usable else None,
        **_phases(samples, case_id),
        "spread": _spread(samples, case_id),
        "wire_bytes_per_step": _per_step(case.get("wire_bytes"), units),
        "received_bytes_per_step": _per_step(case.get("received_bytes"), units),
        "path": canonical_json(case["path"]) if case.get("path") else None,
        "stale": moved(case) == "source",
    }


def _over(samples: LinkSamples, case_id: str | None, own: Samples) -> dict[int, float]:
    return speedup(samples.step(case_id), own) if case_id else {}


def _screened(samples: LinkSamples, case_id: str) -> float | None:
    found = [s for e in samples.link["screen"] if e["case_id"] == case_id for s in e["unit_seconds"]]
    return median(found) / samples.steps[case_id] if found else None


def _phases(samples: LinkSamples, case_id: str) -> dict[str, Value]:
    found = [block["phases"] for block in samples.blocks(case_id, "serial").values() if block["phases"]]
    row: dict[str, Value] = {"n_phases": len(found)}
    known = {name for phases in found for name in phases}
    for name in PHASES:
        given = [phases[name] for phases in found if name in phases]
        row[f"{name}_s"] = median(given) if given and samples.usable else None
    others = [sum(s for name, s in phases.items() if name not in PHASES) for phases in found]
    row["other_s"] = median(others) if others and known - set(PHASES) and samples.usable else None
    return row


def _spread(samples: LinkSamples, case_id: str) -> float | None:
    found = [b["spread"] for b in samples.blocks(case_id).values() if b.get("spread") is not None]
    return median(found) if found and samples.usable else None


def _per_step(value: float | None, units: int) -> float | None:
    return None if value is None else value / units


def moved(case: Mapping[str, Any]) -> str:
    """What of a case's method has moved since it was timed: ``version``, ``source``, or nothing."""
    timed = case.get("source") or {}
    if not timed or case["role"] != "method":
        return ""
    try:
        now = registry.entry(str(case["algorithm"])).version
    except UnknownAlgorithmError:
        return "version"
    if timed["version"] != now:
        return "version"
    return "" if timed["source_hash"] == source_hash(str(case["algorithm"])) else "source"


def probe_rows(record: Mapping[str, Any]) -> list[Row]:
    """The table `probe`: what each collective reached on each link."""
    return [_probe_row(link, found) for link in record["links"] for found in link["probe"]]


def _probe_row(link: Mapping[str, Any], found: Mapping[str, Any]) -> Row:
    seconds = [float(value) for value in found["seconds"]]
    trip = str(found["what"]).startswith(ROUND_TRIP)
    rate, middle = None if trip else found["bits_per_s"], interval(seconds)
    held = link["link"]["rate_bps"]  # null: unshaped
    return {
        "link": str(link["label"]),
        "what": str(found["what"]),
        "bytes": int(found["bytes"]),
        "n": len(seconds),
        "seconds": median(seconds) if seconds else None,
        "seconds_low": middle.low if middle else None,
        "seconds_high": middle.high if middle else None,
        "bits_per_s": None if not rate else float(rate),
        "rate_share": float(rate) / float(held) if rate and held else None,
    }


LOCAL: Final = "local"
"""The kind of a step that does not end a round."""


class CompositionError(ValueError):
    """The seconds of a training cannot be put together; the message says why."""


@dataclass(frozen=True)
class Makeup:
    """What a training of `steps` steps consists of: how many units of each kind. `rounds`: some kinds are rounds."""

    steps: int
    units: Mapping[str, int]
    rounds: bool


def planned_kinds(spec: RunSpec) -> list[str]:
    """The kind of every step of a run, as its method plans them.

    Raises CompositionError for a method that plans by what happens in training, and what `create` raises.
    """
    algorithm = create(spec.algorithm.name, **spec.algorithm.options).algorithm
    clock, rate = Clock(Group("world", 0, spec.world_size), seed=spec.seed), learning_rate(spec)
    kinds = []
    for step in range(spec.steps):
        clock.step, clock.lr = step, rate(step)
        kind = algorithm.plan(clock)
        if algorithm.plans_from_data or not isinstance(kind, str):
            raise CompositionError("which steps it takes depends on the data, so nothing can be composed")
        clock.kind = kind
        kinds.append(kind)
    return kinds


def makeup(kinds: Sequence[str], timed: Sequence[str]) -> Makeup:
    """Sort the steps of a training into the kinds that were timed for its method.

    Where some of these are rounds, every run of local steps with the step that ends it is one, and so is a single step
    of a kind that was not timed by itself. Raises CompositionError when a kind of step was not timed or the training
    ends inside a round.
    """
    alone = {kind for kind in timed if not kind.startswith(ROUND)}
    if len(alone) == len(timed):
        counts = Counter(kinds)
        if missing := sorted(counts.keys() - alone):
            raise CompositionError(f"no steps of the kind {', '.join(missing)} were timed")
        return Makeup(len(kinds), dict(sorted(counts.items())), rounds=False)
    single, lengths, length = Counter[str](), Counter[int](), 0
    for kind in kinds:
        if not length and kind in alone:
            single[kind] += 1
            continue
        length += 1
        if kind != LOCAL:
            lengths[length] += 1
            length = 0
    if length:
        raise CompositionError(f"the training ends {length} steps into a round")
    units = dict(sorted(single.items())) | {f"{ROUND}{h}": lengths[h] for h in sorted(lengths)}
    return Makeup(len(kinds), units, rounds=bool(lengths))


def round_length(kind: str) -> int:
    """16 for ``round-16``."""
    return int(kind.removeprefix(ROUND))


def composition(parts: Makeup, timed: Sequence[str]) -> str:
    """In words how the seconds come about, as it stands in the table."""
    if not parts.rounds:
        return "one kind" if len(parts.units) == 1 else "several kinds"
    needed, known = _lengths(parts.units), _lengths(timed)
    if needed <= known:
        return "rounds measured"
    inside = min(known) <= min(needed) and max(needed) <= max(known)
    return "rounds interpolated" if inside else "rounds extrapolated"


def _lengths(kinds: Iterable[str]) -> set[int]:
    return {round_length(kind) for kind in kinds if kind.startswith(ROUND)}


def composed_s(parts: Makeup, unit_s: Mapping[str, float]) -> float:
    """Seconds of the training from the seconds of a unit of each timed kind. Raises CompositionError."""
    known = {round_length(kind): seconds for kind, seconds in unit_s.items() if kind.startswith(ROUND)}
    return sum(
        count * (round_s(round_length(kind), known) if kind.startswith(ROUND) else unit_s[kind])
        for kind, count in parts.units.items()
    )


def round_s(h: int, known: Mapping[int, float]) -> float:
    """Seconds of a round of h steps from those of measured lengths: exact there, linear between and beyond.

    Raises CompositionError where one length alone was measured, or the line falls to zero.
    """
    if h in known:
        return known[h]
    if len(known) < 2:
        raise CompositionError(f"rounds of {h} steps need two measured lengths, not {len(known)}")
    pairs = list(itertools.pairwise(sorted(known)))
    low, high = next((pair for pair in pairs if h < pair[1]), pairs[-1])
    seconds = known[low] + (known[high] - known[low]) * (h - low) / (high - low)
    if not seconds > 0:
        raise CompositionError(f"the seconds of a round of {h} steps come out at {seconds:.3g}")
    return seconds


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
