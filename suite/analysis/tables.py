"""Reading and writing the derived tables: CSV files whose bytes depend on their content alone.

Rows are dicts. Writing sorts them by the key columns, prints floats with nine significant digits (and
rounding noise as 0), truth as yes/no, a missing value as an empty cell, and ends lines with a bare newline;
so the same rows give the same bytes on every machine, and a diff of two commits shows what changed. Reading
gives the values back by the columns' kinds.
"""

from __future__ import annotations

import csv
import io
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from suite.analysis.columns import Column, Table
from suite.runs.files import write_atomic

Value = str | int | float | bool | None
Row = dict[str, Value]


TABLES: Final = "tables"
"""The folder of tables in a results folder, and in what is published."""

NOISE = 1e-12
"""Floats smaller than this are what subtraction leaves of equal numbers; they are written as 0."""


class TableError(ValueError):
    """A row does not fit its table, or a file is not the table it should be."""


def _cell(value: Value, column: Column) -> str:
    if value is None:
        return ""
    fits = {
        "text": isinstance(value, str),
        "flag": isinstance(value, bool),
        "int": isinstance(value, int) and not isinstance(value, bool),
        "float": isinstance(value, int | float) and not isinstance(value, bool),
    }[column.kind]
    if not fits or (isinstance(value, float) and math.isnan(value)):
        raise TableError(f"column {column.name} holds {column.kind}, not {value!r}")
    if isinstance(value, bool):
        return "yes" if value else "no"
    if column.kind == "float" and isinstance(value, int | float):
        return format(0.0 if abs(value) < NOISE else value, ".9g")
    return str(value).replace("\r\n", "\n").replace("\r", "\n")


def cell_value(cell: str, column: Column) -> Value:
    """The value that a cell of a file holds. Raises ValueError or KeyError for one of another kind."""
    if cell == "":
        return None
    if column.kind == "text":
        return cell
    if column.kind == "flag":
        return {"yes": True, "no": False}[cell]
    return int(cell) if column.kind == "int" else float(cell)


def _sort_key(row: Mapping[str, Value], table: Table) -> tuple[tuple[bool, float, str], ...]:
    def order(value: Value) -> tuple[bool, float, str]:
        if value is None:
            return (False, 0.0, "")
        return (True, 0.0, value) if isinstance(value, str) else (True, float(value), "")

    return tuple(order(row[name]) for name in table.names[: table.keys])


def number(row: Mapping[str, Value], name: str) -> float:
    """The number in a cell. Raises TableError where it is empty or a text."""
    value = row[name]
    if value is None or isinstance(value, str):
        raise TableError(f"column {name} holds {value!r} where a number is needed")
    return float(value)


def to_csv(table: Table, rows: Iterable[Mapping[str, Value]]) -> str:
    """The file's text: header and rows sorted by the key columns.

    Raises TableError when a row has other columns, a value of another kind, or the key of another row.
    """
    names, listed = table.names, list(rows)
    for row in listed:
        if set(row) != set(names):
            odd = sorted(set(row) ^ set(names))
            raise TableError(f"a row of table {table.suffix} lacks or adds: {', '.join(odd)}")
    listed.sort(key=lambda row: _sort_key(row, table))
    for before, after in itertools.pairwise(listed):
        if _sort_key(before, table) == _sort_key(after, table):
            key = ", ".join(f"{name} {after[name]}" for name in names[: table.keys])
            raise TableError(f"two rows of table {table.suffix} have the key {key}; give the runs two arms")
    return csv_text(table.columns, listed)


def csv_text(columns: Sequence[Column], rows: Iterable[Mapping[str, Value]]) -> str:
    """Header and rows as they are given. Raises TableError for a value of another kind."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([column.name for column in columns])
    writer.writerows([_cell(row[column.name], column) for column in columns] for row in rows)
    return text.getvalue()


def from_csv(table: Table, text: str, source: str = "table") -> list[Row]:
    """Rows of the file's text, in file order. Raises TableError for another header or a value of another
    kind.
    """
    lines: Sequence[list[str]] = list(csv.reader(io.StringIO(text, newline="")))
    if not lines or tuple(lines[0]) != table.names:
        raise TableError(f"{source} does not have the columns of table {table.suffix}; make the tables again")
    rows: list[Row] = []
    for number, cells in enumerate(lines[1:], start=2):
        if len(cells) != len(table.columns):
            raise TableError(f"{source}, row {number}: {len(cells)} cells, not {len(table.columns)}")
        try:
            rows.append({c.name: cell_value(cell, c) for c, cell in zip(table.columns, cells, strict=True)})
        except (ValueError, KeyError) as error:
            raise TableError(f"{source}, row {number}: {error}") from error
    return rows


def table_path(results_root: Path, table: Table, sweep: str = "") -> Path:
    """Where a table is written, and lies in a results folder: tables/<sweep>-<suffix>.csv; a sweep in a folder: in that folder.

    Where one is read, `suite.analysis.published` says.
    """
    name = f"{sweep}-{table.suffix}.csv" if sweep else f"{table.suffix}.csv"
    return Path(results_root) / TABLES / name


def read_table(path: Path, table: Table) -> list[Row]:
    """Rows of a file. Raises TableError when there is none or it is another table."""
    try:
        text = path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        raise TableError(
            f"{path} does not exist; run `bandwise report` on the sweep to make the tables"
        ) from None
    return from_csv(table, text, str(path))


def write_table(path: Path, table: Table, rows: Iterable[Mapping[str, Value]]) -> Path:
    """Replace the file by these rows, whole or not at all. Raises TableError, and StoreError when it cannot
    be written.
    """
    write_atomic(path, to_csv(table, rows))
    return path
