"""The blocks of one link as samples, the seconds of trainings that are composed of them, and the check of these.

A sample is the seconds a unit of one undisturbed block; a repeated block takes the place of the disturbed one of
its round. Quantities of two cases or two modes are combined within a round before anything is summarised, so what a
whole round had in common (a slow minute of the machine) drops out of every ratio.

*What a training consists of* says the method itself: its `plan`, asked with the run's own learning rates, so nothing has
to be trained for it. A method with kinds of steps costs the sum of count times seconds over the kinds. A method of
local steps costs the sum over its rounds of T(H), the seconds of a round of H steps, which is measured at a few H:
between them it is interpolated linearly, beyond them extrapolated with the slope of the nearest two. A method may do both,
one after the other: data-parallel steps at first, say, then rounds. Of a model averaged in P fragments a round sends a P-th,
on average; what the fragments' sizes and the last step make a training send beyond that costs T(0) for every P-th.

*The check*: a training composed of blocks leaves out whatever happens between them, so some arms are also trained whole, timed in
the same rounds as the blocks. The ratio composed over direct is taken within a round. Where its 95 % interval lies inside 0.9 to
1.1 composing is confirmed, where it lies wholly outside it is contradicted; else, and below six pairs, it is not confirmed.
Direct runs stand for all arms that are composed alike on their link: of one kind of step, of several kinds, of rounds.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import Any, Final

import pandas as pd

from reference_impls import create
from reference_impls.core.errors import UnknownAlgorithmError
from reference_impls.core.registry import registry
from suite.analysis.statistics import MINIMUM_FOR_INTERVAL, Interval, cells, median_interval
from suite.analysis.tables import (
    CASES,
    CONFIRMED,
    CONTRADICTED,
    DIRECT,
    NOT_CONFIRMED,
    PROBE,
    Row,
    checked,
    frame_of,
)
from suite.links.link import ROUND_TRIP
from suite.runs.files import canonical_json
from suite.runs.spec import RunSpec, judgement, learning_rate, source_hash
from suite.timing.store import ROUND

PHASES: Final = ["forward_backward", "encode", "communication", "decode", "update"]
_BLOCK: Final = ["case_id", "mode", "round", "attempt", "disturbed", "unit_s", "spread", "phases"]


class LinkSamples:
    """The blocks of one link.

    blocks: a row a block that was not disturbed, one a case, mode and round. disturbed: rows of the others, every attempt.
    steps: steps in a unit, by case, in the order of the record. usable: whether the link gave numbers.
    """

    def __init__(self, link: Mapping[str, Any], cases: Sequence[Mapping[str, Any]]) -> None:
        self.link, self.label, self.usable = link, link["label"], link["status"] == "done"
        self.steps = pd.Series({case["case_id"]: case["unit_steps"] for case in cases}, dtype="int64")
        every = pd.DataFrame(link["blocks"], columns=_BLOCK).sort_values(["round", "attempt"], kind="stable")
        disturbed = every["disturbed"].astype("bool")
        self.disturbed = every[disturbed]
        self.blocks = every[~disturbed].drop_duplicates(["case_id", "mode", "round"])
        self._units: dict[str, pd.DataFrame] = {}

    def units(self, mode: str = "run") -> pd.DataFrame:
        """Seconds a unit, those of the block's slowest rank: a row a round, a column a case; missing where disturbed."""
        if mode not in self._units:
            own = self.blocks[self.blocks["mode"] == mode]
            wide = own.pivot(index="round", columns="case_id", values="unit_s")
            self._units[mode] = wide.reindex(columns=self.steps.index).astype("float64")
        return self._units[mode]

    def per_step(self, mode: str = "run") -> pd.DataFrame:
        """Seconds a step, as `units`."""
        return self.units(mode) / self.steps

    def step(self, case_id: str | None, mode: str = "run") -> pd.Series:
        """Seconds a step of a case by round; none of a case that is not there."""
        return self.per_step(mode).get(case_id, pd.Series(dtype="float64")).dropna()

    def phases(self) -> pd.DataFrame:
        """Seconds a step of every phase in serial blocks: a row a case and round."""
        blocks = self.blocks[(self.blocks["mode"] == "serial") & self.blocks["phases"].astype("bool")]
        index = pd.MultiIndex.from_frame(blocks[["case_id", "round"]])
        return pd.DataFrame(blocks["phases"].tolist(), index, dtype="float64")


def interval(samples: Iterable[float]) -> Interval | None:
    """Median with its order-statistic interval, or None below six values."""
    values = list(samples)
    return median_interval(values) if len(values) >= MINIMUM_FOR_INTERVAL else None


