"""Reading and writing the derived tables: pandas frames, and CSV files whose bytes depend on their content alone.

A table is a DataFrame with the columns that `suite.analysis.columns` declares. Kinds of columns are dtypes of pandas: text is
``str``, int is ``Int64``, float is ``float64``, a flag is ``boolean``; what is missing is missing as pandas has it. Writing sorts
by the key columns, prints floats with nine significant digits (and rounding noise as 0), truth as yes/no, a missing value as an
empty cell, and ends lines with a bare newline; so the same frame gives the same bytes on every machine, and a diff of two commits
shows what changed.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

from suite.analysis.columns import Column, Kind, Table
from suite.runs.files import write_atomic

Value = str | int | float | bool | None
Row = dict[str, Any]
"""A row of a table as a plain dict; a missing value is None."""

TABLES: Final = "tables"
"""The folder of tables in a results folder, and in what is published."""

NOISE: Final = 1e-12
"""Floats smaller than this are what subtraction leaves of equal numbers; they are written as 0."""

DTYPES: Final[Mapping[Kind, str]] = {"text": "str", "int": "Int64", "float": "float64", "flag": "boolean"}


class TableError(ValueError):
    """A row does not fit its table, or a file is not the table it should be."""


def frame_of(table: Table, rows: Iterable[Mapping[str, Value]]) -> pd.DataFrame:
    """A frame of rows.

    Args:
        table: Its columns; the frame has them all, in their order.
        rows: Each with a value a column, None where it is missing.

    Returns:
        DataFrame with a row each, in the order given, and the dtypes of the kinds.

    Raises:
        TableError: A row has other columns, or a value is of another kind; the message names the column.
    """
    listed, names = list(rows), set(table.names)
    for row in listed:
        if row.keys() != names:
            odd = sorted(names ^ row.keys())
            raise TableError(f"a row of table {table.suffix} lacks or adds: {', '.join(odd)}")
    return pd.DataFrame({c.name: _array(c, [row[c.name] for row in listed]) for c in table.columns})


def rows_of(frame: pd.DataFrame) -> list[Row]:
    """The rows of a frame as dicts of plain values, None where one is missing."""
    columns = {name: _plain(frame[name]) for name in frame.columns}
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


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


def to_csv(table: Table, frame: pd.DataFrame | Iterable[Mapping[str, Value]]) -> str:
    """The file's text: header, and rows sorted by the key columns, what is missing first.

    Args:
        table: The columns, and how many of them are the key.
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
    columns = [c for c in table.columns if c.name not in table.rare or whole[c.name].notna().any()]
    return _text(columns, [_plain(whole[column.name]) for column in columns])


def csv_text(columns: Sequence[Column], rows: Iterable[Mapping[str, Value]]) -> str:
    """Header and rows as they are given. Raises TableError for a value of another kind."""
    listed = list(rows)
    values = [[row[column.name] for row in listed] for column in columns]
    for column, given in zip(columns, values, strict=True):
        _refuse_other_kind(column, given)
    return _text(columns, values)


def _text(columns: Sequence[Column], values: Iterable[Sequence[Value]]) -> str:
    """CSV of columns of plain values."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([column.name for column in columns])
    cells = (_cells(column, given) for column, given in zip(columns, values, strict=True))
    writer.writerows(zip(*cells, strict=True))
    return text.getvalue()


def parsed(table: Table, text: str, source: str = "table") -> pd.DataFrame:
    """The frame of a file's text, in file order.

    Args:
        table: The columns that the header must name; the rare ones may be absent, and are without values then.
        text: What `to_csv` made.
        source: What errors call the file.

    Returns:
        DataFrame with the declared dtypes.

    Raises:
        TableError: Another header, a row with more or fewer cells, or a cell of another kind; the message names the row.
    """
    values = _values(table, text, source)
    return pd.DataFrame({c.name: _array(c, given) for c, given in zip(table.columns, values, strict=True)})


def _values(table: Table, text: str, source: str) -> list[list[Value]]:
    """What stands in the columns of a file's text, None where it is missing. Raises TableError as `parsed` does."""
    lines: Sequence[list[str]] = list(csv.reader(io.StringIO(text, newline="")))
    header = lines[0] if lines else []
    if header != [name for name in table.names if name in header or name not in table.rare]:
        raise TableError(f"{source} does not have the columns of table {table.suffix}; make the tables again")
    for line, cells in enumerate(lines[1:], start=2):
        if len(cells) != len(header):
            raise TableError(f"{source}, row {line}: {len(cells)} cells, not {len(header)}")
    columns = list[list[Value]]()
    for column in table.columns:
        if column.name not in header:
            columns.append([None] * (len(lines) - 1))
            continue
        values, i = list[Value](), header.index(column.name)
        for line, cells in enumerate(lines[1:], start=2):
            try:
                values.append(cell_value(cells[i], column))
            except (ValueError, KeyError) as error:
                raise TableError(f"{source}, row {line}: {error}") from error
        _refuse_other_kind(column, values)
        columns.append(values)
    return columns


