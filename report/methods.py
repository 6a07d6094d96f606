"""All methods of the catalogue in one table: what each sends, how it did in studies, what came of its paper's claims."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from reference_impls.catalogue import BUILT_IN
from report import numbers as write
from report.claims import Verdicts
from report.data import StudyData
from report.figures import FAMILIES
from report.numbers import number
from report.pages import Place, write_page
from report.tables import Cell, Column, View
from suite.analysis.tables import Row
from suite.claims.claim import WORDS
from suite.claims.verdict import statements
from suite.runs.files import disk_cached

WORKERS: Final = 8
"""For which the table says what a worker sends."""


@dataclass(frozen=True)
class Known:
    """What studies know of a method: rows of their summaries that are compared with a baseline, and the studies' names."""

    rows: Sequence[Row] = ()
    studies: Sequence[str] = ()

    @property
    def ratios(self) -> list[float]:
        """Times fewer bytes, of those that have a number."""
        return [value for row in self.rows if (value := number(row["bytes_ratio"])) is not None]


def bits_of(name: str) -> dict[str, float]:
    """Bits a parameter that a worker sends, by kind of step: kept for this state of the code, since it takes torch."""

    def count() -> dict[str, float]:
        from reference_impls import create  # here, since it loads torch
        from reference_impls.facts import facts

        return dict(sorted(facts(create(name), sizes=(WORKERS,)).bits.get(WORKERS, {}).items()))

    found: dict[str, float] = disk_cached(["bits of a method", name, WORKERS, 2], count)
    return found


def methods_view(studies: Mapping[str, StudyData], verdicts: Verdicts) -> View:
    """The table, by family. studies: by the address of their page."""
    known: dict[str, Known] = {}
    for name in BUILT_IN:
        rows = {
            address: [row for panel in study.panels for row in panel.summary if row["algorithm"] == name]
            for address, study in studies.items()
        }
        known[name] = Known(
            [row for own in rows.values() for row in own if row["baseline"] is not None],
            [studies[address].sweep for address, own in rows.items() if own],
        )

    def bits(name: str) -> Cell:
        found = bits_of(name)
        told = [f"{kind} {bits:.3g}" if len(found) > 1 else f"{bits:.3g}" for kind, bits in found.items()]
        return Cell(
            "; ".join(told) or write.MISSING,
            min(found.values(), default=None),
            css="reason",
        )

    def equal(name: str) -> Cell:
        rows = known[name].rows
        even = sum(row["equal"] == "yes" for row in rows)
        return Cell(write.share(even, len(rows)), even) if rows else Cell(write.MISSING)

    def ratio(name: str) -> Cell:
        least, most = (end(known[name].ratios, default=None) for end in (min, max))
        words = dict.fromkeys([write.ratio(least), write.ratio(most)])
        return Cell(" to ".join(words), most)

    def claims(name: str) -> Cell:
        paper = BUILT_IN[name].paper
        own = [row for row in verdicts.claims if paper and row["arxiv"] == paper]
        words = Counter(row["verdict"] for row in statements(own))
        return Cell(
            ", ".join(f"{words[word]} {word}" for word in WORDS if words[word]) or write.MISSING, css="reason"
        )

    columns = (
        Column("method", lambda name: Cell(name, family=BUILT_IN[name].family), "`bandwise info NAME` tells all of it."),
        Column("family", lambda name: Cell(FAMILIES[BUILT_IN[name].family]), hidden=True),
        Column("what it does", lambda name: Cell(BUILT_IN[name].summary, css="reason")),
        Column(
            "bits a parameter", bits, f"Of one of {WORKERS} workers, by kind of step; plain fp32 all-reduce sends 56.", True
        ),
        Column(
            "equal", equal, "Settings of studies in which its quality is equal, of those in which it was compared.", True
        ),
        Column("fewer bytes", ratio, "Of the whole training in studies, least to most.", True),
        Column("claims", claims, "Of its paper, by verdict."),
        Column("studies", lambda name: Cell(", ".join(known[name].studies) or write.MISSING, css="reason"), "That trained it."),
        Column("paper", lambda name: Cell(BUILT_IN[name].paper or write.MISSING), "Number at arXiv."),
    )  # fmt: skip
    names = [name for family in FAMILIES for name, entry in BUILT_IN.items() if entry.family == family]
    return View("methods-table", "Methods of the catalogue", columns, names)


def build_methods_page(studies: Mapping[str, StudyData], verdicts: Verdicts, place: Place) -> None:
    """Write the page of all methods."""
    arms = {row["algorithm"] for study in studies.values() for panel in study.panels for row in panel.methods}
    said = (
        f"{len(BUILT_IN)} methods are in the catalogue; studies here compared {len(arms & BUILT_IN.keys())} of them with "
        "uncompressed training."
    )
    write_page(place, "methods", headline=[said], view=methods_view(studies, verdicts))
