"""Seconds of a step, predicted by a formula: computing + a method's own computing + bytes over the rate + delays.

    seconds = computing x (1 + kappa) + 8 bytes / (0.91 x rate) + rounds x delay

kappa is the method's own computing as a share of computing; bytes are those that a worker sends; rounds are the messages, one
after another, of the first exchange of a step. That is a step in which nothing overlaps; where all overlaps it takes the longer
one of computing and communication, and what is used some steps later hides behind these too. `docs/cost-model.md` says how far
off that is.

What a training sends follows from the method: its kinds of steps from its own plan of every step, bytes and exchanges of each
from a step that one rank takes without a network (`reference_impls.runtime.alone`). What was measured of methods, kappa and
worth, is `bandwise.evidence`.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from bandwise.cli import parse_settings
from reference_impls.core.errors import UnsupportedError
from reference_impls.core.registry import Method, create, registry
from reference_impls.core.units import UnitError

if TYPE_CHECKING:
    from reference_impls.core.schedules import LearningRate
    from reference_impls.runtime.alone import Moment, Shapes

EFFICIENCY: Final = 0.91
"""Share of a link's rate that payload reaches."""
_ROUNDS: Final[Mapping[str, Callable[[int], int]]] = MappingProxyType(
    {
        "all-reduce": lambda n: 2 * (n - 1),
        "all-gather": lambda n: n - 1,
        "all-to-all": lambda n: 1,
        "send-recv": lambda n: 1,
    }
)
"""Collective -> messages one after another on n ranks."""


@dataclass(frozen=True)
class Link:
    """Of every worker.

    Attributes:
        rate_bps: Bits a second.
        delay_s: Seconds, one way.

    Raises:
        UnitError: A rate or a delay cannot be.
    """

    rate_bps: float
    delay_s: float = 0.0

    def __post_init__(self) -> None:
        if not self.rate_bps > 0:
            raise UnitError(f"rate is {self.rate_bps}: give a number above 0")
        at_least_zero("delay", self.delay_s)

    def seconds(self, nbytes: float, rounds: float = 0) -> float:
        """Of so many bytes of a worker, in so many messages one after another."""
        return 8 * nbytes / (EFFICIENCY * self.rate_bps) + rounds * self.delay_s

    def step_seconds(self, rows: Sequence[Mapping[str, Any]], workers: int) -> float:
        """Seconds that communication takes in a step of which one rank's rows of the ledger are known."""
        sent = sum(max(row["wire_bytes"], row["received_bytes"]) for row in rows)
        return self.seconds(sent, rounds(rows, workers))


def at_least_zero(name: str, value: float) -> None:
    """Raise `UnitError` unless it is a finite number of at least 0."""
    if not 0 <= value < math.inf:
        raise UnitError(f"{name} is {value}: give a number of at least 0")


def rounds(rows: Sequence[Mapping[str, Any]], workers: int) -> int:
    """Messages one after another of a step's first exchange for the method, by one rank's rows; 0 where it sends nothing."""
    first = min(rows, key=lambda row: row["stage"] == "buffers", default=None)
    return 0 if first is None or workers == 1 else _ROUNDS[first["collective"]](workers)


# ---- what a training sends


def parsed(text: str) -> tuple[str, dict[str, Any]]:
    """``NAME:option=value:...``

    Args:
        text: As `bandwise try --methods` and `bandwise advise --methods` take it; ``lr`` may be among the options.

    Returns:
        The name and the options.

    Raises:
        OptionError: It is not written so.
        UnknownAlgorithmError, UnknownOptionError, UnsupportedError: As `create` raises them.
    """
    name, *settings = text.split(":")
    options = parse_settings(settings, f"--methods {name}", "NAME:option=value")
    create(name, **{key: value for key, value in options.items() if key != "lr"})
    return name, options


def texts_of(listed: str) -> list[str]:
    """The methods of a list with commas; those in brackets part none."""
    return list(filter(None, re.split(r",(?![^\[]*\])", listed)))


def knows_its_length(name: str) -> bool:
    """Whether a method has to be told how long the training is, as `total_steps`."""
    return "total_steps" in {field.name for field in fields(registry.load(name))}


def method_of(text: str, steps: int) -> Method:
    """The method of a text, told how long the training is where it must know; raises as `parsed`."""
    name, options = parsed(text)
    if knows_its_length(name):
        options.setdefault("total_steps", steps)
    return create(name, **{key: value for key, value in options.items() if key != "lr"})


@dataclass(frozen=True)
class Sent:
    """A kind of steps: its share of a training's steps, bytes that a worker sends in one, messages one after another, and steps
    of computing behind which that can hide (`Algorithm.behind`)."""

    share: float
    nbytes: float
    rounds: int
    behind: int = 1


