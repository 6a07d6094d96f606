"""Reading and writing the derived tables: pandas frames, and CSV files whose bytes depend on their content alone.

A table is a DataFrame with the columns that `suite.analysis.columns` declares. Kinds of columns are dtypes of pandas: text is
``str``, int is ``Int64``, float is ``float64``, a flag is ``boolean``; what is missing is missing as pandas has it. Writing sorts
by the key columns, prints floats with nine significant digits (and rounding noise as 0), truth as yes/no, a missing value as an
empty cell, and ends lines with a bare newline; so the same frame gives the same bytes on every machine, and a diff of two commits
shows what changed. Reading takes the declared columns and passes others over, which older tables may have.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import pandas as pd
from pandas.api.types import infer_dtype

from suite.analysis.columns import Column, Kind, Table
from suite.runs.files import write_atomic

Value = str | int | float | bool | None
Row = dict[str, Any]
"""A row of a table as a plain dict; a missing value is None."""

TABLES: Final = "tables"
"""The folder of tables in a results folder, and in what is published."""

SESSION: Final = "session-"
"""What the names of a session's tables begin with."""

NOISE: Final = 1e-12
"""Floats smaller than this are what subtraction leaves of equal numbers; they are written as 0."""

DTYPES: Final[Mapping[Kind, Any]] = {"text": "str", "int": "Int64", "float": "float64", "flag": "boolean"}
_FITS: Final[Mapping[Kind, tuple[str, ...]]] = {
    "text": ("string",),
    "int": ("integer",),
    "float": ("floating", "integer", "mixed-integer-float"),
    "flag": ("boolean",),
}
"""What pandas finds in values that fit a kind."""


class TableError(ValueError):
    """A row does not fit its table, or a file is not the table it should be."""


def frame_of(table: Table, rows: Iterable[Mapping[str, Value]]) -> pd.DataFrame:
    """A frame of rows.

    Args:
        table: Its columns; the frame has them all, in their order.
        rows: Of values by column; what is None, or not named, is missing.

    Returns:
        DataFrame with a row each, in the order given, and the dtypes of the kinds.

    Raises:
        TableError: A row has a column that is not declared, or a value of another kind; the message names the column.
    """
    listed, names = list(rows), set(table.names)
    for row in listed:
        if unknown := row.keys() - names:
            raise TableError(f"table {table.suffix} has no column {', '.join(sorted(unknown))}")
        if odd := [name for name, value in row.items() if value != value]:
            raise TableError(f"column {odd[0]} holds nan: what is missing is None")
    return checked(table, pd.DataFrame(listed, columns=list(table.names), dtype="object"))


def rows_of(frame: pd.DataFrame) -> list[Row]:
    """The rows of a frame as dicts of plain values, None where one is missing."""
    plain = frame.astype("object")
    rows: list[Row] = plain.where(frame.notna(), None).to_dict("records")  # type: ignore[assignment]
    return rows


def checked(table: Table, frame: pd.DataFrame) -> pd.DataFrame:
    """The declared columns of a frame in their order, with their dtypes.

    Args:
        table: What the frame should be.
        frame: Holds its columns, in any order.

    Returns:
        The same rows.

    Raises:
        TableError: It lacks or adds a column, or one holds another kind of values.
    """
    if set(frame.columns) != set(table.names):
        odd = sorted(set(frame.columns) ^ set(table.names))
        raise TableError(f"table {table.suffix} lacks or adds: {', '.join(odd)}")
    return pd.DataFrame({c.name: _typed(c, frame[c.name]) for c in table.columns})


def _typed(column: Column, series: pd.Series[Any]) -> pd.Series[Any]:
    """A column of any frame with the dtype of its kind."""
    dtype = DTYPES[column.kind]
    if series.dtype == dtype:
        return series
    known = series.dropna()
    if known.empty:
        return pd.Series(index=series.index, dtype=dtype)
    if infer_dtype(known) not in _FITS[column.kind]:
        raise TableError(f"column {column.name} holds {column.kind}, not {infer_dtype(known)}")
    found: pd.Series = series.astype(dtype)
    return found


