"""A step in numbers: what it sends, what that takes on a network, how it overlaps with computing.

    seconds of a collective = start + rounds(n) x (round + delay) + max(bytes over the wire, work of the host)

A step is a `Recipe`'s: buckets with the collectives of each. `Network` says what a collective takes, by the form of its algorithm
(`FORMS`) and the prices of its backend. A step is played as the engine carries it out (`reference_impls.drivers.engine`):
forward; backward, during which buckets become ready, last layers first; a ready bucket is encoded and its first collective
launched, and earlier buckets that have another one to launch are moved on, waiting for the one under way; after backward all are
brought to their end in rounds and decoded; update; what follows the update, one after another. Collectives share the link in the
order of their launches; the latency of one passes while another is on the wire.

That is the step of a rank with a processor for its messages. Where ranks share processors the kernel's and the backend's work,
for every byte and every message, takes time from computing: no step is shorter than all the work in it.

Whoever asks for advice waits for no library: this module, and `suite.costs.advice` on it, import neither torch nor pandas.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final

from reference_impls.requests import Bucket, Request, Step
from suite.links.link import (
    ALL_GATHER,
    ALL_REDUCE_BF16,
    ALL_REDUCE_FP32,
    ALL_REDUCE_INT8,
    ALL_REDUCE_INT32,
    ALL_TO_ALL,
    SEND_RECV,
    Link,
)

# ---- what a step sends


class RecipeError(ValueError):
    """A method that cannot be asked what its steps send; the message says why."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """The steps of a unit: one, or those of a round. Equal steps are one object."""

    steps: tuple[Step, ...]

    def scaled(self, factor: float) -> Recipe:
        """The same for a model of `factor` times as many elements, cut into as many buckets."""

        def larger(requests: Sequence[Request]) -> tuple[Request, ...]:
            return tuple(
                replace(request, nbytes=factor * request.nbytes) if request.grows else request
                for request in requests
            )

        return Recipe(
            tuple(
                Step(
                    step.kind,
                    larger(step.plan),
                    tuple(Bucket(bucket.share, larger(bucket.requests)) for bucket in step.buckets),
                    larger(step.after),
                )
                for step in self.steps
            )
        )


def transformer(parameters: float) -> tuple[int, int, int]:
    """Width w of the blocks of a GPT-like model of about as many parameters, their number, about w / 64, and the parameters that
    are left for embeddings. Raises `RecipeError`."""
    if not parameters >= 1:
        raise RecipeError(f"{parameters} parameters: give at least 1")
    width = min(round((parameters * 64 / 12) ** (1 / 3)), math.isqrt(int(parameters / 12)))
    depth = int(parameters / (12 * width * width)) if width else 0
    return width, depth, math.floor(parameters) - 12 * width * width * depth


def transformer_shapes(parameters: float) -> list[tuple[int, ...]]:
    """Shapes of such a model. It is synthetic; methods that compress matrices depend on its shapes."""
    width, depth, rest = transformer(parameters)
    block = [(3 * width, width), (width, width), (4 * width, width), (width, 4 * width)]
    shapes: list[tuple[int, ...]] = [shape for _ in range(depth) for shape in block]
    return [*shapes, (rest,)] if rest > 0 else shapes


def declared_terms(parameters: float) -> tuple[float, float, float, float]:
    """Parameters of such a model, rows and columns of its matrices, parameters outside of these, and bits of all places."""
    width, depth, rest = transformer(parameters)
    return parameters, 16.0 * width * depth, float(rest), parameters * math.log2(parameters)


@dataclass(frozen=True)
class Traffic:
    """What a kind of steps sends of a model of which only the size is known, on n ranks.

    steps: (how often one after another, step with one bucket of `elements`). whole: the model is one bucket, whatever its size.
    declared: bytes of a model over those of so many traced elements, as the method declares them: so much for each parameter, for
    each row and column of a transformer's matrices, and for each parameter outside of them.
    """

    elements: float
    whole: bool
    declared: tuple[float, float, float, float]
    steps: tuple[tuple[int, Step], ...]

    def recipe(self, parameters: float, bucket_bytes: float) -> Recipe:
        """Of a model of any size, in buckets of so many bytes of fp32."""
        count = 1 if self.whole else max(1, round(4 * parameters / bucket_bytes))
        declared = sum(a * b for a, b in zip(self.declared, declared_terms(parameters), strict=True))
        factor = declared / count / self.elements
        steps: list[Step] = []
        for often, step in self.steps:
            larger = Recipe((step,)).scaled(factor).steps[0]
            bucket = replace(larger.buckets[0], share=1 / count)
            steps += [Step(step.kind, larger.plan, (bucket,) * count, larger.after * count)] * often
        return Recipe(tuple(steps))

    def as_json(self) -> dict[str, Any]:
        """Plain values."""

        def listed(requests: Sequence[Request]) -> list[list[Any]]:
            return [[r.collective, r.stage, r.nbytes, r.dtype, r.group, r.mutual, r.grows] for r in requests]

        return {
            "elements": self.elements, "whole": self.whole, "declared": list(self.declared),
            "steps": [
                [often, step.kind, listed(step.plan), listed(step.buckets[0].requests), listed(step.after)]
                for often, step in self.steps
            ],
        }  # fmt: skip

    @classmethod
    def from_json(cls, kept: Mapping[str, Any], n: int) -> Traffic:
        """As n ranks send it."""

        def requests(listed: Sequence[Sequence[Any]]) -> tuple[Request, ...]:
            return tuple(Request(r[0], r[1], n, *r[2:]) for r in listed)

        steps = tuple(
            (often, Step(kind, requests(plan), (Bucket(1.0, requests(bucket)),), requests(after)))
            for often, kind, plan, bucket, after in kept["steps"]
        )
        return cls(kept["elements"], kept["whole"], tuple(kept["declared"]), steps)


# ---- what it takes

DDP_BYTES: Final = {"fp32": (4, "float32"), "bf16": (2, "bfloat16"), "fp16": (2, "float16")}


@dataclass(frozen=True)
class Local:
    """Seconds a step on one rank when nothing is sent. compute_s: forward and backward. update_s: and all that is left."""

    compute_s: float
    encode_s: float = 0.0
    decode_s: float = 0.0
    update_s: float = 0.0

    @property
    def total_s(self) -> float:
        """All of it."""
        return self.compute_s + self.encode_s + self.decode_s + self.update_s

    def scaled(self, factor: float) -> Local:
        """Every part times `factor`."""
        return Local(
            factor * self.compute_s, factor * self.encode_s, factor * self.decode_s, factor * self.update_s
        )


CODEC: Final = ("encode_s", "decode_s", "update_s")


@dataclass(frozen=True)
class CodecOverhead:
    """What a case adds on a core of its own (`Local.compute_s` is 0): fixed seconds, and seconds a parameter. largest: parameters
    of the largest model that it was timed with."""

    fixed: Local
    each: Local
    largest: int

    def at(self, parameters: float) -> Local:
        """For a model of any size."""
        each = self.each.scaled(parameters)
        return Local(0.0, *(getattr(self.fixed, name) + getattr(each, name) for name in CODEC))


@dataclass(frozen=True)
class Form:
    """An algorithm for a collective on n ranks. rounds: messages one after another. sent: bytes over the busiest rank's
    wire, in one direction, for each byte of the buffer. ring: neighbours alone talk. turns: a rank sends and receives whole
    messages; where both are with the same rank, gloo's one connection carries them one after the other. hidden: share of the
    bytes' time in which rounds pass unseen: gloo cuts a rank's part of an all-reduce in two, and one half travels while the
    other is agreed on.
    """

    rounds: Callable[[int], float]
    sent: Callable[[int], float]
    ring: bool = False
    turns: bool = False
    hidden: float = 0.0

    def times(self, n: int, mutual: bool = False) -> float:
        """How often the wire is busy with a byte. mutual: a rank receives from the rank that it sends to, as of two it does."""
        return 2.0 if self.turns and (mutual or n == 2) else 1.0


def _log2(n: int) -> float:
    return float(math.ceil(math.log2(n))) if n > 1 else 0.0


FORMS: Final[Mapping[str, Form]] = MappingProxyType(
    {
        "ring all-reduce": Form(lambda n: 2.0 * (n - 1), lambda n: 2 * (n - 1) / n, ring=True, hidden=0.5),
        "tree all-reduce": Form(lambda n: 2 * _log2(n), lambda n: 2 * _log2(n)),
        "halving-doubling all-reduce": Form(lambda n: 2 * _log2(n), lambda n: 2 * (n - 1) / n),
        "ring all-gather": Form(lambda n: float(n - 1), lambda n: float(n - 1), ring=True),
        "pairwise all-to-all": Form(lambda n: 1.0, lambda n: (n - 1) / n, turns=True),
        "two-phase": Form(lambda n: float(n), lambda n: 2 * (n - 1) / n),
        "parameter server": Form(lambda n: 2.0, lambda n: float(n)),
        "send-recv": Form(lambda n: 1.0, lambda n: 1.0, turns=True),
    }
)
"""Name -> algorithm. The buffer is what a rank hands over: the whole vector, in a gather its own part, in an all-to-all
all pieces. Rounds of an all-to-all are one, since all pieces are on their way at once. A parameter server's busiest wire is
its own."""


OF_PROBE: Final[Mapping[str, str]] = MappingProxyType(
    {
        ALL_REDUCE_FP32: "ring all-reduce",
        ALL_REDUCE_BF16: "ring all-reduce",
        ALL_REDUCE_INT8: "ring all-reduce",
        ALL_REDUCE_INT32: "ring all-reduce",
        ALL_GATHER: "ring all-gather",
        ALL_TO_ALL: "pairwise all-to-all",
        SEND_RECV: "send-recv",
    }
)
"""What is measured -> the algorithm by which gloo carries it out."""


REDUCED: Final = {
    "float32": ALL_REDUCE_FP32, "float64": ALL_REDUCE_FP32, "bfloat16": ALL_REDUCE_BF16, "float16": ALL_REDUCE_BF16,
    "int8": ALL_REDUCE_INT8, "uint8": ALL_REDUCE_INT8, "int32": ALL_REDUCE_INT32, "int64": ALL_REDUCE_INT32,
}  # fmt: skip


ELEMENT: Final = 4
"""Bytes of an element, of which a piece in a ring has at least one."""


def measured_as(request: Request) -> str:
    """The collective of `suite.links.probe` that a request is."""
    return REDUCED[request.dtype] if request.collective == "all-reduce" else request.collective


@dataclass(frozen=True)
class Price:
    """What was fitted for one collective: seconds a call, seconds a round, the host's seconds a byte sent."""

    start_s: float
    round_s: float
    host_s: float


