"""All claims judged, the verdicts on record, and where the two differ."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from suite.analysis.published import find_table
from suite.analysis.tables import CLAIMS, PARTS, Row, read_table, table_path, write_table
from suite.claims.claim import JUDGED, WRITTEN, Claim
from suite.claims.measured import judge
from suite.claims.verdict import Judgement


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
