"""The tables of `docs/claims.md`, made from the verdicts on record; blocks as `suite.analysis.document` says."""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType
from typing import Final

from suite.analysis.document import Blocks, DocumentError, fill, markdown, missing, rows_of
from suite.analysis.tables import Row
from suite.claims.claim import WORDS
from suite.claims.columns import CLAIMS, GROUPS, PARTS, deciding, effect, group_of

DOCUMENT: Final = Path(__file__).resolve().parents[2] / "docs" / "claims.md"
WRITTEN: Final = "bandwise claims --write"


def filled(text: str, results_root: Path) -> str:
    """The document with its blocks made anew."""
    return fill(text, results_root, BLOCKS)


def counts(root: Path) -> str:
    """Verdicts by what decides them and by who says it: what was measured is never added to arithmetic."""
    rows = rows_of(root, CLAIMS)
    if rows is None:
        return missing(WRITTEN)

    def line(name: str, who: str, some: list[Row]) -> list[object]:
        words = [row["verdict"] for row in some]
        return [name, who, *(words.count(word) for word in WORDS), len(some)]

    lines = [
        line(name, who, [row for row in rows if group_of(row) == name and row["own"] is own])
        for name in GROUPS
        for who, own in (("the authors", True), ("others, or ours", False))
    ]
    return markdown(("kind", "said by", *WORDS, "all"), lines)


def of_file(root: Path, file: str) -> str:
    """The claims of one file, a line each."""
    rows, parts = rows_of(root, CLAIMS), rows_of(root, PARTS)
    if rows is None or parts is None:
        return missing(WRITTEN)
    own = [row for row in rows if row["file"] == f"{file}.yaml"]
    if not own:
        raise DocumentError(f"no claim of claims/{file}.yaml is on record: {WRITTEN}, or another name")
    return markdown(
        ("claim", "what", "said by", "kind", "verdict", "effect", "bar", "n"),
        [_line(row, parts) for row in own],
    )


def _line(row: Row, parts: list[Row]) -> list[object]:
    mine = [part for part in parts if part["claim"] == row["claim"]]
    part = deciding(row, mine)
    count = sum(one["role"] == "part" for one in mine)
    more = f", one of {count}" if count > 1 else ""
    shown = "" if part is None else effect(part) + more
    return [
        f"`{row['claim']}`",
        _cell(row["statement"]),
        _cell(row["said_by"]),
        row["kind"],
        f"*{row['verdict']}*",
        _cell(shown) if part is not None else _cell(row["why"]),
        "" if part is None else _cell(part["bar"]),
        None if part is None else part["n"],
    ]


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ").strip()


BLOCKS: Final[Blocks] = MappingProxyType({"counts": counts, "claims": of_file})