@dataclass(frozen=True)
class Network:
    """A link with the prices of its backend. efficiency: share of the rate that payload reaches. delayed: delays a round, more
    than one where a round waits for acknowledgements.

    crowd: ranks that share a processor, at least 1.
    """

    rate_bps: float
    delay_s: float
    prices: Mapping[str, Price]
    efficiency: float = 0.949
    delayed: float = 1.0
    crowd: float = 1.0
    _known: dict[Request, Parts] = field(init=False, default_factory=dict, compare=False, repr=False)

    def of(self, request: Request) -> Parts:
        """What a request takes."""
        parts = self._known.get(request)
        if parts is None:
            parts = self.parts(measured_as(request), request.ranks, request.nbytes, request.mutual)
            self._known[request] = parts
        return parts

    def parts(self, what: str, n: int, nbytes: float, mutual: bool = False) -> Parts:
        """What a collective of `nbytes` on n ranks with a wire each takes. Raises KeyError for one that has no price.

        mutual: as in `Form.times`.
        """
        form, price = FORMS[OF_PROBE[what]], self.prices[what]
        sent = form.sent(n) * nbytes
        full = min(1.0, nbytes / (ELEMENT * n)) if form.ring else 1.0
        alone = price.start_s + form.rounds(n) * price.round_s
        delays = 1 + (self.delayed - 1) * full
        rounds = (1 + (self.crowd - 1) * full) * alone + form.rounds(n) * delays * self.delay_s
        wire = 8 * sent * form.times(n, mutual) / (self.rate_bps * self.efficiency)
        host = self.crowd * price.host_s * sent
        return Parts(max(0.0, rounds - form.hidden * max(wire, host)), wire, host, self.crowd * alone * full)

    def seconds(self, what: str, n: int, nbytes: float) -> float:
        """The whole of it, alone on the link."""
        parts = self.parts(what, n, nbytes)
        return parts.latency_s + parts.busy_s


