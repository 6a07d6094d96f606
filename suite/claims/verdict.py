"""From numbers to words.

*Reproduced*: the number's whole interval lies on the claim's side of the threshold. *Contradicted*: wholly on the other
side. Else *undecided*; then half the interval's width is the smallest effect that could have been seen. *Cannot tell*: what was
measured, whatever it is, is no evidence, for the reasons that stand with it; or nothing is published yet. Of a claim of several
parts all must hold (or one, where it says "up to"): *partly* where some do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

from suite.analysis.statistics import Interval
from suite.analysis.summary import equivalence
from suite.claims.claim import COUNTS_AS, Claim, Part, Side, Word, combine


@dataclass(frozen=True)
class Found:
    """What is known of a part: the number, with an interval where it was measured. reason: what to know beside it. lost: seeds
    of the arm that diverged. doubts: why no verdict can rest on it. held_back: why an interval that decides does not."""

    effect: float | None = None
    low: float | None = None
    high: float | None = None
    n: int = 0
    reason: str = ""
    lost: int = 0
    doubts: tuple[str, ...] = ()
    held_back: str = ""

    @property
    def could_see(self) -> float | None:
        """Half the interval's width: an effect of this size beyond the threshold would have decided."""
        return None if self.low is None or self.high is None else (self.high - self.low) / 2


@dataclass(frozen=True)
class Judged:
    """A part, what was found, and its word."""

    part: Part
    found: Found
    word: Word
    reason: str = ""


@dataclass(frozen=True)
class Judgement:
    """A claim's verdict and why, with all its parts and premises."""

    claim: Claim
    word: Word
    why: str
    parts: tuple[Judged, ...] = ()
    premises: tuple[Judged, ...] = ()


def of_interval(side: Side, threshold: float, low: float, high: float) -> Word:
    """The word of an interval. Touching the threshold is undecided."""
    if side == "within":
        words: dict[str, Word] = {"yes": "reproduced", "no": "contradicted"}
        return words.get(equivalence(Interval((low + high) / 2, low, high, 0, ""), threshold), "undecided")
    if low > threshold:
        return "reproduced" if side == "above" else "contradicted"
    if high < threshold:
        return "contradicted" if side == "above" else "reproduced"
    return "undecided"


def of_found(part: Part, found: Found, *, higher_is_better: bool = True) -> Judged:
    """The word of a measured part; none can be had where there are doubts.

    A seed that diverged is a loss without bound: it contradicts that the arm does well, and says nothing against that it does
    badly; where all did, that is what was to be shown.
    """
    if found.doubts:
        return Judged(part, found, "cannot tell", "; ".join(found.doubts))
    does_well = (part.side == "above") == higher_is_better or part.side == "within"
    if found.lost and does_well:
        return Judged(part, found, "contradicted", f"{found.lost} seeds of {part.arm} diverged")
    if found.low is None or found.high is None:
        if found.lost:
            return Judged(part, found, "reproduced", f"{found.lost} seeds of {part.arm} diverged")
        raise ValueError(f"{part.what}: a number without an interval has a doubt that says why")
    word = of_interval(part.side, part.threshold, found.low, found.high)
    if word != "undecided" and found.held_back:
        return Judged(part, found, "undecided", found.held_back)
    if word == "undecided" and found.could_see is not None and isfinite(found.could_see):
        unit = f" {part.unit}" if part.unit else ""
        return Judged(part, found, word, f"an effect of {found.could_see:.2g}{unit} could be seen")
    return Judged(part, found, word, found.reason)


def of_claim(claim: Claim, parts: Sequence[Judged], premises: Sequence[Judged] = ()) -> Judgement:
    """The claim's verdict: its parts together, unless a premise does not hold, and as what the claim says it counts."""
    kept = tuple(parts), tuple(premises)
    if not parts:
        word: Word = "not comparable" if claim.kind == "not-comparable" else "not run"
        return Judgement(claim, word, claim.because, *kept)
    open_ = [one for one in premises if one.word != "reproduced"]
    if open_:
        failed = "; ".join(f"{one.part.what} is {one.word}" for one in open_ if one.word != "cannot tell")
        why = f"a premise does not hold: {failed}" if failed else _doubts([*premises, *parts])
        return Judgement(claim, "cannot tell", _awaited(claim, why), *kept)
    word = combine([one.word for one in parts], claim.quantifier)
    counted = claim.counts_as.get(word, word)
    reasons = [one.reason for one in parts if one.reason]
    why = reasons[0] if len(parts) == 1 and reasons else _tally(parts)
    if word == "cannot tell":
        why = _doubts(parts)
    elif counted != word:
        why = f"{word} {COUNTS_AS} {counted}: {claim.because}"
    if counted == "cannot tell":
        why = _awaited(claim, why)
    return Judgement(claim, counted, why, *kept)


def _doubts(parts: Sequence[Judged]) -> str:
    """All doubts, each once."""
    return "; ".join(dict.fromkeys(doubt for one in parts for doubt in one.found.doubts))


def _awaited(claim: Claim, why: str) -> str:
    """Why nothing can be told, with what would tell it."""
    return f"{why}. It takes {claim.awaits}" if claim.awaits else why


def _tally(parts: Sequence[Judged]) -> str:
    if len(parts) == 1:
        return ""
    words = [one.word for one in parts]
    return ", ".join(f"{words.count(word)} {word}" for word in dict.fromkeys(words)) + f" of {len(parts)}"