def transformer_shapes(parameters: float) -> dict[str, tuple[int, ...]]:
    """The shapes of a model of which only the size is known: that of a GPT.

    Args:
        parameters: How many, at least 1.

    Returns:
        By name the matrices of about w / 64 blocks of width w; what is left over as one matrix, the embedding, and as less than a
        row.
    """
    width = max(1, min(round((parameters * 64 / 12) ** (1 / 3)), math.isqrt(int(parameters / 12))))
    depth = int(parameters / (12 * width * width))
    rows, rest = divmod(math.floor(parameters) - 12 * width * width * depth, width)
    block = [(3 * width, width), (width, width), (4 * width, width), (width, 4 * width)]
    hidden = {f"weight.{i}": shape for i, shape in enumerate(block * depth)}
    return hidden | ({"embedding": (rows, width)} if rows else {}) | ({"bias": (rest,)} if rest else {})


PEAK_RATE: Final = 1e-3
"""Learning rate in whose course methods plan their steps: a cosine from here to a hundredth."""


def sent(method: Method, shapes: Shapes, workers: int, steps: int) -> list[Sent]:
    """What a training sends.

    Args:
        method: Configured.
        shapes: Of the model's parameters, in order; by name, which tells a method what it treats otherwise.
        workers: How many.
        steps: Of the training.

    Returns:
        The kinds of its steps.

    Raises:
        UnsupportedError: The method cannot be used so, plans by what happens in training, or asks for values of a large model.
    """
    from reference_impls.core.schedules import LearningRate
    from reference_impls.runtime.alone import taken

    kinds: Counter[str] = Counter()
    first: dict[str, Moment] = {}
    rate = LearningRate("cosine", PEAK_RATE, PEAK_RATE / 100, 0, steps)
    for kind, before in planned(method, workers, rate):
        kinds[kind] += 1
        first.setdefault(kind, before)
    return [
        Sent(
            kinds[kind] / steps,
            one.nbytes + one.planning,
            rounds(one.rows, workers),
            method.algorithm.behind(kind),
        )
        for kind, one in taken(method, shapes, workers, first).items()
    ]


def planned(method: Method, workers: int, rate: LearningRate) -> Iterator[tuple[str, Moment]]:
    """The steps of a training, in order.

    Args:
        method: Configured.
        workers: How many.
        rate: The learning rate, and how long the training is.

    Yields:
        The kind of a step, and what it was planned by.

    Raises:
        UnsupportedError: The method cannot be used so, or plans by what happens in training.
    """
    from reference_impls.runtime import alone

    if method.algorithm.plans_from_data:
        raise UnsupportedError(
            f"{method.name} plans by what happens in training: `bandwise try` counts what it sends"
        )
    yield from alone.planned(method.algorithm, workers, map(rate, range(rate.total)))


# ---- the formula


@dataclass(frozen=True)
class Predicted:
    """Seconds of a step of a method, the mean over a training.

    Attributes:
        step_s: Where nothing overlaps.
        overlapped_s: Where all overlaps.
        own_s: The method's own computing; None: not known, and not counted.
        nbytes: That a worker sends.
        delay_s: Of its exchanges.
    """

    step_s: float
    overlapped_s: float
    own_s: float | None
    nbytes: float
    delay_s: float


def predict(kinds: Sequence[Sent], link: Link, compute_s: float, kappa: float | None) -> Predicted:
    """The formula.

    Args:
        kinds: What a training sends (`sent`).
        link: Of every worker.
        compute_s: Seconds of forward, backward and update on a worker.
        kappa: The method's own computing as a share of that; None: not known.

    Returns:
        Seconds of a step.
    """
    at_least_zero("compute_s", compute_s)
    own = None if kappa is None else kappa * compute_s
    local = compute_s + (own or 0.0)
    on_link = [(kind, link.seconds(kind.nbytes, kind.rounds)) for kind in kinds]
    sending = sum(kind.share * seconds for kind, seconds in on_link)
    hidden = sum(kind.share * max(local, seconds - (kind.behind - 1) * local) for kind, seconds in on_link)
    return Predicted(
        local + sending,
        max(hidden, sending),
        own,
        sum(kind.share * kind.nbytes for kind in kinds),
        sum(kind.share * kind.rounds for kind in kinds) * link.delay_s,
    )


def pays_below(method: Predicted, plain: Predicted) -> float:
    """Below which rate a method's step is shorter than that of plain training, where nothing overlaps.

    Args:
        method: The one.
        plain: The other, on the same link.

    Returns:
        Bits a second; 0: never, infinity: always.
    """
    saved = 8 * (plain.nbytes - method.nbytes) / EFFICIENCY
    extra = (method.own_s or 0.0) + method.delay_s - (plain.own_s or 0.0) - plain.delay_s
    if saved <= 0:
        return math.inf if extra < 0 and saved == 0 else 0.0
    return saved / extra if extra > 0 else math.inf
