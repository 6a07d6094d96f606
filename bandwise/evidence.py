"""What published studies say of methods, and which way to train follows from it for a model, its workers and a link.

`measured.json` is made of published tables by `make docs`. One study answers: of those in the regime of real training the one
with as many workers, and the model nearest in size. The net speedup of a way to train over another is worth over worth, times
predicted seconds of the other's training over those of its own. It is *ahead* where the whole 95 % interval lies above 1; a
method is ahead of plain ways to use the same machines only where the study's own verdict, by Holm over its methods, is *worth
it* at that rho too. Worth over worth is paired by seed where the study has it so; else only intervals that lie apart decide.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from bandwise.costs import method_of
from reference_impls.core.registry import Method

MEASURED: Final = Path(__file__).with_name("measured.json")
HORIZON: Final = 10.0
"""Bytes trained on per parameter: a study below it tells how methods compare, not whether any pays."""
LARGER: Final = 10.0
"""A model of more than so many times the parameters is another one: what a study says of it is not known to hold."""
LITTLE: Final = 0.1
"""A gain that is not worth another way to train: where communication takes no more, plain training is the answer at any size."""
Does = Literal["use", "send nothing", "accumulate", "plain"]
Ends = tuple[float, float, float]
"""An estimate, and the ends of its 95 % interval."""
NOTHING: Final[Ends] = (0.0, 0.0, 0.0)


@dataclass(frozen=True)
class Measured:
    """What a study and its sessions say of an arm.

    Attributes:
        arm: Its label.
        name: In words.
        method: As `create` takes it.
        role: reference, method, alternative, plain, uncompressed: as in the table windows.
        workers: That it trains with.
        length, batch: Its steps, and its examples a worker and step, over the reference's.
        worth: Share of the reference's steps that its training is worth, with its 95 % interval of `n` seeds; None: not known.
        kappa: Own computing as a share of computing on processors, the median over links of its session; None: not timed.
        kappa_of: The study of whose session it is, where none timed this one; then the same method's at the nearest size.
        gpu_ns: Own computing on a GPU, ns a parameter and step, of its method as it is by default (`on_gpu`); None: not timed.
        sure: Overlap (none, all) -> from and to which rho the study's verdict is *worth it*; None: on.
        over: Alternative -> its worth over that one's, with the ends, paired by seed.
    """

    arm: str
    name: str
    method: str
    role: str
    workers: int
    length: float
    batch: float
    worth: float | None
    low: float | None
    high: float | None
    n: int
    kappa: float | None
    kappa_of: str | None
    gpu_ns: float | None
    sure: Mapping[str, Sequence[float | None]]
    over: Mapping[str, Sequence[float]]

    @property
    def does(self) -> Does:
        """What the machines do in it."""
        if self.role == "reference":
            return "plain"
        if self.role != "alternative":
            return "use"
        return "send nothing" if self.workers == 1 else "accumulate"

    @property
    def ends(self) -> Ends | None:
        """Worth with its interval."""
        if self.worth is None or self.low is None or self.high is None:
            return None
        return self.worth, self.low, self.high

    def kappa_for(self, parameters: float, compute_s: float, gpu: bool) -> float | None:
        """Own computing as a share of the computing of a step; None: not known.

        Args:
            parameters: Of the model.
            compute_s: Seconds that a step of it computes.
            gpu: Whether on a GPU.
        """
        if not gpu:
            return self.kappa
        return None if self.gpu_ns is None else 1e-9 * self.gpu_ns * parameters / compute_s

    def is_sure(self, rho: float, overlap: str) -> bool:
        """Whether the study's verdict on a method there is *worth it*."""
        first, last = self.sure.get(overlap, (math.inf, 0.0))
        return (first or 0.0) <= rho <= (math.inf if last is None else last)


@dataclass(frozen=True)
class Study:
    """A published study of a language model. trained: bytes a parameter, by plain training; arms: with the reference."""

    study: str
    parameters: int
    workers: int
    trained: float
    arms: Sequence[Measured]

    @property
    def words(self) -> str:
        """What it stands for."""
        seeds = max(arm.n for arm in self.arms if arm.role == "reference")
        return (
            f"study {self.study}: a language model of {_size(self.parameters)}, {self.workers} workers, "
            f"{digits(self.trained)} bytes trained on per parameter, {seeds} seeds"
        )

    def lacks(self, parameters: float, workers: int) -> list[str]:
        """Why it carries no verdict for a model and a number of workers; nothing where it does."""
        found = []
        if parameters > LARGER * self.parameters:
            found.append(
                f"your model is {digits(parameters / self.parameters)} times as large as the study's"
            )
        if workers != self.workers:
            found.append(f"you have {workers} workers, the study {self.workers}")
        return found + self.unfit

    @property
    def unfit(self) -> list[str]:
        """Why it carries no verdict for any model."""
        found = []
        if self.trained < HORIZON:
            found.append(f"no published study trains on {HORIZON:g} bytes a parameter, as real training does")
        if any(arm.ends and not arm.ends[1] <= 1 <= arm.ends[2] for arm in self.arms if arm.role == "plain"):
            found.append("plain training is not worth 1 in the study, by its null test")
        rivals = [arm for arm in self.arms if arm.role == "alternative"]
        if not all(arm.ends for arm in rivals) or "send nothing" not in {arm.does for arm in rivals}:
            found.append(
                "the study does not know what its alternatives are worth, one worker alone among them"
            )
        return found


