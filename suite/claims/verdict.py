"""From numbers to words, the words on record, and where these are no longer what judging gives.

*Reproduced*: the number's whole interval lies on the claim's side of the threshold. *Contradicted*: wholly on the other
side. Else *undecided*; then half the interval's width is the smallest effect that could have been seen. *Cannot tell*: what was
measured, whatever it is, is no evidence, for the reasons that stand with it; or nothing is published yet. Of a claim of several
parts all must hold (or one, where it says "up to"): *partly* where some do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Final

from suite.analysis.published import find_table
from suite.analysis.tables import CLAIMS, PARTS, Row, read_table, table_path, write_table
from suite.claims.claim import AWAITED, JUDGED, WRITTEN, Claim, Part, Word

COUNTS_AS: Final = "by the numbers; counts as"
"""Stands in the reason of a verdict that is not what its numbers say."""


@dataclass(frozen=True)
class Found:
    """What is known of a part: the number with its interval. reason: what to know beside it. lost: seeds of the arm that
    diverged. doubts: why no verdict can rest on it. held_back: why an interval that decides does not."""

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
    parts: Sequence[Judged] = ()
    premises: Sequence[Judged] = ()


def combine(words: Sequence[Word], quantifier: str = "all") -> Word:
    """One word for several parts: all of them have to hold, or any one ("up to")."""
    if set(words) == {words[0]}:
        return words[0]
    if quantifier == "any":
        return next(word for word in ("reproduced", "not run", "cannot tell", "undecided") if word in words)
    if "not run" in words:
        return "not run"
    if "reproduced" in words:
        return "partly"
    return "contradicted" if "contradicted" in words else "cannot tell"


def of_interval(side: str, threshold: float, low: float, high: float) -> Word:
    """The word of an interval. Touching the threshold is undecided."""
    if side == "within":
        if -threshold < low and high < threshold:
            return "reproduced"
        return "contradicted" if low >= threshold or high <= -threshold else "undecided"
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
    if found.lost and (does_well or found.low is None):
        word: Word = "contradicted" if does_well else "reproduced"
        return Judged(part, found, word, f"{found.lost} seeds of {part.arm} diverged")
    if found.low is None or found.high is None:
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
    if not parts:
        idle: Word = "not comparable" if claim.kind == "not-comparable" else "not run"
        return Judgement(claim, idle, claim.because)
    words = [one.word for one in parts]
    word = combine(words, claim.quantifier)
    counted = claim.counts_as.get(word, word)
    if open_ := [one for one in premises if one.word != "reproduced"]:
        counted = "cannot tell"
        failed = "; ".join(f"{one.part.what} is {one.word}" for one in open_ if one.word != "cannot tell")
        why = f"a premise does not hold: {failed}" if failed else _doubts([*premises, *parts])
    elif word == "cannot tell":
        why = _doubts(parts)
    elif counted != word:
        why = f"{word} {COUNTS_AS} {counted}: {claim.because}"
    elif len(parts) == 1:
        why = parts[0].reason
    else:
        tally = ", ".join(f"{words.count(one)} {one}" for one in dict.fromkeys(words))
        why = f"{tally} of {len(parts)}"
    if counted == "cannot tell" and claim.awaits:
        why = f"{why}. It takes {claim.awaits}"
    return Judgement(claim, counted, why, parts, premises)


def _doubts(parts: Sequence[Judged]) -> str:
    """All doubts, each once."""
    return "; ".join(dict.fromkeys(doubt for one in parts for doubt in one.found.doubts))


# ---- the verdicts on record


def claim_row(one: Judgement) -> Row:
    """A row of the table of claims."""
    claim, paper, judged = one.claim, one.claim.paper, one.claim.kind in JUDGED
    as_read = ("said_by", "own", "statement", "kind", "decision", "note", "command")
    return {name: getattr(claim, name) for name in as_read} | {
        "claim": claim.id,
        "file": paper.file,
        "paper": paper.name,
        "arxiv": paper.arxiv,
        "of": claim.of or None,
        "sources": ", ".join(claim.sources),
        "scale": f"at our scale: {claim.scale}" if judged else claim.scale,
        "verdict": one.word,
        "why": one.why,
        "written": WRITTEN[claim.written] if judged else "",
        "parts": len(claim.parts),
        "n": claim.planned or None,
    }


def part_rows(one: Judgement) -> list[Row]:
    """Rows of the table of parts."""
    return [
        {"claim": one.claim.id, "role": role, "part": number, "verdict": judged.word, "reason": judged.reason}
        | {name: getattr(judged.part, name) for name in ("what", "bar", "unit", "level")}
        | {name: getattr(judged.found, name) for name in ("effect", "low", "high", "n", "could_see")}
        for role, some in (("part", one.parts), ("premise", one.premises))
        for number, judged in enumerate(some, 1)
    ]


def write_record(root: Path, judged: Sequence[Judgement]) -> list[Path]:
    """Replace the verdicts on record."""
    return [
        write_table(table_path(root, CLAIMS), CLAIMS, [claim_row(one) for one in judged]),
        write_table(table_path(root, PARTS), PARTS, [row for one in judged for row in part_rows(one)]),
    ]


def recorded(root: Path) -> tuple[list[Row], list[Row]]:
    """Claims and parts on record. Raises TableError where there are none."""
    return read_table(find_table(root, CLAIMS), CLAIMS), read_table(find_table(root, PARTS), PARTS)


def differences(
    judged: Sequence[Judgement], on_record: tuple[Sequence[Row], Sequence[Row]], *, whole: bool = False
) -> list[str]:
    """What the record no longer says truly of these claims, a sentence each.

    Args:
        judged: Claims as judged now.
        on_record: Rows of claims and of their parts, as `recorded` gives them.
        whole: These are all claims there are.

    Returns:
        The sentences, in order of the claims.
    """
    rows, parts = on_record
    known = {row["claim"]: row for row in rows}
    found = []
    for one in judged:
        name, row = one.claim.id, known.pop(one.claim.id, None)
        if row is None:
            found.append(f"{name}: {one.word}, and nothing is on record")
        elif row["verdict"] != one.word:
            found.append(f"{name}: {one.word}, but {row['verdict']} is on record")
        else:
            then = [row, *(part for part in parts if part["claim"] == name)]
            if _told(then) != _told([claim_row(one), *part_rows(one)]):
                found.append(f"{name}: its text has changed since it was judged {one.word}")
    return found + [f"{name}: is on record and in no file" for name in sorted(known if whole else ())]


def _told(rows: Sequence[Row]) -> set[tuple[object, ...]]:
    """Rows without the numbers that were measured, in no order."""
    measured = {"effect", "low", "high", "could_see"}
    return {tuple(row[name] or None for name in sorted(row) if name not in measured) for row in rows}


# ---- how the record reads: the command line, the page and `docs/claims.md` say it alike

MEASURED: Final = ("measured", "not measured")
"""Of claims. Counts of one are never added to those of the other."""


def group_of(row: Row) -> str:
    """To which of `MEASURED` a claim on record belongs; one whose study is still to come is not measured."""
    return MEASURED[row["kind"] not in JUDGED or AWAITED in (row["why"] or "")]


def briefly(row: Row, rows: Sequence[Row]) -> str:
    """What a claim says; of one that judges another's statement in another cell only what differs, where that begins alike.

    Args:
        row: Of the table `claims`.
        rows: All that are shown.
    """
    said: str = row["statement"]
    first = next((one["statement"].rstrip(".") for one in rows if one["claim"] == row["of"]), "")
    return f"…{said.removeprefix(first)}" if first and said.startswith(first) else said


def statements(rows: Sequence[Row]) -> list[Row]:
    """What is claimed, each once, however many cells and baselines it was judged in.

    Args:
        rows: Of the table of claims.

    Returns:
        The rows of statements, each with one verdict: that of its claims together, as of the parts of one. Claims of which
        nothing is told count where none of the others is told either.
    """
    words: dict[str, list[Word]] = {}
    first: dict[str, Row] = {}
    for row in sorted(rows, key=lambda row: bool(row["of"])):
        statement = row["of"] or row["claim"]
        first.setdefault(statement, row)
        words.setdefault(statement, []).append(row["verdict"])
    return [{**row, "verdict": _together(words[statement])} for statement, row in first.items()]


def _together(words: Sequence[Word]) -> Word:
    told = [word for word in words if word not in ("cannot tell", "not comparable", "not run")] or words
    return "partly" if "partly" in told else combine(told)


def deciding(row: Row, parts: Sequence[Row]) -> Row | None:
    """The part that stands for its claim: the first with the claim's own verdict, else the first; None without parts."""
    own = [part for part in parts if part["role"] == "part"]
    return next((part for part in own if part["verdict"] == row["verdict"]), own[0] if own else None)


def effect(part: Row) -> str:
    """``-4.85 [-5.24, -4.45] points``; why there is none. The level stands where it is not 95 %."""
    if part["effect"] is None or part["low"] is None or part["high"] is None:
        return part["reason"] or "nothing measured"
    value, low, high = (
        figure(part[one], signed=part["unit"] != "times") for one in ("effect", "low", "high")
    )
    tail = f" {part['unit']}" if part["unit"] else ""
    wide = "" if part["level"] == 0.95 else f" ({100 * part['level']:.3g} %)"
    return f"{value} [{low}, {high}]{tail}{wide}"


def figure(value: float, *, signed: bool = False) -> str:
    """Whole numbers whole, others to two places, or to two digits where they are small."""
    sign = "+" if signed and value > 0 else ""
    if value in (float("inf"), float("-inf")):
        return "no bound"
    if float(value).is_integer():
        return f"{sign}{int(value)}"
    if abs(value) >= 1e6 or abs(value) < 1e-3:
        return f"{sign}{value:.2g}"
    return f"{sign}{value:.2f}" if abs(value) >= 0.05 else f"{sign}{value:.2g}"
