"""All claims judged, the verdicts on record, where the two differ, and how a row of the record reads in words and figures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from suite.analysis.columns import CLAIMS, PARTS
from suite.analysis.published import find_table
from suite.analysis.tables import Row, read_table, table_path, write_table
from suite.claims.claim import JUDGED, WRITTEN, Claim, Word
from suite.claims.measured import judge_measured
from suite.claims.verdict import Judgement, combine, of_claim


def judge(root: Path, claim: Claim) -> Judgement:
    """One claim, from tables."""
    return of_claim(claim, *(judge_measured(root, claim, some) for some in (claim.parts, claim.premises)))


def judge_all(root: Path, claims: Iterable[Claim]) -> list[Judgement]:
    """All of them, in order."""
    return [judge(root, claim) for claim in claims]


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
    """To which of `MEASURED` a claim on record belongs."""
    return MEASURED[row["kind"] not in JUDGED]


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
