"""Tables for other programs and for papers: CSV, LaTeX (booktabs), Parquet.

What is exported is a table as it lies on disk (made here where that is whole, else published), whole or some of its columns;
nothing is computed here. The same table gives the same text.
"""

from __future__ import annotations

import io
import math
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from suite.analysis.columns import (
    NET,
    NET_ROUNDS,
    OF_STUDY,
    SUMMARY,
    SWEEP_OPTIONAL,
    Column,
    Table,
)
from suite.analysis.published import SESSION, source
from suite.analysis.speed_columns import ARMS, CASES, DIRECT, PROBE
from suite.analysis.tables import Row, Value, csv_text, read_table, table_path
from suite.runs.sweep import UnknownSweepError, load_sweep, tables_of

OF_SWEEP: Final = (SUMMARY, *(table for table in OF_STUDY if table is not SUMMARY), *SWEEP_OPTIONAL)
OF_SESSION: Final = (ARMS, CASES, PROBE, DIRECT, NET_ROUNDS, NET)
DIGITS: Final = 4
"""Significant digits of floats in LaTeX; CSV and Parquet have all that the table has."""
_ESCAPES: Final = str.maketrans(
    {
        "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "%": r"\%", "_": r"\_",
        "^": r"\textasciicircum{}", "~": r"\textasciitilde{}", "<": r"\textless{}", ">": r"\textgreater{}",
        "|": r"\textbar{}", "\n": " ", "\r": " ", "\t": " ",
    }
)  # fmt: skip
_DTYPES: Final = {"text": "string", "int": "Int64", "float": "Float64", "flag": "boolean"}


class ExportError(ValueError):
    """A table cannot be exported as it was asked for; the message says what can."""


def find(results_root: Path, name: str, suffix: str | None = None) -> tuple[Table, list[Row]]:
    """A table of a sweep or session, by its name or file; by default its summary or arms. Raises `ExportError`, `TableError`."""
    there = [(table, path) for table, path in _paths(results_root, tables_of(name)) if path.is_file()]
    if not there:
        raise ExportError(f"no tables of {name} under {results_root}: {_remedy(name)}")
    for table, path in there:
        if suffix in (None, table.suffix):
            return table, read_table(path, table)
    raise ExportError(
        f"{name} has no table {suffix!r}; it has {', '.join(table.suffix for table, _ in there)}"
    )


def _remedy(name: str) -> str:
    """What makes the tables of a sweep or session."""
    try:
        return f"`{load_sweep(name).command('sweep')}` trains what is missing"
    except UnknownSweepError as unknown:
        return f"{unknown}; `{shlex.join(['bandwise', 'session', name])}` holds a session of that name"


def choose(table: Table, names: Sequence[str] | None) -> tuple[Column, ...]:
    """The columns of these names in their order, all where none are named. Raises `ExportError`."""
    if not names:
        return table.columns
    known = {column.name: column for column in table.columns}
    if odd := [name for name in names if name not in known]:
        raise ExportError(f"table {table.suffix} has no column {odd[0]!r}; it has {', '.join(known)}")
    return tuple(known[name] for name in names)


def to_text(columns: Sequence[Column], rows: Sequence[Row], form: str, caption: str) -> str:
    """The table as CSV or as LaTeX. caption: of the LaTeX table."""
    return (
        csv_text(columns, rows)
        if form == "csv"
        else "".join(f"{line}\n" for line in _latex(columns, rows, caption))
    )


def to_parquet(columns: Sequence[Column], rows: Sequence[Row]) -> bytes:
    """The table as a Parquet file, columns typed by their kind. Raises `ExportError` without pyarrow."""
    import pandas as pd

    frame = pd.DataFrame(
        {
            column.name: pd.array([row[column.name] for row in rows], dtype=_DTYPES[column.kind])  # type: ignore[call-overload]
            for column in columns
        }
    )
    buffer = io.BytesIO()
    try:
        frame.to_parquet(buffer, engine="pyarrow", index=False)
    except ImportError:
        raise ExportError(
            "Parquet needs pyarrow, which is not installed: `pip install pyarrow`, or --format csv"
        ) from None
    return buffer.getvalue()


def escape(text: str) -> str:
    """Text as LaTeX prints it."""
    return text.translate(_ESCAPES)


def _paths(root: Path, name: str) -> Iterator[tuple[Table, Path]]:
    for own, tables in ((name, OF_SWEEP), (f"{SESSION}{name}", OF_SESSION)):
        where = source(root, own).root
        yield from ((table, table_path(where, table, own)) for table in tables)


def _latex(columns: Sequence[Column], rows: Sequence[Row], caption: str) -> Iterator[str]:
    numeric = [column.kind in {"int", "float"} for column in columns]
    yield "% needs \\usepackage{booktabs}"
    yield from (f"% {column.name}: {column.meaning}" for column in columns)
    yield r"\begin{table}"
    yield rf"\caption{{{escape(caption)}}}"
    yield rf"\begin{{tabular}}{{{''.join('r' if right else 'l' for right in numeric)}}}"
    yield r"\toprule"
    yield " & ".join(escape(column.name) for column in columns) + r" \\"
    yield r"\midrule"
    for row in rows:
        yield " & ".join(_cell(row[column.name]) for column in columns) + r" \\"
    yield r"\bottomrule"
    yield r"\end{tabular}"
    yield r"\end{table}"


def _cell(value: Value) -> str:
    if value is None:
        return "--"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return escape(value)
    if isinstance(value, float) and math.isinf(value):
        return r"$\infty$" if value > 0 else r"$-\infty$"
    text = str(value) if isinstance(value, int) else format(value, f".{DIGITS}g")
    mantissa, exponent, power = text.partition("e")
    if exponent:
        return rf"${mantissa}\times 10^{{{int(power)}}}$"
    return f"${text}$" if text.startswith("-") else text
