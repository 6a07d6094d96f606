"""Which method to run: the methods that advice is given on, what studies say of their accuracy, predicted seconds a step.

*Candidates.* A candidate is a method of a session, in the configuration that was timed there; of a local method one for each
length of its rounds. Its codec's seconds are those of the sessions' machine, a thread for a rank (`CodecOverhead`).

*Evidence.* What studies say of accuracy are differences to the uncompressed run of the same optimizer and budget. A study counts
for a method where its arm has the same options, every one (a period of 8 says nothing of 16); those of the optimizer may differ,
since they are tuned. What a setting says is the rule of `suite.analysis.evidence`.

*Advice.* A prediction is the cost model's (`suite.costs.model`), with the computing that the user states and the codecs that were
timed here. What is sent follows from the model's shapes, or from a synthetic model of its size (`synthetic_recipe`).
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Final

from reference_impls.drivers.requests import Bucket, Request, Step
from reference_impls.errors import UnsupportedError
from reference_impls.registry import Method, registry
from suite.analysis.columns import SENSITIVITY, SUMMARY
from suite.analysis.evidence import Accuracy, Speed, accuracy, speed
from suite.analysis.published import SESSION, find_table, load_facts, studies_of
from suite.analysis.speed_columns import ARMS
from suite.analysis.tables import read_frame, rows_of
from suite.costs.model import Model, Overlap, unit_seconds
from suite.costs.prices import FORMS, OF_PROBE, Backend, Network, measured_as
from suite.costs.recipe import Recipe, RecipeError, synthetic_recipe
from suite.costs.samples import (
    DDP_BYTES,
    CodecOverhead,
    Local,
    Sample,
    codec_overhead,
    ddp_recipe,
    method_recipe,
)
from suite.runs.files import canonical_json
from suite.runs.spec import resolve_algorithm
from suite.runs.sweep import Sweep, UnknownSweepError, load_sweep
from suite.timing.case import ROUND, Case
from suite.timing.cases import NOMINAL_STEPS, kinds_of, method_of
from suite.timing.spec import SessionSpec, load_session, sessions_of
from suite.workloads import get

# ---- candidates

WARM_UP: Final = "warm-up"
WARM_UP_SHARE: Final = 0.15
"""Of the steps, the default of the methods that have one."""


@dataclass(frozen=True)
class Candidate:
    """A method with its kinds of steps. configuration: for its studies (`Study`). shares: kind -> share of the
    steps of a training. overhead: kind -> seconds that a step computes beyond forward, backward and the plain update, on one
    core, by the size of the model. world_size, parameters: ranks and largest model with which it was timed.
    """

    label: str
    algorithm: str
    configuration: str
    cases: Mapping[str, Case]
    shares: Mapping[str, float]
    overhead: Mapping[str, CodecOverhead]
    world_size: int
    parameters: int

    def method(self, kind: str) -> Method:
        """Configured to take steps of that kind."""
        return method_of(self.cases[kind])


def candidates(
    samples: Sequence[Sample], cores: int, load: Callable[[str], SessionSpec] | None = None
) -> list[Candidate]:
    """Every method of the samples' sessions of which all kinds of step were timed. load: a session's file by its name."""
    methods: dict[str, Candidate] = {}
    for session in sorted({sample.session for sample in samples}):
        for label, algorithm, configured, kinds in arms_of((load or load_session)(session)):
            for name, cases in _apart(label, kinds):
                steps = {case.unit_steps for kind, case in cases.items() if kind.startswith(ROUND)}
                exact = of_round(configured, steps.pop()) if steps else configured
                method = _candidate(name, algorithm, exact, cases, samples, cores)
                if method is not None:
                    methods.setdefault(name, method)
    return list(methods.values())


def arms_of(spec: SessionSpec) -> list[tuple[str, str, str, dict[str, Case]]]:
    """Label, registry name, configuration and cases by kind, of a session without a sweep; of others none."""
    return [
        (
            arm.label,
            arm.algorithm,
            configuration(arm.algorithm, arm.options),
            kinds_of(
                resolve_algorithm(arm.algorithm, arm.options, spec.world_size, NOMINAL_STEPS), spec.rounds_h
            ),
        )
        for arm in spec.arms.values()
    ]


def _apart(label: str, kinds: Mapping[str, Case]) -> list[tuple[str, dict[str, Case]]]:
    """Rounds one by one, all other kinds together."""
    if any(kind.startswith(ROUND) for kind in kinds):
        return [
            (f"{label}, rounds of {case.unit_steps}", {kind: case})
            for kind, case in kinds.items()
            if case.unit_steps > 1
        ]
    return [(label, dict(kinds))]


def _candidate(
    label: str,
    algorithm: str,
    configured: str,
    cases: Mapping[str, Case],
    samples: Sequence[Sample],
    cores: int,
) -> Candidate | None:
    of_kind = {
        kind: [sample for sample in samples if sample.case.case_id == case.case_id]
        for kind, case in cases.items()
    }
    overhead = {
        kind: seconds
        for kind, timed in of_kind.items()
        if (seconds := codec_overhead(timed, samples, cores)) is not None
    }
    if not overhead or overhead.keys() != of_kind.keys():
        return None
    timed = max(next(iter(of_kind.values())), key=lambda sample: sample.setting.parameters)
    return Candidate(
        label,
        algorithm,
        configured,
        cases,
        _shares(list(cases)),
        overhead,
        timed.setting.world_size,
        timed.setting.parameters,
    )


def _shares(kinds: Sequence[str]) -> dict[str, float]:
    """A warm-up takes its default share, other kinds the rest."""
    rest = [kind for kind in kinds if kind != WARM_UP]
    if WARM_UP not in kinds or not rest:
        return {kind: 1 / len(kinds) for kind in kinds}
    return {WARM_UP: WARM_UP_SHARE, **{kind: (1 - WARM_UP_SHARE) / len(rest) for kind in rest}}


# ---- evidence: what studies say of accuracy

SETTING: Final = ("workload", "sharding", "world_size")
"""Columns of a study's tables that name one of its settings."""
NOMINAL_WORKERS: Final = 4
"""Told where options are filled in; no option depends on it."""
LARGER: Final = 10.0
"""A model of more than so many times the parameters is another one: what a study says is not carried over."""
SHARDINGS: Final = {"iid": "i.i.d.", "by-class": "by class", "by-package": "by package"}


