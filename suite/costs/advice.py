"""Which method to run: the methods, predicted seconds a step, where each pays; without torch, pandas or numpy.

*Candidates.* A candidate is a method of a session, in the configuration that was timed there; of a local method one for each
length of its rounds. Its codec's seconds are those of the sessions' machine, a thread for a rank (`CodecOverhead`), or those
that the rules of published measurements give a class of devices.

*Advice.* A prediction is the cost model's (`suite.costs.step`), with the computing that the user states. What is sent follows
from the model's shapes, or from a synthetic model of its size (`Traffic`). Where nothing overlaps the model is one bucket.

*Kept.* All that answers need stands in `costs-model.json`: the model, the methods with what they send on some numbers of
workers, what studies say of their accuracy, the rules, and the hash of all tables that it was made of. Where those have changed,
or a question needs what is not there, `suite.costs.methods` makes it anew, which takes a minute.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from reference_impls.errors import UnsupportedError
from reference_impls.requests import Bucket, Request, Step
from suite.costs.step import (
    DDP_BYTES,
    Backend,
    Codec,
    CodecOverhead,
    Local,
    Model,
    Network,
    Overlap,
    Price,
    Recipe,
    RecipeError,
    Stack,
    Traffic,
    sent_bytes,
    unit_seconds,
)
from suite.links.link import ALL_GATHER, ALL_TO_ALL
from suite.timing.case import Case

if TYPE_CHECKING:
    from reference_impls.registry import Method

# ---- candidates


@dataclass(frozen=True)
class Candidate:
    """A method with its kinds of steps. name: as `create` takes it, with the options that are not its defaults,
    ``local-sgd:period=16`` (`bandwise try --methods` reads that); label: of its session. configuration: for its studies
    (`Study`). shares: kind -> share of the
    steps of a training. overhead: kind -> seconds that a step computes beyond forward, backward and the plain update, on one
    core, by the size of the model. world_size, parameters: ranks and largest model with which it was timed.
    family: of the method. traffic: what each kind of steps sends, by the number of workers, or why it cannot; where it is not
    there it is asked.
    """

    label: str
    algorithm: str
    configuration: str
    cases: Mapping[str, Case]
    shares: Mapping[str, float]
    overhead: Mapping[str, CodecOverhead]
    world_size: int
    parameters: int
    family: str = ""
    name: str = ""
    traffic: Mapping[str, Mapping[int, Traffic | str]] = field(default_factory=dict)

    def method(self, kind: str) -> Method:
        """Configured to take steps of that kind."""
        from suite.timing.cases import method_of

        return method_of(self.cases[kind])

    def recipe(self, kind: str, question: Question, bucket_bytes: float) -> Recipe:
        """What a unit of such steps sends. Raises `RecipeError` or `UnsupportedError` where it cannot with so many workers."""
        n = question.workers
        if question.shapes:
            from suite.costs.samples import method_recipe

            return method_recipe(self.cases[kind], question.shapes, n, int(bucket_bytes))
        kept = self.traffic.get(kind, {}).get(n)
        if isinstance(kept, str):
            raise RecipeError(kept)
        if kept is None:
            from suite.costs.recipe import traffic_of

            kept = traffic_of(self.method(kind), kind, n)
        return kept.recipe(question.parameters, bucket_bytes)


# ---- evidence: what studies say of accuracy

LARGER: Final = 10.0
"""A model of more than so many times the parameters is another one: what a study says is not carried over."""
SHARDINGS: Final = {"iid": "i.i.d.", "by-class": "by class", "by-package": "by package"}


class Told(Protocol):
    """What has words."""

    @property
    def text(self) -> str:
        """In a line."""


class Judged(Told, Protocol):
    """What a study says of accuracy (`suite.analysis.evidence.Accuracy`)."""

    @property
    def word(self) -> str:
        """The judgement."""

    @property
    def pairs(self) -> int:
        """Seeds."""

    @property
    def short(self) -> str:
        """With the size of the difference."""


@dataclass(frozen=True)
class Said:
    """The same, from a file."""

    word: str
    pairs: int
    short: str
    text: str


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
    accuracy: Judged
    speeds: Mapping[str, Told] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """In a line."""
        where = f"{self.workload} ({size(self.parameters)}), {self.sharding}, n = {self.world_size}"
        return f"{self.sweep}, {self.arm}: {where}: {self.told}"

    @property
    def told(self) -> str:
        """What it says, of accuracy and of speed."""
        speeds = "".join(f"; {link}: {speed.text}" for link, speed in self.speeds.items())
        return f"{self.accuracy.text}{speeds}"


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


# ---- the question

RATES: Final = (1e6, 1e13)
"""Bits a second between which a break-even is looked for."""
ALL_REDUCE: Final = "all-reduce "
"""Before the precision, in the names of torch's DDP."""
REFERENCES: Final = ("fp32", "bf16")
SIZES: Final = (4 << 20, 25 << 20)
"""Bytes of fp32 in a method's buckets, of which the fastest counts."""
CAPS_BYTES: Final = (1 << 20, 25 << 20)
"""Sizes of DDP's buckets that are tried; the fastest counts."""
WHOLE: Final = math.inf
"""Bytes of a bucket that is the model, whatever its size."""
OWN: Final = "gloo"
"""The transport whose prices are fitted here."""
HOST: Final = "cpu"
"""The class of devices that processors are."""
NCCL: Final = "nccl"
"""Before the names of transports that carry buffers of GPUs alone."""


