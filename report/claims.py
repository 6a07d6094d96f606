"""Claims: a table with a line each, and all that decided each of them below."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from report.pages import Place, ReportError, slug, write_page
from report.tables import Cell, Column, View, text
from suite.analysis.published import OF_CLAIMS, find_frame, source
from suite.analysis.tables import CLAIMS, PARTS, Row, rows_of, to_csv
from suite.claims.claim import JUDGED, WORDS
from suite.claims.verdict import MEASURED, briefly, deciding, effect, group_of, statements


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


CSS: Final[Mapping[str, str]] = MappingProxyType(
    {
        word: {"reproduced": "yes", "contradicted": "no"}.get(
            word, "quiet" if word.startswith(("not ", "cannot ")) else "maybe"
        )
        for word in WORDS
    }
)
"""Verdict -> class; quiet where nobody judged."""


def claims_view(verdicts: Verdicts, details: str | None, group: str | None = None) -> View:
    """The table.

    Args:
        verdicts: Of what there is.
        details: The page on which stands what decided them; empty: the one that has the table; None: nowhere.
        group: Only claims of this one of `MEASURED`.

    Returns:
        A row a claim.
    """

    def name(row: Row) -> Cell:
        return Cell(row["claim"], link="" if details is None else f"{details}#{anchor(row)}")

    def of_part(column: str) -> Any:
        def make(row: Row) -> Cell:
            part = deciding(row, verdicts.parts_of(row))
            if part is None:
                return Cell("")
            if column == "effect":
                return Cell(effect(part), part["effect"])
            return Cell("" if part[column] is None else str(part[column]))

        return make

    columns = (
        Column("claim", name, "Its id; leads to what decided it."),
        Column("what is claimed", lambda row: Cell(briefly(row, claims), css="reason"), "In our words."),
        Column("verdict", text("verdict", classes=CSS), "At our scale."),
        Column("effect", of_part("effect"), "Of the part that decides, with its interval.", True),
        Column("bar", of_part("bar"), "What that number has to reach."),
        Column(
            "of", lambda row: Cell(str(sum(part["role"] == "part" for part in verdicts.parts_of(row)))),
            "Numbers that must hold: the effect is one of so many.", True, True,
        ),
        Column("n", of_part("n"), "Pairs of seeds, or rounds.", True),
        Column("who says it", lambda row: Cell(row["said_by"], css="reason" if row["own"] else "reason quiet")),
        Column("paper", lambda row: Cell(f"{row['paper']}, {row['arxiv']}"), hidden=True),
        Column("kind", text("kind"), hidden=True),
    )  # fmt: skip
    claims = [row for row in verdicts.claims if group is None or group_of(row) == group]
    caption = f"Claims, {group}" if group else "Claims"
    return View(f"{slug(caption)}-table", caption, columns, claims)


def build_claims_page(results_root: Path, place: Place) -> list[str]:
    """Write the page of all claims on record; its findings in sentences. Raises ReportError where there are none."""
    verdicts = load_verdicts(results_root)
    if not verdicts.claims:
        raise ReportError("no verdict is on record; run `bandwise claims --write` first")
    tables = ((CLAIMS, verdicts.claims), (PARTS, verdicts.parts))
    said = findings(verdicts)
    write_page(
        place, "claims", headline=said, origin=f"{OF_CLAIMS}: {source(results_root, OF_CLAIMS).words}",
        views=[(group, claims_view(verdicts, "", group)) for group in MEASURED],
        details=[_detail(row, verdicts) for row in verdicts.claims],
        tables=[place.save(f"{table.suffix}.csv", to_csv(table, rows)) for table, rows in tables],
    )  # fmt: skip
    return said


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
    scale = {True: " at our scale", False: ""}
    return found + [
        f"Contradicted{scale[row['kind'] in JUDGED]}, {row['paper']}: {row['statement']}" for row in wrong
    ]


def anchor(row: Row) -> str:
    """The id of what decided a claim, on the page of all claims."""
    return f"claim-{row['claim']}"


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
    columns = (
        Column(
            "number", lambda part: Cell(f"{'Premise: ' if part['role'] == 'premise' else ''}{part['what']}")
        ),
        Column("bar", text("bar")),
        Column("found", lambda part: Cell(effect(part))),
        Column("n", text("n"), numeric=True),
        Column("verdict", text("verdict", classes=CSS)),
        Column("why", text("reason", "reason")),
    )
    return {
        "id": anchor(row),
        "claim": row["claim"],
        "statement": row["statement"],
        "verdict": row["verdict"],
        "css": CSS.get(row["verdict"], "maybe"),
        "facts": [(name, value) for name, value in known.items() if value],
        "parts": View(f"parts-{row['claim']}", f"Numbers of {row['claim']}", columns, verdicts.parts_of(row)),
    }