@dataclass(frozen=True)
class Study:
    """A method in one setting of a study: on a workload, a sharding and a number of workers, and what it says.

    configuration: of its arm, to the last option. parameters: of the model that was trained. speeds: of the same arm, by link.
    """

    sweep: str
    arm: str
    configuration: str
    workload: str
    sharding: str
    world_size: int
    parameters: int
    accuracy: Accuracy
    speeds: Mapping[str, Speed] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """In a line."""
        speeds = "".join(f"; {link}: {speed.text}" for link, speed in self.speeds.items())
        where = f"{self.workload} ({size(self.parameters)}), {self.sharding}, n = {self.world_size}"
        return f"{self.sweep}, {self.arm}: {where}: {self.accuracy.text}{speeds}"


def configuration(algorithm: str, options: Mapping[str, Any]) -> str:
    """A method with its own options filled in, as a text to compare. Raises ValueError for what cannot be."""
    part = resolve_algorithm(algorithm, options, NOMINAL_WORKERS, NOMINAL_STEPS)
    fields = {field.name for field in dataclasses.fields(registry.load(algorithm))}
    return canonical_json(
        {"algorithm": algorithm, **{key: value for key, value in part.options.items() if key in fields}}
    )


@cache
def studies(results_root: Path) -> tuple[Study, ...]:
    """All settings of the summaries that are there and whose sweep is, controls and uncompressed runs left out."""
    return tuple(study for name in studies_of(results_root) for study in _settings_of(results_root, name))


def _settings_of(results_root: Path, name: str) -> Iterator[Study]:
    """The settings of one study."""
    try:
        sweep = load_sweep(name)
    except UnknownSweepError:
        return
    configurations, speeds = _configurations(sweep), _speeds(results_root, name)
    workloads = {choice.label: get(choice.name, **choice.options) for choice in sweep.workloads}
    parameters = {
        label: sum(value.numel() for value in workload.build().parameters())
        for label, workload in workloads.items()
    }
    summary = read_frame(find_table(results_root, SUMMARY, name), SUMMARY)
    summary = summary[summary["baseline"].notna() & ~summary["control"].fillna(False)]
    summary = summary[summary["arm"].isin(list(configurations)) & summary["workload"].isin(list(workloads))]
    sensitivity = read_frame(find_table(results_root, SENSITIVITY, name), SENSITIVITY)
    sensitivity = sensitivity[[*SETTING, "sensitive", "reason"]].rename(columns={"reason": "blind"})
    for row in rows_of(summary.merge(sensitivity, on=list(SETTING), how="left", validate="many_to_one")):
        arm, workload, sharding, workers = (row[c] for c in ("arm", "workload", "sharding", "world_size"))
        yield Study(
            name,
            arm,
            configurations[arm],
            workload,
            sharding,
            workers,
            parameters[workload],
            accuracy(
                row,
                higher=workloads[workload].direction == "higher",
                not_sensitive="" if row["sensitive"] else row["blind"],
            ),
            speeds.get((arm, sharding, workers), {}),
        )