class AdviceError(ValueError):
    """A question that cannot be answered; the message says what to give."""


@dataclass(frozen=True)
class Constants:
    """Of the rules by which published measurements are predicted (`results/external/rules.yaml`): stacks by name, Gbyte/s of the
    devices' memory, passes of codecs."""

    stacks: Mapping[str, Stack]
    devices: Mapping[str, float]
    codecs: Mapping[str, Codec]


@dataclass(frozen=True)
class Question:
    """What is asked. Raises `AdviceError`.

    parameters: of the model. compute_s: forward, backward and update of a step on a worker while the others compute too.
    rate_bps, delay_s: of each worker's link. bucket_sizes: of a method's buckets, bytes of fp32, of which the fastest counts.
    cores: processors that the workers share; None: every worker has its own machine. shapes: of the model's parameters, in order,
    where they are known; else buckets of equal sizes and the matrices of a transformer stand in for them. overlap: whether
    computing and communication do. transport, device: of the rules, `constants`; no device: codecs as this project timed them.
    """

    parameters: float
    workers: int
    rate_bps: float
    compute_s: float
    delay_s: float = 0.0
    bucket_sizes: tuple[int, ...] = SIZES
    cores: int | None = None
    shapes: tuple[tuple[int, ...], ...] = ()
    overlap: bool = True
    transport: str = OWN
    device: str = ""
    constants: Constants | None = None

    def __post_init__(self) -> None:
        for name, value, least in (
            ("parameters", self.parameters, 1), ("workers", self.workers, 2), ("rate", self.rate_bps, 1),
            ("compute", self.compute_s, 0), ("delay", self.delay_s, 0), ("bucket size in bytes", min(self.bucket_sizes), 4096),
            ("cores", 1 if self.cores is None else self.cores, 1),
        ):  # fmt: skip
            if not value >= least or (math.isinf(value) and not name.endswith("rate")):
                raise AdviceError(f"{name} is {value}: give a number of at least {least}")
        self._check_rules()

    def _check_rules(self) -> None:
        rules = self.constants or Constants({OWN: Stack(fitted=True)}, {}, {})
        for option, name, names in (
            ("transport", self.transport, rules.stacks),
            ("device", self.device, rules.devices),
        ):
            if name and name not in names:
                raise AdviceError(
                    f"--{option} {name}: the rules know {', '.join(names) or 'none'}; add it to "
                    "results/external/rules.yaml and run `bandwise costs keep`"
                )
        if self.transport.startswith(NCCL) and self.device in ("", HOST):
            gpus = ", ".join(name for name in rules.devices if name != HOST)
            raise AdviceError(
                f"--transport {self.transport} carries buffers of GPUs: give --device ({gpus}), or --transport {OWN}"
            )
        if self.cores is not None and (self.device or self.transport != OWN):
            raise AdviceError(
                "--cores is of workers emulated on processors, with the codecs and the backend that were timed there: leave out "
                "--device and --transport, or --cores"
            )
        if not self.overlap and self.shapes:
            raise AdviceError(
                "--no-overlap exchanges the model as one buffer: give --params in place of --shapes"
            )

    @property
    def crowd(self) -> float:
        """Workers that share a processor, at least 1."""
        return 1.0 if self.cores is None else max(1.0, self.workers / self.cores)

    @property
    def buckets(self) -> tuple[float, ...]:
        """Sizes of a method's buckets that are tried."""
        return self.bucket_sizes if self.overlap else (WHOLE,)

    @property
    def elsewhere(self) -> bool:
        """Whether it is about a device or a transport that this project has not timed."""
        return bool(self.device) or self.transport != OWN


