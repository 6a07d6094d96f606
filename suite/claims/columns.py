"""The verdicts on record: their columns, one row a claim and one a part of it, and how a row reads in words and figures.

The command line, the page and `docs/claims.md` say it alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from suite.analysis.columns import Table, described
from suite.analysis.tables import Row
from suite.claims.claim import JUDGED, Word
from suite.claims.verdict import combine

CLAIMS: Final = Table(
    "claims",
    (
        *described(
            "text",
            claim="its id, stable",
            file="of the folder claims",
            paper="short name of the paper",
            arxiv="of the paper",
            said_by="who says it, and where",
        ),
        *described(
            "flag", own="the authors say it themselves; no: it is never shown as a claim of the paper"
        ),
        *described(
            "text",
            of="claim whose statement it is, in another cell or against another baseline; empty: its own",
            statement="in our words",
            kind="training, speed, not-run, not-comparable",
            sources="the studies or session that decide, with commas",
            decision="how, in words, where the bars of its parts do not say it all",
            scale="at which a training or a speed holds",
            verdict="reproduced, partly, undecided, contradicted, cannot tell, not comparable, not run",
            why="in a sentence",
            written="when the claim was written down: before the runs, while they went on, after them",
            note="what to know beside it",
            command="what judges it anew",
        ),
        *described("int", parts="parts that must hold", n="seeds or rounds planned"),
    ),
    keys=1,
)

PARTS: Final = Table(
    "claims-parts",
    (
        *described("text", claim="id of the claim", role="part, or premise: must hold for the study to tell"),
        *described("int", part="number, from 1"),
        *described("text", what="the number in words", bar="side and threshold", unit="of the number"),
        *described(
            "float", effect="the number", low="of its interval", high="its upper end", level="its own"
        ),
        *described("int", n="pairs of seeds, or rounds"),
        *described("float", could_see="half the interval's width: the smallest effect this n could see"),
        *described("text", verdict="as in claims", reason="why, where the numbers do not say it"),
    ),
    keys=3,
)

VERDICT_TABLES: Final = (CLAIMS, PARTS)
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
