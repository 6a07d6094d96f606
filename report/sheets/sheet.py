"""A page of its own beside those of studies: findings, sections, and its tables inside as JSON for download."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from report.links import ALONE, Links
from report.rendering import asset, embedded, table_data, template
from suite.analysis.columns import Table
from suite.analysis.tables import Row, to_csv
from suite.runs.files import write_atomic

Tables = Sequence[tuple[Table, Sequence[Row]]]


def write_sheet(
    path: Path,
    name: str,
    headline: Sequence[str],
    tables: Tables,
    parts: Mapping[str, Any],
    links: Links = ALONE,
) -> tuple[Path, list[str]]:
    """Write the page of a template that extends `sheet.html.j2`; returns its path and the findings.

    The same arguments give the same bytes. Raises StoreError where it cannot be written.
    """
    write_atomic(path, render_sheet(name, headline, tables, parts, links))
    return path, list(headline)


def render_sheet(
    name: str, headline: Sequence[str], tables: Tables, parts: Mapping[str, Any], links: Links = ALONE
) -> str:
    """The page's HTML."""
    return template(name).render(
        links=links,
        headline=headline,
        tables=[f"{table.suffix}.csv" for table, _ in tables],
        data=embedded({"tables": {f"{table.suffix}.csv": _cells(table, rows) for table, rows in tables}}),
        css=asset("style.css"),
        js=asset("table.js"),
        **{"origin": "", **parts},
    )


def _cells(table: Table, rows: Sequence[Row]) -> dict[str, Any]:
    """A table's cells as they stand in its CSV file."""
    lines = list(csv.reader(io.StringIO(to_csv(table, rows), newline="")))
    return table_data(table.names, lines[1:])