def _speeds(results_root: Path, sweep: str) -> dict[tuple[str, str, int], dict[str, Speed]]:
    """(arm, sharding, workers) -> link -> speed, of the sessions of a sweep."""
    speeds: dict[tuple[str, str, int], dict[str, Speed]] = {}
    for name in sessions_of(sweep):
        facts = load_facts(results_root, name)
        if facts is None:
            continue
        links = {link["label"]: link for link in facts["links"]}
        timed = read_frame(find_table(results_root, ARMS, f"{SESSION}{name}"), ARMS)
        for row in rows_of(timed):
            by_link = speeds.setdefault((row["arm"], row["sharding"], facts["world_size"]), {})
            by_link[row["link"]] = speed(row, links[row["link"]])
    return speeds


def _configurations(sweep: Sweep) -> dict[str, str]:
    """Arm -> configuration; arms whose options follow the learning rate have none."""
    return {
        label: configuration(arm.algorithm, arm.options)
        for label, arm in sweep.arms.items()
        if not arm.per_lr
    }


def of_round(configured: str, steps: int) -> str:
    """The configuration that makes rounds of so many steps out of one of another period; empty where no option says so."""
    options = json.loads(configured)
    return canonical_json({**options, "period": steps}) if "period" in options else ""


def of_configuration(wanted: str, studies: Iterable[Study]) -> list[Study]:
    """The studies of a configuration."""
    return [study for study in studies if study.configuration == wanted]


def best_known(studies: Sequence[Study]) -> list[Study]:
    """Of each workload, sharding and number of workers the study with most seeds; of several the first."""
    best: dict[tuple[str, str, int], Study] = {}
    for study in studies:
        setting = (study.workload, study.sharding, study.world_size)
        if study.accuracy.pairs > best.setdefault(setting, study).accuracy.pairs:
            best[setting] = study
    return list(best.values())


def shown_worse(studies: Sequence[Study]) -> bool:
    """Whether i.i.d. data, where there are most seeds, show the method to be worse."""
    return any(study.accuracy.word == "worse by" for study in best_known(studies) if study.sharding == "iid")


def verdict(studies: Sequence[Study], parameters: float) -> str:
    """What is known of a method's accuracy for a model of that many parameters, in a line.

    Args:
        studies: Those of exactly its configuration.
        parameters: Of the model that is asked about.

    Returns:
        Both shardings of the workload and number of workers with most seeds, each with its own words; for a model of more than
        `LARGER` times the size *not known*, and what was measured at which size.
    """
    best = best_known(studies)
    if not best:
        return "not known"
    most = max(best, key=lambda study: (study.accuracy.word != "not known", study.accuracy.pairs))
    beside = [
        study for study in best if (study.workload, study.world_size) == (most.workload, most.world_size)
    ]
    beside.sort(key=lambda study: (study.sharding not in SHARDINGS, study.sharding != "iid", study.sharding))
    words = ", ".join(
        f"{SHARDINGS.get(study.sharding, study.sharding)} {study.accuracy.short}" for study in beside
    )
    if parameters > LARGER * most.parameters:
        return f"measured on {size(most.parameters)}: {words}; for {size(parameters)}: not known"
    return words


def size(parameters: float) -> str:
    """`0.30 M parameters`, `110 M parameters`, `200 parameters`."""
    if parameters < 1e5:
        return f"{parameters:,.0f} parameters"
    return f"{parameters / 1e6:.{2 if parameters < 1e7 else 0}f} M parameters"


# ---- advice

RATES: Final = (1e6, 1e13)
"""Bits a second between which a break-even is looked for."""
ALL_REDUCE: Final = "all-reduce "
"""Before the precision, in the names of torch's DDP."""
REFERENCES: Final = ("fp32", "bf16")
SIZES: Final = (4 << 20, 25 << 20)
"""Bytes of fp32 in a method's buckets, of which the fastest counts."""
CAPS_BYTES: Final = (1 << 20, 25 << 20)
"""Sizes of DDP's buckets that are tried; the fastest counts."""


class AdviceError(ValueError):
    """A question that cannot be answered; the message says what to give."""