def published() -> tuple[list[Study], list[dict[str, Any]]]:
    """What was measured of methods, and how far off the formula was, as `measured.json` has them."""
    found = json.loads(MEASURED.read_text(encoding="utf-8"))
    studies = [Study(**{**one, "arms": [Measured(**arm) for arm in one["arms"]]}) for one in found["studies"]]
    return studies, found["score"]


def on_gpu() -> str:
    """What own computing on GPUs was measured on, in words."""
    return str(json.loads(MEASURED.read_text(encoding="utf-8"))["on_gpu"])


def score_words() -> tuple[str, ...]:
    """How far off the formula was, a sentence for each whole set of steps that it was held against."""
    return tuple(
        f"{row['of']}: median {row['median']:.0%}, worst {row['worst']:.0%} (n = {row['n']})"
        for row in published()[1]
        if row["whole"]
    )


def fitting(parameters: float, workers: int, studies: Iterable[Study]) -> list[Study]:
    """Studies, the one that answers first: real training before other, as many workers before other numbers, the nearest size."""
    return sorted(
        studies,
        key=lambda one: (
            one.trained < HORIZON,
            one.workers != workers,
            abs(math.log(one.parameters / parameters)),
        ),
    )


def measured(method: Method, studies: Iterable[Study]) -> tuple[Study, Measured] | None:
    """What the first study that knows it says of exactly this configuration; None where none does."""
    course = int(
        getattr(method.algorithm, "total_steps", 1) or 1
    )  # however long the training, it is one configuration
    for study in studies:
        for arm in study.arms:
            named = arm.role != "alternative" and arm.method.partition(":")[0] == method.name
            if named and method_of(arm.method, course) == method:
                return study, arm
    return None


# ---- the verdict


@dataclass(frozen=True)
class Option:
    """A way to train. known: with a number; time: predicted seconds of its training over those of plain training; own: how what
    it computes itself is counted there, in words, where no session of its study says it."""

    known: Measured
    time: float
    own: str = ""

    def over(self, other: Option) -> Ends:
        """Its net speedup over that of another."""
        middle, low, high = (worth * other.time / self.time for worth in _worths(self.known, other.known))
        return middle, low, high


def _worths(own: Measured, its: Measured) -> Ends:
    """Worth over worth. That of the reference is 1, and known."""
    if its.arm in own.over:
        middle, low, high = own.over[its.arm]
        return middle, low, high
    if own.arm in its.over:
        middle, low, high = its.over[own.arm]
        return 1 / middle, 1 / high, 1 / low
    mine, others = own.ends or NOTHING, its.ends or NOTHING
    pairs = (mine[0], others[0]), (mine[1], others[2]), (mine[2], others[1])
    middle, low, high = (one / other if other else math.inf if one else 0.0 for one, other in pairs)
    return middle, low, high


@dataclass(frozen=True)
class Verdict:
    """Of a reader's question.

    Attributes:
        verdict: What to do; `undecided` between several of that, or `unknown`.
        candidates: The way to train with the highest net speedup, and what is not surely behind another; of methods alone that
            one first of which the study's verdict says so.
        net: Of the first over plain training, with its 95 % interval; None: unknown.
        study: Whose evidence it is, or of the one that comes nearest; None where none is needed.
        because: Why, in words.
    """

    verdict: Does | Literal["undecided", "unknown"]
    candidates: tuple[Measured, ...]
    net: Ends | None
    study: Study | None
    because: str

    @property
    def chosen(self) -> Measured | None:
        """What to use, where that is decided."""
        return None if self.verdict in ("undecided", "unknown") else self.candidates[0]

    @property
    def n(self) -> int | None:
        """Seeds of the interval; None where there is none, and where arithmetic alone decides."""
        return self.candidates[0].n if self.net and self.study else None

    @property
    def words(self) -> str:
        """What to do, in a few words."""
        if self.chosen is None:
            return self.verdict
        return {"use": "use ", "send nothing": "send nothing: "}.get(self.verdict, "") + self.chosen.name


