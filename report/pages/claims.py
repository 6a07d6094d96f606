"""The part of a page that is about claims, and a page of all of them: one line a claim, and all that decided it below."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from report.drawing.table import Cell, Column, Line, Row, View
from report.rendering import ALONE, Links, ReportError, write_page
from suite.analysis.columns import CLAIMS, PARTS
from suite.analysis.published import find_frame, origin_words
from suite.analysis.tables import rows_of
from suite.claims.claim import JUDGED, WORDS
from suite.claims.verdict import MEASURED, deciding, effect, group_of, statements


@dataclass(frozen=True)
class Verdicts:
    """Rows of claims and of their parts; empty where there is no record."""

    claims: Sequence[Row] = ()
    parts: Sequence[Row] = ()

    def of(self, sources: Collection[str]) -> Verdicts:
        """Those that one of these studies or sessions decides."""
        rows = [row for row in self.claims if set((row["sources"] or "").split(", ")) & set(sources)]
        return Verdicts(rows, self.parts)

    def parts_of(self, row: Row) -> list[Row]:
        """Premises of a claim, then its parts, in order."""
        own = [part for part in self.parts if part["claim"] == row["claim"]]
        return sorted(own, key=lambda part: (part["role"] != "premise", (part["part"] or 0)))


def load_verdicts(results_root: Path) -> Verdicts:
    """What is on record."""
    frames = (find_frame(results_root, table) for table in (CLAIMS, PARTS))
    return Verdicts(*(() if frame is None else rows_of(frame) for frame in frames))


CSS: Final = MappingProxyType({"reproduced": "yes", "contradicted": "no"})
"""Verdict -> class; the others are `maybe`, and quiet where nobody judged."""
COLUMNS: Final = (
    Column("claim", "claim", "Its id; what decided it stands below the table."),
    Column("statement", "what is claimed", "In our words."),
    Column("verdict", "verdict", "At our scale."),
    Column("effect", "effect", "Of the part that decides, with its interval.", True),
    Column("bar", "bar", "What that number has to reach."),
    Column("parts", "of", "Numbers that must hold: the effect is one of so many.", True),
    Column("n", "n", "Pairs of seeds, or rounds.", True),
    Column("said", "who says it"),
    Column("paper", "paper", hidden=True),
    Column("kind", "kind"),
)


def claims_parts(verdicts: Verdicts) -> dict[str, Any] | None:
    """The table and what decided each claim; None without claims."""
    if not verdicts.claims:
        return None
    words = [row["verdict"] for row in verdicts.claims]
    shown = [word for word in WORDS if word in words]
    return {
        "sentence": tally(verdicts.claims),
        "table": View(
            "claims",
            "Claims",
            COLUMNS,
            tuple(_line(row, verdicts) for row in verdicts.claims),
            tuple((_key(word), word) for word in shown),
            "Verdicts shown",
        ),
        "details": [_detail(row, verdicts) for row in verdicts.claims],
    }


def build_claims_page(
    results_root: Path, out: Path | None = None, links: Links = ALONE
) -> tuple[Path, list[str]]:
    """The page of all claims on record, by default <root>/reports/claims.html, and its findings in sentences."""
    verdicts = load_verdicts(results_root)
    parts = claims_parts(verdicts)
    if parts is None:
        raise ReportError("no verdict is on record; run `bandwise claims --write` first")
    path = out if out is not None else results_root / "reports" / "claims.html"
    tables = ((CLAIMS, verdicts.claims), (PARTS, verdicts.parts))
    origin = origin_words(results_root, (CLAIMS, PARTS))
    return write_page(
        path, "claims_page.html.j2", findings(verdicts), tables, {"claims": parts, "origin": origin}, links
    )


def tally(claims: Sequence[Row]) -> str:
    """How many statements ended how, those that trainings or timings decided apart: the one count of all pages.

    `measured: 39, 12 reproduced, ...; not measured: 21, 15 not run, ...`
    """

    def counted(rows: Sequence[Row]) -> str:
        words = [row["verdict"] for row in rows]
        return ", ".join(f"{words.count(word)} {word}" for word in WORDS if word in words)

    once = statements(claims)
    groups = [(name, [row for row in once if group_of(row) == name]) for name in MEASURED]
    return "; ".join(f"{name}: {len(rows)}, {counted(rows)}" for name, rows in groups if rows)


def findings(verdicts: Verdicts) -> list[str]:
    """What a reader should know first: the count, and what the authors say themselves that was contradicted."""
    own = [row for row in verdicts.claims if row["own"]]
    once = statements(verdicts.claims)
    found = [
        f"{len(verdicts.claims)} claims judge {len(once)} statements; authors make {len(statements(own))} of them themselves.",
        f"All statements: {tally(verdicts.claims)}.",
        f"The authors' own: {tally(own)}.",
    ]
    wrong = [row for row in statements(own) if row["verdict"] == "contradicted"]
    return found + [f"Contradicted{_scale(row)}, {row['paper']}: {row['statement']}" for row in wrong]


def _scale(row: Row) -> str:
    return " at our scale" if row["kind"] in JUDGED else ""


def _key(word: str) -> str:
    return word.replace(" ", "-")


def claim_anchor(row: Row) -> str:
    return f"claim-{row['claim']}"


def verdict_css(word: str) -> str:
    return CSS.get(word, "quiet" if word.startswith(("not ", "cannot ")) else "maybe")


def _line(row: Row, verdicts: Verdicts) -> Line:
    parts = verdicts.parts_of(row)
    part = deciding(row, parts)
    value, ends = None, None
    if part is not None and part["effect"] is not None:
        value = part["effect"]
        ends = None if part["low"] is None else (part["low"], part["high"])
    count = sum(one["role"] == "part" for one in parts)
    cells = {
        "claim": Cell(row["claim"], row["claim"], link=claim_anchor(row)),
        "statement": Cell(row["statement"], row["statement"], css="reason"),
        "verdict": Cell(row["verdict"], row["verdict"], css=verdict_css(row["verdict"])),
        "effect": Cell("" if part is None else effect(part), value, "", ends),
        "bar": Cell("" if part is None else part["bar"], None if part is None else part["bar"]),
        "n": Cell(
            "" if part is None or part["n"] is None else str(part["n"]),
            None if part is None else part["n"],
        ),
        "said": Cell(row["said_by"], row["said_by"], css="reason" if row["own"] else "reason quiet"),
        "paper": Cell(f"{row['paper']}, {row['arxiv']}", row["paper"]),
        "kind": Cell(row["kind"], row["kind"]),
        "parts": Cell(str(count), count),
    }
    return Line(cells, _key(row["verdict"]))


def _detail(row: Row, verdicts: Verdicts) -> dict[str, Any]:
    known = {
        "paper": f"{row['paper']}, arXiv {row['arxiv']}",
        "who says it": f"{row['said_by']}{'' if row['own'] else ' (not the authors)'}",
        "decided by": f"{row['kind']}{': ' if row['sources'] else ''}{row['sources'] or ''}",
        "decision": row["decision"],
        "scale": row["scale"],
        "written down": row["written"],
        "why": row["why"],
        "note": row["note"],
        "again by": row["command"],
    }
    return {
        "id": claim_anchor(row),
        "claim": row["claim"],
        "statement": row["statement"],
        "verdict": row["verdict"],
        "css": verdict_css(row["verdict"]),
        "facts": [(name, value) for name, value in known.items() if value],
        "parts": [
            {
                "what": f"{'Premise: ' if part['role'] == 'premise' else ''}{part['what']}",
                "bar": part["bar"],
                "effect": effect(part),
                "n": "" if part["n"] is None else part["n"],
                "verdict": part["verdict"],
                "css": verdict_css(part["verdict"]),
                "reason": part["reason"] or "",
            }
            for part in verdicts.parts_of(row)
        ],
    }