def _of_columns(samples: pd.DataFrame, name: str, stem: str, *, few: bool = False) -> pd.DataFrame:
    """The interval of every column of samples as cells, a row each. few: of fewer than six values the median stands alone."""
    rows = [cells(interval(samples[case].dropna()), name, stem) for case in samples]
    found = pd.DataFrame(rows, samples.columns, [name, f"{stem}low", f"{stem}high"], dtype="float64")
    return found.assign(**{name: samples.median()}) if few else found


def speedup(reference: pd.Series, other: pd.Series) -> pd.Series:
    """Reference over other in every round that has both."""
    return (reference / other).dropna()


def case_table(record: Mapping[str, Any]) -> pd.DataFrame:
    """The table `cases` of a session record: a row for every link and case."""
    cases = pd.DataFrame(record["cases"], columns=_CASE).set_index("case_id", drop=False)
    cases["case"] = cases["label"]
    cases["stale"] = [moved(case) == "source" for case in record["cases"]]
    cases["path"] = [
        canonical_json(path) if isinstance(path, dict) and path else None for path in cases["path"]
    ]
    for name in ("wire_bytes", "received_bytes"):
        cases[f"{name}_per_step"] = cases[name].astype("float64") / cases["unit_steps"]
    links = [_of_link(LinkSamples(link, record["cases"]), cases) for link in record["links"]]
    return pd.concat(links, ignore_index=True) if links else frame_of(CASES, ())


_CASE: Final = [
    "case_id", "label", "role", "algorithm", "kind", "unit_steps", "wire_bytes", "received_bytes", "path",
]  # fmt: skip


def _of_link(samples: LinkSamples, cases: pd.DataFrame) -> pd.DataFrame:
    link, runs, null = samples.link, samples.per_step(), samples.per_step("null")
    reference, default = (
        runs.rdiv(samples.step(link.get(name)), axis="index").dropna(how="all")
        for name in ("reference", "default")
    )
    exposed, phases, of_run = runs - null, samples.phases(), samples.blocks["mode"] == "run"
    others, unit = (
        phases.drop(columns=PHASES, errors="ignore"),
        _of_columns(samples.units(), "unit_s", "unit_"),
    )
    any_other = others.notna().any(axis="columns").groupby("case_id").any()
    numbers = pd.concat(
        [
            unit,
            unit.div(samples.steps, axis="index").rename(columns=lambda name: name.replace("unit", "step")),
            _of_columns(reference, "speedup", "speedup_"),
            _of_columns(default, "default_speedup", "default_"),
            _of_columns(exposed, "exposed_s", "exposed_", few=True),
            phases[[name for name in PHASES if name in phases]].groupby("case_id").median().add_suffix("_s"),
        ],
        axis="columns",
    ).assign(
        null_s=null.median(),
        other_s=others.sum(axis="columns").groupby("case_id").median()[any_other],
        spread=samples.blocks[of_run].groupby("case_id")["spread"].median(),
    )
    screen = pd.DataFrame(link["screen"], columns=["case_id", "unit_seconds"]).explode("unit_seconds")
    of_run = samples.disturbed["mode"] == "run"
    counts = {
        "n": runs.count(),
        "n_disturbed": samples.disturbed[of_run].groupby("case_id").size(),
        "n_pairs": reference.count(),
        "n_default_pairs": default.count(),
        "n_exposed": exposed.count(),
        "n_phases": phases.groupby("case_id").size(),
    }
    table = cases.assign(
        link=samples.label,
        reference=cases["case_id"] == link.get("reference"),
        default=cases["case_id"] == link.get("default"),
        screen_s=screen.groupby("case_id")["unit_seconds"].agg("median") / samples.steps,
        **{name: pd.Series(found, cases.index).fillna(0).astype("int64") for name, found in counts.items()},
    ).join(numbers if samples.usable else numbers.iloc[:0])
    return checked(CASES, table.reindex(columns=list(CASES.names)))


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


def probe_table(record: Mapping[str, Any]) -> pd.DataFrame:
    """The table `probe`: what each collective reached on each link."""
    rows: list[Row] = []
    pairs = [(link, found) for link in record["links"] for found in link["probe"]]
    for link, found in pairs:
        trip, held = found["what"].startswith(ROUND_TRIP), link["link"]["rate_bps"]  # null: unshaped
        rate = None if trip else found["bits_per_s"] or None
        row = {
            "link": link["label"],
            "what": found["what"],
            "bytes": found["bytes"],
            "n": len(found["seconds"]),
            **cells(interval(found["seconds"]), "seconds", "seconds_"),
            "seconds": median(found["seconds"]) if found["seconds"] else None,
            "bits_per_s": rate,
            "rate_share": rate / held if rate and held else None,
        }
        rows.append(row)
    return frame_of(PROBE, rows)