@dataclass(frozen=True)
class Question:
    """What is asked. Raises `AdviceError`.

    parameters: of the model. compute_s: forward, backward and update of a step on a worker while the others compute too.
    rate_bps, delay_s: of each worker's link. bucket_sizes: of a method's buckets, bytes of fp32, of which the fastest counts.
    cores: processors that the workers share; None: every worker has its own machine. node_size: consecutive workers that share
    the link of their node, and are joined by node_rate_bps among themselves. shapes: of the model's parameters, in order,
    where they are known; else buckets of equal sizes and the matrices of a transformer stand in for them.
    """

    parameters: float
    workers: int
    rate_bps: float
    compute_s: float
    delay_s: float = 0.0
    bucket_sizes: tuple[int, ...] = SIZES
    cores: int | None = None
    node_size: int = 1
    node_rate_bps: float = math.inf
    shapes: tuple[tuple[int, ...], ...] = ()

    def __post_init__(self) -> None:
        for name, value, least in (
            ("parameters", self.parameters, 1), ("workers", self.workers, 2), ("rate", self.rate_bps, 1),
            ("compute", self.compute_s, 0), ("delay", self.delay_s, 0), ("bucket size in bytes", min(self.bucket_sizes), 4096),
            ("cores", 1 if self.cores is None else self.cores, 1), ("ranks a node", self.node_size, 1),
            ("node rate", self.node_rate_bps, 1),
        ):  # fmt: skip
            if not value >= least or (math.isinf(value) and not name.endswith("rate")):
                raise AdviceError(f"{name} is {value}: give a number of at least {least}")
        if self.workers % self.node_size:
            raise AdviceError(f"{self.workers} workers do not divide into nodes of {self.node_size}")

    @property
    def crowd(self) -> float:
        """Workers that share a processor, at least 1."""
        return 1.0 if self.cores is None else max(1.0, self.workers / self.cores)


@dataclass(frozen=True)
class Predicted:
    """A method's answer. step_s: a step, mean over the kinds that a training takes. wire_bytes: sent a step and worker.
    break_even: reference -> bits a second below which it is faster than that reference; inf: always, 0: never. bucket_bytes:
    size of the buckets with which a method is fastest.
    """

    label: str
    algorithm: str
    step_s: float
    wire_bytes: float
    local_s: float
    break_even: Mapping[str, float]
    refused: str = ""
    configuration: str = ""
    bucket_bytes: int = 0


def reference_recipes(precision: str, question: Question) -> list[Recipe]:
    """What torch's DDP may send in one precision: by buckets of the question's sizes, and of its own."""
    caps = sorted({*question.bucket_sizes, *CAPS_BYTES})
    if question.shapes:
        return [ddp_recipe(precision, max(1, cap >> 20), question.shapes, question.workers) for cap in caps]
    width, dtype = DDP_BYTES[precision]
    recipes = []
    for count in sorted({max(1, round(4 * question.parameters / cap)) for cap in caps}):
        size = question.parameters / count
        bucket = Bucket(
            1 / count, (Request("all-reduce", "gradient", question.workers, width * size, dtype),)
        )
        recipes.append(Recipe((Step("step", (), (bucket,) * count, ()),)))
    return recipes


@dataclass(frozen=True)
class Ways:
    """A method's steps in the setting of a question, by the size of its buckets, of which the fastest counts: (share of the
    steps, what is sent, seconds without messages) of every kind of step."""

    parts: Mapping[int, Sequence[tuple[float, Recipe, Local]]]
    overlap: Overlap

    def cut(self, at: Network, size: int) -> float:
        """Seconds a step with buckets of `size` bytes."""
        return sum(
            share * unit_seconds(recipe, local, at, self.overlap) / len(recipe.steps)
            for share, recipe, local in self.parts[size]
        )

    def best(self, at: Network) -> int:
        """The size with which it is fastest."""
        return min(self.parts, key=lambda size: self.cut(at, size))

    def seconds(self, at: Network) -> float:
        """Seconds a step with the fastest of its sizes."""
        return min(self.cut(at, size) for size in self.parts)


def ways_of(candidate: Candidate, question: Question, overlap: Overlap) -> Ways:
    """How a candidate steps. Raises `RecipeError` or `UnsupportedError` where it cannot with so many workers."""
    return Ways({size: _parts(candidate, question, size) for size in question.bucket_sizes}, overlap)


def reference_steps(question: Question, overlap: Overlap) -> dict[str, Callable[[Network], float]]:
    """Precision -> seconds a step of torch's DDP on a network, with the fastest of its bucket sizes."""
    plain = Local(question.compute_s)

    def of(recipes: Sequence[Recipe]) -> Callable[[Network], float]:
        return lambda at: min(unit_seconds(recipe, plain, at, overlap) for recipe in recipes)

    return {name: of(reference_recipes(name, question)) for name in REFERENCES}