# ---- the answer


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
    bucket_bytes: float = 0
    name: str = ""


Seconds = Callable[[Network], float]


def reference_recipes(precision: str, question: Question) -> list[Recipe]:
    """What torch's DDP may send in one precision: by buckets of the question's sizes, and of its own."""
    caps = sorted({*question.buckets, *CAPS_BYTES}) if question.overlap else [WHOLE]
    if question.shapes:
        from suite.costs.samples import ddp_recipe

        return [
            ddp_recipe(precision, max(1, int(cap) >> 20), question.shapes, question.workers) for cap in caps
        ]
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

    parts: Mapping[float, Sequence[tuple[float, Recipe, Local]]]
    overlap: Overlap

    def cut(self, at: Network, size: float) -> float:
        """Seconds a step with buckets of `size` bytes."""
        return sum(
            share * unit_seconds(recipe, local, at, self.overlap) / len(recipe.steps)
            for share, recipe, local in self.parts[size]
        )

    def best(self, at: Network) -> float:
        """The size with which it is fastest."""
        return min(self.parts, key=lambda size: self.cut(at, size))

    def seconds(self, at: Network) -> float:
        """Seconds a step with the fastest of its sizes."""
        return min(self.cut(at, size) for size in self.parts)


def ways_of(candidate: Candidate, question: Question, overlap: Overlap) -> Ways:
    """How a candidate steps. Raises `RecipeError` or `UnsupportedError` where it cannot in such a setting."""
    return Ways({size: _parts(candidate, question, size) for size in question.buckets}, overlap)


def reference_steps(question: Question, overlap: Overlap) -> dict[str, Seconds]:
    """Precision -> seconds a step of torch's DDP on a network, with the fastest of its bucket sizes."""
    plain = Local(question.compute_s)

    def of(recipes: Sequence[Recipe]) -> Seconds:
        return lambda at: min(unit_seconds(recipe, plain, at, overlap) for recipe in recipes)

    return {name: of(reference_recipes(name, question)) for name in REFERENCES}


def advise(
    question: Question, methods: Sequence[Candidate], model: Model, *, break_even: bool = True
) -> list[Predicted]:
    """The references and all candidates, the fastest first; those that refuse such a setting last.

    break_even: whether to look for the rates below which each pays, which takes a hundred predictions.
    """
    network = network_of(question, model.backend)
    steps = {name: _once(step) for name, step in reference_steps(question, model.overlap).items()}
    compared = steps if break_even else {}
    predictions = [
        Predicted(
            f"{ALL_REDUCE}{name}", "", step(network), sent_bytes(reference_recipes(name, question)[0]), question.compute_s,
            {other: _break_even(step, compared[other], network) for other in compared if other != name},
        )
        for name, step in steps.items()
    ]  # fmt: skip
    predictions += [_predicted(method, question, network, compared, model.overlap) for method in methods]
    return sorted(predictions, key=lambda method: (bool(method.refused), method.step_s))


def _once(step: Seconds) -> Seconds:
    """The same, asked once a rate."""
    known: dict[float, float] = {}

    def seconds(at: Network) -> float:
        if at.rate_bps not in known:
            known[at.rate_bps] = step(at)
        return known[at.rate_bps]

    return seconds


def network_of(question: Question, backend: Backend) -> Network:
    """The network that a question is about."""
    stack = question.constants.stacks[question.transport] if question.constants else Stack(fitted=True)
    return stack.network(backend, question.rate_bps, question.delay_s, question.crowd)


def _predicted(
    candidate: Candidate,
    question: Question,
    network: Network,
    references: Mapping[str, Seconds],
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
            name=candidate.name,
        )
    best = ways.best(network)
    step = _once(ways.seconds)
    return Predicted(
        candidate.label,
        candidate.algorithm,
        ways.cut(network, best),
        sum(share * sent_bytes(recipe) / len(recipe.steps) for share, recipe, _ in ways.parts[best]),
        sum(share * local.total_s for share, _, local in ways.parts[best]),
        {name: _break_even(step, reference, network) for name, reference in references.items()},
        configuration=candidate.configuration,
        bucket_bytes=min(best, 4 * question.parameters),
        name=candidate.name,
    )


def _parts(
    candidate: Candidate, question: Question, bucket_bytes: float
) -> list[tuple[float, Recipe, Local]]:
    return [
        (share, *_kind(candidate, kind, question, bucket_bytes))
        for kind, share in candidate.shares.items()
        if share > 0
    ]


