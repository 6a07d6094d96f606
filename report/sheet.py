"""A page of its own beside those of studies: findings, sections, and its tables inside as JSON for download."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from report.rendering import asset, template
from suite.analysis.columns import Table
from suite.analysis.tables import Row, to_csv
from suite.runs.store import write_atomic

Tables = Sequence[tuple[Table, Sequence[Row]]]


def write_sheet(
    path: Path, name: str, headline: Sequence[str], tables: Tables, parts: Mapping[str, Any]
) -> tuple[Path, list[str]]:
    """Write the page of a template that extends `sheet.html.j2`; returns its path and the findings.

    The same arguments give the same bytes. Raises StoreError where it cannot be written.
    """
    write_atomic(path, render_sheet(name, headline, tables, parts))
    return path, list(headline)


def render_sheet(name: str, headline: Sequence[str], tables: Tables, parts: Mapping[str, Any]) -> str:
    """The page's HTML."""
    return template(name).render(
        headline=headline,
        tables=[f"{table.suffix}.csv" for table, _ in tables],
        data=embedded(tables),
        css=asset("style.css"),
        js=asset("table.js"),
        **parts,
    )


def embedded(tables: Tables) -> str:
    """Tables as JSON for a script element: cells as they stand in the CSV files, nothing that could end the element."""
    found = {}
    for table, rows in tables:
        cells = list(csv.reader(io.StringIO(to_csv(table, rows), newline="")))[1:]
        found[f"{table.suffix}.csv"] = {"columns": list(table.names), "rows": cells}
    text = json.dumps({"tables": found}, sort_keys=True, ensure_ascii=False, allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