@dataclass(frozen=True)
class Parts:
    """Of one collective: seconds of latency, on the wire, and of the processors, for its bytes and for its messages. Of a ring
    of very few elements most pieces are empty: nobody handles them, and a piece that goes round alone is handled by one rank at
    a time, which then shares its processor with none."""

    latency_s: float
    wire_s: float
    host_s: float
    handled_s: float

    @property
    def worked_s(self) -> float:
        """All that the processors do for it."""
        return self.host_s + self.handled_s

    @property
    def busy_s(self) -> float:
        """How long it keeps others from the link."""
        return max(self.wire_s, self.host_s)


@dataclass(frozen=True)
class Backend:
    """What was fitted for a backend on a machine; a `Network` but for the link."""

    name: str
    prices: Mapping[str, Price]
    efficiency: float
    delayed: float
    cores: int

    def on(self, link: Link, *, own_machines: bool = False) -> Network:
        """The network of a link between workers that share this machine's cores, or have machines of their own."""
        crowd = 1.0 if own_machines else max(1.0, link.workers / self.cores)
        return self.network(link.rate_bps, link.delay_s, crowd)

    def network(self, rate_bps: float, delay_s: float, crowd: float) -> Network:
        """The network of a rate and a delay, `crowd` ranks to a processor."""
        return Network(rate_bps, delay_s, self.prices, self.efficiency, self.delayed, crowd)


