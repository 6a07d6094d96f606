"""Which method to run: predicted seconds a step of every candidate for a model, a link and a number of workers.

A prediction is the cost model's (`suite.costs.timeline`), with the computing that the user states and the codecs that were
timed here. What is sent follows from the model's shapes, or a stand-in of its size (`suite.costs.stand_in`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from reference_impls.errors import UnsupportedError
from suite.costs.candidates import Candidate
from suite.costs.model import Model
from suite.costs.network import FORMS, OF_PROBE, Backend, Network, measured_as
from suite.costs.recipe import Bucket, Recipe, RecipeError, Request, Step
from suite.costs.samples import DDP_BYTES, ddp_recipe, own_recipe
from suite.costs.stand_in import large_recipe
from suite.costs.timeline import Local, Overlap, unit_seconds

RATES: Final = (1e6, 1e13)
"""Bits a second between which a break-even is looked for."""
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
    found = []
    for count in sorted({max(1, round(4 * question.parameters / cap)) for cap in caps}):
        size = question.parameters / count
        bucket = Bucket(
            1 / count, (Request("all-reduce", "gradient", question.workers, width * size, dtype),)
        )
        found.append(Recipe((Step("step", (), (bucket,) * count, ()),)))
    return found


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
    question: Question, known: Sequence[Candidate], model: Model, *, break_even: bool = True
) -> list[Predicted]:
    """The references and all candidates, the fastest first; those that refuse so many workers last.

    break_even: whether to look for the rates below which each pays, which takes a hundred predictions.
    """
    network = network_of(question, model.backend)
    steps = reference_steps(question, model.overlap)
    compared = steps if break_even else {}
    found = [
        Predicted(
            f"all-reduce {name}", "", step(network), _sent(reference_recipes(name, question)[0]), question.compute_s,
            {other: _break_even(step, compared[other], network) for other in compared if other != name},
        )
        for name, step in steps.items()
    ]  # fmt: skip
    found += [_answer(candidate, question, network, compared, model.overlap) for candidate in known]
    return sorted(found, key=lambda one: (bool(one.refused), one.step_s))


def network_of(question: Question, backend: Backend) -> Network:
    """The network that a question is about."""
    flat = backend.network(question.rate_bps, question.delay_s, question.crowd)
    if question.node_size == 1:
        return flat
    within = replace(flat, rate_bps=question.node_rate_bps, delay_s=0.0)
    return replace(flat, node_size=question.node_size, within=within)


def _answer(
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
        recipe = own_recipe(candidate.cases[kind], question.shapes, n, bucket_bytes, node)
    else:
        recipe = large_recipe(candidate.method(kind), kind, size, n, bucket_bytes, node)
    own = candidate.beyond[kind].at(size).scaled(question.crowd)
    gathers = any(
        request.collective == "all-gather" and step.buckets
        for step in recipe.steps
        for request in step.requests()
    )
    decoding = own.decode_s * (
        question.workers / candidate.world_size if gathers and not _two_phase(recipe) else 1.0
    )
    return recipe, Local(question.compute_s, own.encode_s, decoding, own.update_s)


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
    own: Callable[[Network], float], other: Callable[[Network], float], network: Network
) -> float:
    """Bits a second below which `own` is faster: inf where it always is, 0 where it never is."""

    def faster(rate: float) -> bool:
        at = replace(network, rate_bps=rate)
        return own(at) < other(at)

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
