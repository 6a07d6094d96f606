"""Made-up tables of a study with a budget ladder and of its session: what is at equal accuracy on a link is known."""

from __future__ import annotations

from pathlib import Path

from suite.analysis.collect import Collected, collect, write
from suite.analysis.ladder_columns import ISO_SECONDS
from suite.analysis.speed_columns import session_table_path
from suite.analysis.tables import Row, number, write_table
from tests.report import made_up_speed as fast
from tests.suite.analysis import made_up_ladder as ladder

WIDER = 1.03
"""What the session adds to either end of an interval."""


def iso_rows(found: Collected, links: tuple[str, ...]) -> list[Row]:
    """Seconds at equal accuracy: the speedup of a step times that in steps."""
    rows = []
    for link in links:
        for row in found.iso:
            if row["cost"] != "steps":
                continue
            over = fast.speedup(str(row["arm"]), link)
            known = row["ratio"] is not None
            cells = {
                "speedup": number(row, "ratio") * over if known else None,
                "low": number(row, "low") * over / WIDER if known else None,
                "high": number(row, "high") * over * WIDER if known else None,
            }
            kept = {name: row[name] for name in ("sharding", "arm", "target", "n", "censored", "reason")}
            rows.append({"link": link, "n_rounds": 6, **kept, **cells})
    return rows


def save(root: Path, timed: bool = True) -> Collected:
    """Run folders, tables, and where `timed` those of a session over two links; returns the sweep's tables."""
    study = ladder.study_of()
    ladder.run_all(root, study)
    found = collect(root, study)
    write(root, found)
    if timed:
        links = [fast.link_facts(link) for link in fast.LINKS]
        fast.save(root, fast.facts("timed", "climbed", links), fast.tables(arms=ladder.MADE))
        path = session_table_path(root, ISO_SECONDS, "timed")
        write_table(path, ISO_SECONDS, iso_rows(found, fast.LINKS))
    return found