def cell_value(cell: str, column: Column) -> Value:
    """The value that a cell of a file holds. Raises ValueError or KeyError for one of another kind."""
    if cell == "":
        return None
    if column.kind == "text":
        return cell
    if column.kind == "flag":
        return {"yes": True, "no": False}[cell]
    return int(cell) if column.kind == "int" else float(cell)


def number(row: Mapping[str, Value], name: str) -> float:
    """The number in a cell. Raises TableError where it is empty or a text."""
    value = row[name]
    if value is None or isinstance(value, str):
        raise TableError(f"column {name} holds {value!r} where a number is needed")
    return float(value)


def table_path(results_root: Path, table: Table, sweep: str = "") -> Path:
    """Where a table is written, and lies in a results folder: tables/<sweep>-<suffix>.csv; a sweep in a folder: in that folder.

    Where one is read, `suite.analysis.published` says.
    """
    name = f"{sweep}-{table.suffix}.csv" if sweep else f"{table.suffix}.csv"
    return Path(results_root) / TABLES / name


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
    return parsed(table, _text_of(path), str(path))


def _text_of(path: Path) -> str:
    """The text of a file. Raises TableError where there is none."""
    try:
        return path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        raise TableError(
            f"{path} does not exist; run `bandwise report` on the sweep to make the tables"
        ) from None


def read_table(path: Path, table: Table) -> list[Row]:
    """Rows of a file. Raises TableError when there is none or it is another table."""
    return from_csv(table, _text_of(path), str(path))


def from_csv(table: Table, text: str, source: str = "table") -> list[Row]:
    """Rows of the file's text, in file order. Raises TableError as `parsed` does."""
    return [
        dict(zip(table.names, row, strict=True)) for row in zip(*_values(table, text, source), strict=True)
    ]


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


def _array(column: Column, values: Sequence[Value]) -> pd.api.extensions.ExtensionArray | np.ndarray:
    """A column of plain values with the dtype of its kind. Raises TableError for a value of another kind."""
    _refuse_other_kind(column, values)
    if column.kind == "float":
        return np.array([np.nan if value is None else value for value in values], "float64")
    found: pd.api.extensions.ExtensionArray = pd.array(values, dtype=DTYPES[column.kind])  # type: ignore[call-overload]
    return found


def _typed(column: Column, series: pd.Series) -> pd.Series:
    """A column of any frame with the dtype of its kind."""
    if series.dtype == DTYPES[column.kind]:
        return series
    return pd.Series(_array(column, _plain(series)), series.index)


def _plain(series: pd.Series) -> list[Value]:
    """The values of a column as Python has them, None where one is missing."""
    values: list[Value] = series.tolist()
    if not series.hasnans:
        return values
    return [None if gone else value for value, gone in zip(values, series.isna(), strict=True)]


_FITS: Final[Mapping[Kind, tuple[type, ...]]] = {
    "text": (str,),
    "flag": (bool,),
    "int": (int,),
    "float": (int, float),
}


def _refuse_other_kind(column: Column, values: Sequence[Value]) -> None:
    """Raises TableError for the first value that is neither missing nor of the column's kind."""
    fits = _FITS[column.kind]
    odd = {
        type_
        for type_ in set(map(type, values)) - {type(None)}
        if not issubclass(type_, fits) or (issubclass(type_, bool) and column.kind != "flag")
    }
    for value in values if odd or column.kind == "float" else ():
        if type(value) in odd or value != value:
            raise TableError(f"column {column.name} holds {column.kind}, not {value!r}")


def _cells(column: Column, values: Sequence[Value]) -> list[str]:
    """What stands in the file for the values of a column."""
    if column.kind == "float":
        return ["" if value is None else _number(float(value)) for value in values]
    if column.kind == "flag":
        return ["" if value is None else "yes" if value else "no" for value in values]
    texts = ["" if value is None else str(value) for value in values]
    return [text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text for text in texts]


def _number(value: float) -> str:
    """Nine significant digits; rounding noise is 0."""
    return format(0.0 if abs(value) < NOISE else value, ".9g")