def _kind(candidate: Candidate, kind: str, question: Question, bucket_bytes: float) -> tuple[Recipe, Local]:
    recipe = candidate.recipe(kind, question, bucket_bytes)
    sent = [request for step in recipe.steps for request in (*step.plan, *_of_buckets(step), *step.after)]
    gathers = any(request.collective == ALL_GATHER for step in recipe.steps for request in _of_buckets(step))
    decoded = gathers and not any(request.collective == ALL_TO_ALL for request in sent)
    if question.device and question.constants:
        codec = question.constants.codecs[_codec_of(candidate, kind, recipe, question)].seconds(
            question.parameters, question.constants.devices[question.device]
        )
        times: float = question.workers if decoded else 1
    else:
        codec = candidate.overhead[kind].at(question.parameters).scaled(question.crowd)
        times = question.workers / candidate.world_size if decoded else 1
    return recipe, Local(question.compute_s, codec.encode_s, times * codec.decode_s, codec.update_s)


def _of_buckets(step: Step) -> tuple[Request, ...]:
    """Those of its first bucket, which stand for all."""
    return step.buckets[0].requests if step.buckets else ()


FLOATS: Final = {"float32": "none", "bfloat16": "cast", "float16": "cast"}
"""Codec of the rules by what is sent."""


def _codec_of(candidate: Candidate, kind: str, recipe: Recipe, question: Question) -> str:
    """The codec of the rules that a kind of steps has, by what it sends. Raises `RecipeError` where there is no rule."""
    requests = list(recipe.steps[-1].requests())
    sent = sum(request.nbytes for request in requests)
    dtypes = {request.dtype for request in requests if request.nbytes * len(requests) > 0.01 * sent}
    (dtype,) = dtypes if len(dtypes) == 1 else ("",)
    width = 4 if dtype == "float32" else 2
    if dtype in FLOATS and sent > 0.99 * width * question.parameters:
        return FLOATS[dtype]
    if dtype in FLOATS:
        raise RecipeError(
            f"{candidate.label} ({kind}): the rules say of no codec that sends fewer floats what it takes on {question.device}; "
            "leave out --device, or add a rule to results/external/rules.yaml"
        )
    return "sparse" if candidate.family == "sparsifier" else "round"


NEAR: Final = 1e-5
"""Relative width at which the search for a break-even ends."""


def _break_even(method: Seconds, reference: Seconds, network: Network) -> float:
    """Bits a second below which a method is faster than a reference: inf where it always is, 0 where it never is.

    A sign is bracketed by halving and by the secant in turn, on logarithmic axes.
    """

    def behind(log_rate: float) -> float:
        at = replace(network, rate_bps=math.exp(log_rate))
        return math.log(max(method(at), 1e-300) / max(reference(at), 1e-300))

    low, high = map(math.log, RATES)
    last = behind(high)
    if last < 0:
        return math.inf
    first = behind(low)
    if first >= 0:
        return 0.0
    halve = True
    while high - low > NEAR:
        secant = (low * last - high * first) / (last - first)
        halve = halve or not low + NEAR / 2 < secant < high - NEAR / 2
        between = (low + high) / 2 if halve else secant
        found = behind(between)
        halve = not halve
        if found < 0:
            low, first = between, found
        else:
            high, last = between, found
    return math.exp(low)


def rates_between(low: float, high: float, count: int) -> list[float]:
    """Rates evenly apart on a logarithmic axis."""
    return [low * (high / low) ** (i / (count - 1)) for i in range(count)]


# ---- what is kept

NAME: Final = "costs-model.json"
"""In `tables/`, of the results folder or of what is published."""
TABLES: Final = (
    "collectives*", "session-*-cases.csv", "session-*-facts.json", "session-*-arms.csv", "*-summary.csv", "*-sensitivity.csv",
    "costs-score.csv", "external-score.csv",
)  # fmt: skip
"""Files that advice is made of."""
RULES: Final = Path(__file__).resolve().parents[2] / "results" / "external" / "rules.yaml"
"""By which published measurements are predicted, and other devices and transports."""


@dataclass(frozen=True)
class Kept:
    """All that answers are made of. errors: of the model, with a value not seen before: of which column, n, median, worst.
    elsewhere: median error over published measurements, the larger of open and held-back ones; None where neither was
    scored. timed_on: the processor.
    """

    model: Model
    methods: Sequence[Candidate]
    studies: Sequence[Study]
    errors: Sequence[Mapping[str, Any]]
    elsewhere: float | None
    constants: Constants
    timed_on: str
    cores: int

    def band(self, question: Question) -> float | None:
        """Relative error that half of the predictions of such a question do not exceed; None where nothing was scored.

        Of this project's codecs and backend the largest median of its own score; of other devices and transports that of
        published measurements.
        """
        if question.elsewhere or not question.overlap:
            return self.elsewhere
        return max((row["median_error"] for row in self.errors), default=None)