def to_csv(table: Table, frame: pd.DataFrame | Iterable[Mapping[str, Value]]) -> str:
    """The file's text: header, and rows sorted by the key columns, what is missing first.

    Args:
        table: The columns, and how many of them are the key; without a key rows stay as they are.
        frame: A frame, or rows.

    Returns:
        Text with bare newlines.

    Raises:
        TableError: Other columns, a value of another kind, or two rows of one key.
    """
    whole = checked(table, frame) if isinstance(frame, pd.DataFrame) else frame_of(table, frame)
    key = list(table.names[: table.keys])
    if key:
        twice = whole[whole.duplicated(key)]
        if len(twice):
            names = ", ".join(f"{name} {value}" for name, value in rows_of(twice[key])[0].items())
            raise TableError(f"two rows of table {table.suffix} have the key {names}; give the runs two arms")
        whole = whole.sort_values(key, na_position="first", kind="stable")
    cells = {
        c.name: _cells(c, whole[c.name])
        for c in table.columns
        if c.name not in table.rare or whole[c.name].notna().any()
    }
    return str(pd.DataFrame(cells).to_csv(index=False, lineterminator="\n", float_format="%.9g"))


def _cells(column: Column, series: pd.Series) -> pd.Series:
    """A column as it is written."""
    if column.kind == "float":
        return series.mask(series.abs() < NOISE, 0.0)
    if column.kind == "flag":
        return series.map({True: "yes", False: "no"}, na_action="ignore")
    if column.kind == "text":
        return series.str.replace("\r\n", "\n").str.replace("\r", "\n")
    return series


def parsed(table: Table, text: str, source: str = "table") -> pd.DataFrame:
    """The frame of a file's text, in file order.

    Args:
        table: The columns that the header must name; the rare ones may be absent, and are without values then.
        text: What `to_csv` made.
        source: What errors call the file.

    Returns:
        DataFrame with the declared dtypes.

    Raises:
        TableError: A column is missing, a row has more or fewer cells than the header, or a cell is of another kind.
    """
    lines = list(csv.reader(io.StringIO(text, newline="")))
    header = lines[0] if lines else []
    if not set(header) >= set(table.names) - set(table.rare):
        raise TableError(f"{source} does not have the columns of table {table.suffix}; make the tables again")
    for line, cells in enumerate(lines[1:], start=2):
        if len(cells) != len(header):
            raise TableError(f"{source}, row {line}: {len(cells)} cells, not {len(header)}")
    kept = [column for column in table.columns if column.name in header]
    try:
        frame = pd.read_csv(
            io.StringIO(text),
            usecols=[column.name for column in kept],
            dtype={column.name: DTYPES[column.kind] for column in kept},
            keep_default_na=False,
            na_values=[""],
            true_values=["yes"],
            false_values=["no"],
        )
    except (ValueError, TypeError) as error:
        raise TableError(f"{source} is not table {table.suffix}: {error}; make the tables again") from error
    for column in table.columns:
        if column.name not in header:
            frame[column.name] = pd.Series(index=frame.index, dtype=DTYPES[column.kind])
    return frame[list(table.names)]


def table_path(results_root: Path, table: Table, of: str = "") -> Path:
    """Where a table is written, and lies in a results folder: tables/<of>-<suffix>.csv; a sweep in a folder: in that folder.

    Where one is read, `suite.analysis.published` says. of: a sweep, or `session-` and the name of a session.
    """
    name = f"{of}-{table.suffix}.csv" if of else f"{table.suffix}.csv"
    return Path(results_root) / TABLES / name


def session_table_path(results_root: Path, table: Table, session: str) -> Path:
    """Where a session's table lies: tables/session-<name>-<suffix>.csv."""
    return table_path(results_root, table, f"{SESSION}{session}")


def read_frame(path: Path, table: Table) -> pd.DataFrame:
    """The frame of a file.

    Args:
        path: Of the CSV file.
        table: Its columns.

    Returns:
        DataFrame with the declared dtypes, rows in file order.

    Raises:
        TableError: There is none, or it is another table.
    """
    try:
        text = path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        raise TableError(
            f"{path} does not exist; run `bandwise report` on the sweep to make the tables"
        ) from None
    return parsed(table, text, str(path))


def read_table(path: Path, table: Table) -> list[Row]:
    """Rows of a file. Raises TableError when there is none or it is another table."""
    return rows_of(read_frame(path, table))


def write_table(path: Path, table: Table, frame: pd.DataFrame | Iterable[Mapping[str, Value]]) -> Path:
    """Replace the file by a frame or by rows, whole or not at all.

    Args:
        path: Of the file.
        table: Its columns.
        frame: What it shall hold.

    Returns:
        `path`.

    Raises:
        TableError: As `to_csv`.
        StoreError: It cannot be written.
    """
    write_atomic(path, to_csv(table, frame))
    return path