LOCAL: Final = "local"
"""The kind of a step that does not end a round."""
FINAL: Final = "final"
"""The kind of a last step that averages all fragments of a model."""


class CompositionError(ValueError):
    """The seconds of a training cannot be put together; the message says why."""


@dataclass(frozen=True)
class Makeup:
    """What a training of `steps` steps consists of: how many units of each kind.

    rounds: some kinds are rounds. more: averages beyond one a round, less than 0 where some of a round send nothing.
    """

    steps: int
    units: Mapping[str, int]
    rounds: bool
    more: float = 0.0


def makeup_of(spec: RunSpec, kinds: Sequence[str], timed: Sequence[str]) -> Makeup:
    """What a training consists of, in the kinds that were timed for its method.

    Args:
        spec: The training.
        kinds: Of its every step (`planned_kinds`).
        timed: Kinds of step of its method that have a case.

    Returns:
        Its units.

    Raises:
        CompositionError: A kind of step was not timed, or the training ends inside a round.
    """
    parts = makeup(kinds, timed)
    algorithm = create(spec.algorithm.name, **spec.algorithm.options).algorithm
    if not parts.rounds or not hasattr(algorithm, "fragments"):
        return parts
    averages = sum(fragments_averaged(spec, algorithm, kinds)) * algorithm.fragments
    rounds = sum(count for kind, count in parts.units.items() if kind.startswith(ROUND))
    return replace(parts, more=averages - rounds)


def fragments_averaged(spec: RunSpec, algorithm: Any, kinds: Sequence[str]) -> list[float]:
    """The share of the model that every step of a training sends, of a method that averages it in fragments.

    Args:
        spec: The training; its workload and its buckets decide how large the fragments are.
        algorithm: With `fragments`, `fragment` and `rule`, as `StreamingDiLoCo` has them.
        kinds: Of every step; a ``final`` one averages all fragments.

    Returns:
        A share a step: 0 where nothing leaves, 1 for the whole model.
    """
    import torch

    from reference_impls.core.algorithm import Bucket, TrainState
    from reference_impls.core.collectives import Group
    from reference_impls.runtime.worker import canonical, cut
    from suite.workloads import get

    model = get(spec.workload.name, **spec.workload.options).build()
    named = [(name, param) for name, param in model.named_parameters() if param.requires_grad]
    group = {"params": [param for _, param in named], "param_names": [name for name, _ in named]}
    runs = cut(canonical([group]), spec.bucket_bytes)
    train_state, sizes = TrainState(Group("world", 0, spec.world_size)), [0] * algorithm.fragments
    for index, run in enumerate(runs):
        flat = torch.empty(run[-1].stop - run[0].start, device="meta")
        bucket = Bucket(index, flat, flat, (), train_state, list, run[0].start, len(runs))
        sizes[algorithm.fragment(bucket)] += bucket.d
    shares = [size / sum(sizes) for size in sizes]
    leaving = [algorithm.rule.leaving(done) for done in range(1, len(kinds) + 1)]
    return [
        1.0 if kind == FINAL else 0.0 if left is None else shares[left]
        for kind, left in zip(kinds, leaving, strict=True)
    ]


def planned_kinds(spec: RunSpec) -> list[str]:
    """The kind of every step of a run, as its method plans them.

    Raises CompositionError for a method that plans by what happens in training, and what `create` raises.
    """
    from reference_impls.runtime.alone import planned  # here, since it needs torch

    algorithm, rate = create(spec.algorithm.name, **spec.algorithm.options).algorithm, learning_rate(spec)
    if algorithm.plans_from_data:
        raise CompositionError("which steps it takes depends on the data, so nothing can be composed")
    return [kind for kind, _ in planned(algorithm, spec.world_size, map(rate, range(spec.steps)))]


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
    units = sum(
        count * (round_s(round_length(kind), known) if kind.startswith(ROUND) else unit_s[kind])
        for kind, count in parts.units.items()
    )
    # T(0) is an average without a step; where it costs next to nothing noise may take it below 0
    return units + parts.more * _on_the_line(0, known) if parts.more else units


def round_s(h: int, known: Mapping[int, float]) -> float:
    """Seconds of a round of h steps from those of measured lengths: exact there, linear between and beyond.

    Raises CompositionError where one length alone was measured, or the line falls to zero.
    """
    seconds = _on_the_line(h, known)
    if not seconds > 0:
        raise CompositionError(f"the seconds of a round of {h} steps come out at {seconds:.3g}")
    return seconds