FORWARD: Final = 1 / 3
"""Of forward and backward together; backward multiplies matrices twice as often."""


THREADS: Final = 2
"""Collectives that gloo carries out at a time; a further one begins when one of them has ended. Single messages wait for none."""


def sent_bytes(recipe: Recipe) -> float:
    """Bytes a rank sends in a unit, by the optimal form of each collective."""
    return sum(
        FORMS[OF_PROBE[measured_as(request)]].sent(request.ranks) * request.nbytes
        for step in recipe.steps
        for request in step.requests()
    )


@dataclass(frozen=True)
class Stack:
    """What carries collectives, as the rules of published measurements say: the prices of this project's own backend (fitted), or
    microseconds a call and a round, Gbit/s at which hosts saturate, one-way delays a round."""

    fitted: bool = False
    start_us: float = 0.0
    round_us: float = 0.0
    host_gbit: float | None = None
    delays: float = 1.0

    def network(self, backend: Backend, rate_bps: float, delay_s: float, crowd: float = 1.0) -> Network:
        """The network of a rate and a delay."""
        if self.fitted:
            return backend.network(rate_bps, delay_s, crowd)
        host_s = 0.0 if self.host_gbit is None else 8 / (1e9 * self.host_gbit)
        price = Price(1e-6 * self.start_us, 1e-6 * self.round_us, host_s)
        return Network(
            rate_bps, delay_s, dict.fromkeys(OF_PROBE, price), backend.efficiency, self.delays, crowd=crowd
        )


@dataclass(frozen=True)
class Codec:
    """What a codec takes on any device, as the rules say: passes of 4 bytes a parameter over its memory."""

    encode: float
    decode: float

    def seconds(self, parameters: float, memory_gbyte_s: float) -> Local:
        """On a device whose memory has that bandwidth."""
        one = 4 * parameters / (1e9 * memory_gbyte_s)
        return Local(0.0, self.encode * one, self.decode * one)


# ---- how computing and sending overlap


@dataclass(frozen=True)
class Overlap:
    """How computing and sending overlap; fitted to sessions (`fit_overlap`).

    late: where ranks share processors they do not keep step, and a collective waits for the last: this share of backward, times
    1 - 1 / crowd, is over before the last rank's first gradient is complete. gather_s: what an all-gather waits for processors
    that compute meanwhile, for every rank beyond the first that shares one.
    """

    late: float = 0.0
    gather_s: float = 0.0