def verdict(
    study: Study, options: Sequence[Option], parameters: float, workers: int, rho: float, overlap: str
) -> Verdict:
    """The answer of a study.

    Args:
        study: The one that answers.
        options: Of its methods and alternatives those that have a number, with seconds for the reader's model and link.
        parameters: Of the reader's model.
        workers: The reader's.
        rho: Seconds of plain bf16 all-reduce on the link over those of computing.
        overlap: Where seconds are of: none, all.

    Returns:
        What to do, and why.
    """
    (reference,) = (Option(arm, 1.0) for arm in study.arms if arm.role == "reference")
    ranked = sorted([*options, reference], key=lambda one: -one.over(reference)[0])
    best = ranked[0]
    if (most := bound(rho, overlap)) <= 1 + LITTLE:
        because = (
            f"sending less makes a step at most {most:.2f} times as fast at any size, and no measured training by the same "
            "optimizer takes surely fewer steps"
        )
        return Verdict("plain", (reference.known,), (1.0, 1.0, 1.0), None, because)
    if lacks := study.lacks(parameters, workers):
        because = (
            f"{'; '.join(lacks)}; a study of {_size(parameters / LARGER)} or more, {workers} workers and {HORIZON:g} bytes a "
            f"parameter would tell; in the nearest study {best.known.name} has the highest net speedup, "
            f"{interval(best.over(reference))}"
        )
        return Verdict("unknown", (), None, study, because)

    def ahead(one: Option, other: Option) -> bool:
        told = one.known.does != "use" or other.known.does == "use" or one.known.is_sure(rho, overlap)
        return told and one.over(other)[1] > 1

    rivals = [one for one in ranked if one.known.does != "use"]
    # who loses to a plain way, which needs no verdict, is no candidate, nor who is surely behind another
    tied = [
        one
        for one in ranked[1:]
        if rivals[0].over(one)[1] <= 1 and not any(ahead(other, one) for other in ranked)
    ]
    kinds = {one.known.does for one in (best, *tied)}
    if kinds == {"use"}:  # the one of which the study's verdict says so
        found = [best, *tied]
        best = next((one for one in found if one.known.is_sure(rho, overlap)), best)
        tied = [one for one in found if one is not best]
    if len(kinds) > 1:
        nets = "; ".join(f"{one.known.name} {interval(one.over(reference))}" for one in (best, *tied))
        because = f"net speedups over plain training do not lie apart: {nets}"
        if any(best.over(one)[1] > 1 for one in tied):
            because = f"the study's verdict on {best.known.name} does not reach here: {nets}"
    elif best is reference:
        because = "nothing ends as well in less time"
        if len(ranked) > 1:
            because += (
                f"; the next is {ranked[1].known.name}, net speedup {interval(ranked[1].over(reference))}"
            )
    else:
        because = f"its net speedup over plain training is {interval(best.over(reference))}"
        if best.known.does == "use" and rivals[0] is not reference:
            because += f", over {rivals[0].known.name} {interval(best.over(rivals[0]))}"
        elif best.known.does != "use":
            because += ", and no method's is higher"
        because += best.own
        if tied:
            because += f"; undecided beside it: {'; '.join(one.known.name for one in tied)}"
    word: Any = "undecided" if len(kinds) > 1 else best.known.does
    return Verdict(word, tuple(one.known for one in (best, *tied)), best.over(reference), study, because)


def bound(rho: float, overlap: str) -> float:
    """How many times faster than plain training a step can be at the most that sends less.

    Args:
        rho: Seconds of plain bf16 all-reduce on the link over those of computing.
        overlap: none, all.

    Returns:
        That of a step which sends nothing.
    """
    return 1 + rho if overlap == "none" else max(1.0, rho)


WHERE: Final = {
    "none": "where nothing overlaps",
    "all": "where communication overlaps with computing, as DistributedDataParallel's does",
}
"""Overlap -> where that is so, in words."""


def answer(rho: float, found: Mapping[str, Verdict]) -> str:
    """The verdicts of both ends in one sentence, what is known first.

    Args:
        rho: Seconds of plain bf16 all-reduce on the link over those of computing.
        found: Overlap (none, all) -> verdict.

    Returns:
        The sentence.
    """
    serial, overlapped = found["none"], found["all"]
    alike = serial.chosen or serial.verdict == "unknown" or serial.candidates == overlapped.candidates
    if serial.words == overlapped.words and alike:
        said = f"{serial.words}, because {serial.because}"
        if overlapped.net and overlapped.study:
            said += f"; where all overlaps the net speedup is {interval(overlapped.net)}"
    else:
        ends = sorted(("all", "none"), key=lambda overlap: found[overlap].verdict in ("unknown", "undecided"))
        said = "; ".join(f"{found[end].words} {WHERE[end]}, because {found[end].because}" for end in ends)
    study = serial.study or overlapped.study
    return f"At rho {digits(rho)}: {said}{f' ({study.words})' if study else ''}"


def interval(ends: Sequence[float]) -> str:
    """3.10 [2.72, 3.61]"""
    middle, low, high = (f"{end:.2f}" if end < 10 else digits(end, 3) for end in ends)
    return f"{middle} [{low}, {high}]"


def digits(value: float, many: int = 2) -> str:
    """The first ones: 0.083, 1.8, 20, 120."""
    return f"{float(f'{value:.{many}g}'):,.12g}"


def _size(parameters: float) -> str:
    return f"{digits(parameters / 1e6)} M parameters"