def advise(
    question: Question, methods: Sequence[Candidate], model: Model, *, break_even: bool = True
) -> list[Predicted]:
    """The references and all candidates, the fastest first; those that refuse so many workers last.

    break_even: whether to look for the rates below which each pays, which takes a hundred predictions.
    """
    network = network_of(question, model.backend)
    steps = reference_steps(question, model.overlap)
    compared = steps if break_even else {}
    predictions = [
        Predicted(
            f"{ALL_REDUCE}{name}", "", step(network), _sent(reference_recipes(name, question)[0]), question.compute_s,
            {other: _break_even(step, compared[other], network) for other in compared if other != name},
        )
        for name, step in steps.items()
    ]  # fmt: skip
    predictions += [_predicted(method, question, network, compared, model.overlap) for method in methods]
    return sorted(predictions, key=lambda method: (bool(method.refused), method.step_s))


def network_of(question: Question, backend: Backend) -> Network:
    """The network that a question is about."""
    flat = backend.network(question.rate_bps, question.delay_s, question.crowd)
    if question.node_size == 1:
        return flat
    within = replace(flat, rate_bps=question.node_rate_bps, delay_s=0.0)
    return replace(flat, node_size=question.node_size, within=within)


def _predicted(
    candidate: Candidate,
    question: Question,
    network: Network,
    references: Mapping[str, Callable[[Network], float]],
    overlap: Overlap,
) -> Predicted:
    try:
        ways = ways_of(candidate, question, overlap)
    except (RecipeError, UnsupportedError) as error:
        return Predicted(
            candidate.label,
            candidate.algorithm,
            math.inf,
            math.nan,
            math.nan,
            {},
            str(error),
            candidate.configuration,
        )
    best = ways.best(network)
    return Predicted(
        candidate.label,
        candidate.algorithm,
        ways.cut(network, best),
        sum(share * _sent(recipe) / len(recipe.steps) for share, recipe, _ in ways.parts[best]),
        sum(share * local.total_s for share, _, local in ways.parts[best]),
        {name: _break_even(ways.seconds, reference, network) for name, reference in references.items()},
        configuration=candidate.configuration,
        bucket_bytes=best,
    )


def _parts(candidate: Candidate, question: Question, bucket_bytes: int) -> list[tuple[float, Recipe, Local]]:
    return [
        (share, *_kind(candidate, kind, question, bucket_bytes))
        for kind, share in candidate.shares.items()
        if share > 0
    ]


def _kind(candidate: Candidate, kind: str, question: Question, bucket_bytes: int) -> tuple[Recipe, Local]:
    size, n, node = question.parameters, question.workers, question.node_size
    if question.shapes:
        recipe = method_recipe(candidate.cases[kind], question.shapes, n, bucket_bytes, node)
    else:
        recipe = synthetic_recipe(candidate.method(kind), kind, size, n, bucket_bytes, node)
    codec = candidate.overhead[kind].at(size).scaled(question.crowd)
    gathers = any(
        request.collective == "all-gather" and step.buckets
        for step in recipe.steps
        for request in step.requests()
    )
    decoding = codec.decode_s * (
        question.workers / candidate.world_size if gathers and not _two_phase(recipe) else 1.0
    )
    return recipe, Local(question.compute_s, codec.encode_s, decoding, codec.update_s)


def _two_phase(recipe: Recipe) -> bool:
    return any(request.collective == "all-to-all" for step in recipe.steps for request in step.requests())


def _sent(recipe: Recipe) -> float:
    """Bytes a rank sends in a unit, by the optimal form of each collective."""
    return sum(
        FORMS[OF_PROBE[measured_as(request)]].sent(request.ranks) * request.nbytes
        for step in recipe.steps
        for request in step.requests()
    )


def _break_even(
    method: Callable[[Network], float], reference: Callable[[Network], float], network: Network
) -> float:
    """Bits a second below which a method is faster than a reference: inf where it always is, 0 where it never is."""

    def faster(rate: float) -> bool:
        at = replace(network, rate_bps=rate)
        return method(at) < reference(at)

    low, high = RATES
    if faster(high):
        return math.inf
    if not faster(low):
        return 0.0
    for _ in range(60):
        between = math.sqrt(low * high)
        low, high = (between, high) if faster(between) else (low, between)
    return low


def rates_between(low: float, high: float, count: int) -> list[float]:
    """Rates evenly apart on a logarithmic axis."""
    return [low * (high / low) ** (i / (count - 1)) for i in range(count)]