def unit_seconds(recipe: Recipe, local: Local, network: Network, overlap: Overlap) -> float:
    """Seconds of a unit of steps (`Recipe`); a step that comes several times is played once."""
    steps = {id(step): step for step in recipe.steps}
    seconds = {key: step_seconds(step, local, network, overlap) for key, step in steps.items()}
    return sum(seconds[id(step)] for step in recipe.steps)


def step_seconds(step: Step, local: Local, network: Network, overlap: Overlap) -> float:
    """Seconds of a step."""
    played = _Play(network, local, overlap).play(step)
    if network.crowd <= 1:
        return played
    worked = local.total_s + sum(network.of(request).worked_s for request in step.requests())
    return max(played, worked)


class _Play:
    """One step. `free` is when the link has carried what it was given; `threads` when
    each of the backend's threads has brought its last collective to its end."""

    def __init__(self, network: Network, local: Local, overlap: Overlap) -> None:
        self.network = network
        self.local = local
        self.overlap = overlap
        self.free = 0.0
        self.threads = [0.0] * THREADS
        self._known: dict[int, list[tuple[bool, float, float]]] = {}

    def play(self, step: Step) -> float:
        """The whole step; buckets on their way are [when the collective under way arrives, how many were launched, all of its
        collectives, share of the elements]."""
        local, launch = self.local, self.launch
        now = self.one_by_one(step.plan, 0.0)
        late = self.overlap.late * (1 - 1 / self.network.crowd)
        before = FORWARD + (1 - FORWARD) * late
        now += before * local.compute_s
        backward = (1 - before) * local.compute_s
        waiting: list[list[Any]] = []
        moving: list[list[Any]] = []
        for bucket in step.buckets:
            share = bucket.share
            now += backward * share
            for flight in moving:
                now = max(now, flight[0])
                flight[0] = launch(flight[2][flight[1]], now)
                flight[1] += 1
            calls = self.calls(bucket.requests)
            now += local.encode_s * share
            if not calls:
                now += local.decode_s * share
                continue
            flight = [launch(calls[0], now), 1, calls, share]
            waiting.append(flight)
            moving = [one for one in (*moving, flight) if one[1] < len(one[2])]
        while waiting:
            rest = []
            for flight in waiting:
                now = max(now, flight[0])
                if flight[1] < len(flight[2]):
                    flight[0] = launch(flight[2][flight[1]], now)
                    flight[1] += 1
                    rest.append(flight)
                else:
                    now += local.decode_s * flight[3]
            waiting = rest
        return self.one_by_one(step.after, now + local.update_s)

    def calls(self, requests: tuple[Request, ...]) -> list[tuple[bool, float, float]]:
        """Of each request: whether it is a single message, how long it keeps others from it, and what
        passes until it has arrived. Equal buckets are one object, and asked once."""
        found = self._known.get(id(requests))
        if found is None:
            found = self._known[id(requests)] = [self._call(request) for request in requests]
        return found

    def _call(self, request: Request) -> tuple[bool, float, float]:
        parts = self.network.of(request)
        waits = (self.network.crowd - 1) * self.overlap.gather_s if request.collective == ALL_GATHER else 0.0
        return request.collective == SEND_RECV, parts.busy_s, parts.latency_s + waits

    def launch(self, call: tuple[bool, float, float], now: float) -> float:
        """When it will have arrived. Single messages wait for no thread."""
        single, busy, passes = call
        begins = max(now, self.free)
        if single:
            self.free = begins + busy
            return begins + busy + passes
        threads = self.threads
        first = min(threads)
        ends = self.free = max(begins, first) + busy
        threads[threads.index(first)] = ends + passes
        return ends + passes

    def one_by_one(self, requests: tuple[Request, ...], now: float) -> float:
        """Collectives that are waited for at once."""
        for call in self.calls(requests):
            now = self.launch(call, now)
        return now


@dataclass(frozen=True)
class Model:
    """backend: prices. overlap: of computing and sending."""

    backend: Backend
    overlap: Overlap