def made_of(results_root: Path) -> str:
    """SHA-256 of the tables and rules that advice is made of: those in a results folder and those published in it."""
    digest = hashlib.sha256()
    for folder in (results_root / "tables", results_root / "published" / "tables"):
        for path in sorted({path for pattern in TABLES for path in folder.glob(pattern)}):
            digest.update(path.name.encode())
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    digest.update(RULES.read_bytes())
    return digest.hexdigest()


def read_kept(results_root: Path) -> Kept | None:
    """What is kept here of the tables here and published, else what is published of the published ones alone.

    Tables made here count from the next `bandwise costs keep` on. None where neither is of its tables as they are now.
    """
    for root in (results_root, results_root / "published"):
        try:
            kept = json.loads((root / "tables" / NAME).read_text(encoding="utf-8"))
        except FileNotFoundError:
            continue
        if kept.get("advice", {}).get("made_of") == made_of(root):
            return _kept(kept)
    return None


def model_from(kept: Mapping[str, Any]) -> Model:
    """The model of a file."""
    backend = dict(kept["backend"])
    prices = {name: Price(**price) for name, price in backend.pop("prices").items()}
    return Model(Backend(prices=prices, **backend), Overlap(**kept["overlap"]))


def _kept(kept: Mapping[str, Any]) -> Kept:
    advice = kept["advice"]
    rules = advice["constants"]
    return Kept(
        model_from(kept),
        [_candidate(one) for one in advice["methods"]],
        [Study(**{**one, "accuracy": Said(**one["accuracy"])}) for one in advice["studies"]],
        advice["errors"],
        advice["elsewhere"],
        Constants(
            {name: Stack(**stack) for name, stack in rules["stacks"].items()},
            rules["devices"],
            {name: Codec(**codec) for name, codec in rules["codecs"].items()},
        ),
        advice["timed_on"],
        advice["cores"],
    )


def _candidate(kept: Mapping[str, Any]) -> Candidate:
    overhead = {
        kind: CodecOverhead(Local(**one["fixed"]), Local(**one["each"]), one["largest"])
        for kind, one in kept["overhead"].items()
    }
    traffic = {
        kind: {
            int(n): one if isinstance(one, str) else Traffic.from_json(one, int(n))
            for numbers, one in of
            for n in numbers
        }
        for kind, of in kept["traffic"].items()
    }
    cases = {kind: Case.from_dict(case) for kind, case in kept["cases"].items()}
    return Candidate(**{**kept, "overhead": overhead, "traffic": traffic, "cases": cases})


def kept_json(kept: Kept, results_root: Path) -> dict[str, Any]:
    """The part of the file that `read_kept` reads beside the model; numbers of workers that send the same stand together."""

    def traffic(of: Mapping[int, Traffic | str]) -> list[list[Any]]:
        alike: list[list[Any]] = []
        for n, one in of.items():
            plain = one if isinstance(one, str) else one.as_json()
            same = next((entry for entry in alike if entry[1] == plain), None)
            if same is None:
                alike.append([[n], plain])
            else:
                same[0].append(n)
        return alike

    return {
        "made_of": made_of(results_root),
        "methods": [
            {
                **{name: getattr(one, name) for name in (
                    "label", "algorithm", "configuration", "world_size", "parameters", "family", "name",
                )},
                "shares": dict(one.shares),
                "cases": {kind: case.as_dict() for kind, case in one.cases.items()},
                "overhead": {kind: asdict(overhead) for kind, overhead in one.overhead.items()},
                "traffic": {kind: traffic(of) for kind, of in one.traffic.items()},
            }
            for one in kept.methods
        ],
        "studies": [
            {
                **{name: getattr(one, name) for name in (
                    "sweep", "arm", "configuration", "workload", "sharding", "world_size", "parameters",
                )},
                "accuracy": {
                    "word": one.accuracy.word, "pairs": one.accuracy.pairs, "short": one.accuracy.short, "text": one.told,
                },
            }
            for one in kept.studies
        ],
        "errors": [dict(row) for row in kept.errors],
        "elsewhere": kept.elsewhere,
        "constants": asdict(kept.constants),
        "timed_on": kept.timed_on,
        "cores": kept.cores,
    }  # fmt: skip