def _on_the_line(h: int, known: Mapping[int, float]) -> float:
    if h in known:
        return known[h]
    if len(known) < 2:
        raise CompositionError(f"rounds of {h} steps need two measured lengths, not {len(known)}")
    pairs = list(itertools.pairwise(sorted(known)))
    low, high = next((pair for pair in pairs if h < pair[1]), pairs[-1])
    return known[low] + (known[high] - known[low]) * (h - low) / (high - low)


LOW: Final = 0.9
HIGH: Final = 1.1
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


def compose_rounds(samples: LinkSamples, parts: Makeup, used: Mapping[str, str]) -> pd.Series:
    """Composed seconds of a training in every round in which all its cases have undisturbed blocks.

    `used`: kind -> case id. Raises CompositionError.
    """
    needed = used if parts.rounds else {kind: used[kind] for kind in parts.units}
    steps = [round_length(kind) if kind.startswith(ROUND) else 1 for kind in needed]
    units = samples.per_step()[list(needed.values())].set_axis(list(needed), axis="columns").dropna() * steps
    rounds: dict[Any, Any] = units.to_dict("index")
    return pd.Series(
        {number: composed_s(parts, unit_s) for number, unit_s in rounds.items()}, dtype="float64"
    )


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


def direct_runs(record: Mapping[str, Any]) -> tuple[pd.DataFrame, dict[str, list[Check]]]:
    """The table `direct`, and what it says of each link (by label)."""
    rows: list[Row] = []
    checks: dict[str, list[Check]] = {}
    for link in record["links"]:
        samples = LinkSamples(link, record["cases"])
        runs = pd.DataFrame(link["direct"], columns=_RUN).sort_values(["round", "attempt"])
        by_arm: Iterable[tuple[Any, pd.DataFrame]] = runs.groupby(["sharding", "arm"])
        for (sharding, arm), same in by_arm:
            row, check = _direct(record, samples, sharding, arm, same)
            rows.append(row)
            checks.setdefault(samples.label, []).append(check)
    return frame_of(DIRECT, rows), checks


_RUN: Final = [
    "sharding",
    "arm",
    "round",
    "attempt",
    "disturbed",
    "spec",
    "seconds",
    "steps_by_kind",
    "final",
]


def judged(arm: str, word: str, checks: Iterable[Check]) -> tuple[str | None, str | None, str]:
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
    record: Mapping[str, Any], samples: LinkSamples, sharding: str, arm: str, runs: pd.DataFrame
) -> tuple[Row, Check]:
    """Row and check of one arm; its runs differ in their seeds, which decide nothing about the steps."""
    spec = RunSpec.from_dict(runs["spec"].iloc[0])
    good = runs[~runs["disturbed"].astype("bool")].drop_duplicates("round").set_index("round")
    used = record["uses"].get(arm, {}).get(sharding, {})
    composed = pd.Series(dtype="float64")
    like, fault = "", ""
    try:
        kinds = planned_kinds(spec)
        parts = makeup_of(spec, kinds, list(used))
        like = alike(composition(parts, list(used)))
        composed = compose_rounds(samples, parts, used)
        planned = {kind: kinds.count(kind) for kind in sorted(set(kinds))}
        if other := [dict(steps) for steps in runs["steps_by_kind"] if dict(steps) != planned]:
            fault = f"it took the steps {other[0]}, planned were {planned}"
    except CompositionError as error:
        fault = str(error)
    both = pd.DataFrame({"direct": good["seconds"].astype("float64"), "composed": composed}).dropna()
    middle = interval(both["composed"] / both["direct"]) if samples.usable else None
    word, reason = verdict(middle, len(both))
    if not samples.usable:
        reason = "the link stayed disturbed"
    if fault:
        word, reason = NOT_CONFIRMED if composed.empty else CONTRADICTED, fault
    metric = judgement(spec.workload.name, spec.workload.options)["metric"]
    values = [final[metric] for final in good["final"] if final]
    medians: Mapping[str, float] = dict(both.median().dropna()) if samples.usable else {}
    row: Row = {
        "link": samples.label,
        "sharding": sharding,
        "arm": arm,
        "run_id": spec.run_id,
        "steps": spec.steps,
        "n": len(both),
        "n_disturbed": int(runs["disturbed"].sum()),
        "direct_s": medians.get("direct"),
        "composed_s": medians.get("composed"),
        **cells(middle, "ratio", "ratio_"),
        "verdict": word,
        "reason": reason or None,
        "value": fmean(values) if values else None,
    }
    return row, Check(arm, like, word, reason)
