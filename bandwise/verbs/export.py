"""A table of a sweep or of a timing session for other programs and papers: CSV, LaTeX with booktabs, Parquet.

bandwise export digits --format latex --columns arm mean diff_low diff_high equal
bandwise export quick --table runs --format parquet --out runs.parquet

The table is the one that reports show, brought up to date: made here where that is whole, otherwise published.
"""

from __future__ import annotations

import argparse
import io
import math
import shlex
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bandwise.cli import OptionError, answer, results_root

if TYPE_CHECKING:
    import pandas as pd

    from suite.analysis.published import Source
    from suite.analysis.tables import Table

FORMATS = ("csv", "latex", "parquet")
DIGITS = 4
"""Significant digits of floats in LaTeX; CSV and Parquet have all that the table has."""
_ESCAPES = str.maketrans(
    {
        "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "%": r"\%", "_": r"\_",
        "^": r"\textasciicircum{}", "~": r"\textasciitilde{}", "<": r"\textless{}", ">": r"\textgreater{}",
        "|": r"\textbar{}", "\n": " ", "\r": " ", "\t": " ",
    }
)  # fmt: skip


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", help="name of a sweep or a session, or path of its .yaml file")
    parser.add_argument("--format", choices=FORMATS, default="csv", help="of the file (default: csv)")
    parser.add_argument("--table", metavar="NAME", help="which table (default: summary; of a session, arms)")
    parser.add_argument("--columns", nargs="+", metavar="NAME", help="only these, in this order")
    parser.add_argument(
        "--out", metavar="FILE", type=Path, help="where to (default: standard output, but for Parquet)"
    )


def run(args: argparse.Namespace) -> int:
    from suite.analysis.tables import read_frame, to_csv
    from suite.runs.files import replacing
    from suite.runs.sweep import tables_of

    if args.out is None and (args.json or args.format == "parquet"):
        raise OptionError(f"name a file with --out: {'the answer' if args.json else 'Parquet'} needs one")
    root = results_root(args)
    _collect(root, args.name)
    whole, path, origin = _find(root, args.name, args.table)
    if not origin.local:  # not into the data
        print(f"{args.name}: {origin.words}. {origin.not_shown}".rstrip(), file=sys.stderr)
    table = _chosen(whole, args.columns)
    frame = read_frame(path, whole)[list(table.names)]
    if args.format == "parquet":
        content = _parquet(frame)
    elif args.format == "latex":
        content = to_latex(table, frame, f"{tables_of(args.name)}: {table.suffix}").encode()
    else:
        content = to_csv(table, frame).encode()
    if args.out is None:
        sys.stdout.buffer.write(content)  # UTF-8 whatever the terminal has: it is data
        return 0
    with replacing(args.out) as file:
        file.write(content)
    found = {"table": table.suffix, "rows": len(frame), "format": args.format, "path": str(args.out)}
    answer(args, found, f"{args.out}: {len(frame)} rows of {table.suffix}")
    return 0


def _collect(root: Path, name: str) -> None:
    """Bring the tables of the sweep and of the session of that name up to date, where there are runs or records of them."""
    from slurm.states import note_ends
    from suite.analysis.session_tables import collect_session, collect_study
    from suite.runs.store import Store
    from suite.runs.sweep import UnknownSweepError, load_sweep, tables_of

    with suppress(UnknownSweepError):
        sweep = load_sweep(name)
        if unanswered := note_ends(Store(root), sweep.called):
            print(f"Slurm was not asked: {unanswered}", file=sys.stderr)
        collect_study(root, sweep)
    collect_session(root, tables_of(name))


def _find(root: Path, name: str, suffix: str | None) -> tuple[Table, Path, Source]:
    """A table of a sweep or session, its file and where that comes from; by default its summary or arms. Raises `OptionError`."""
    from suite.analysis.published import source
    from suite.analysis.tables import ARMS, OF_SESSION, OF_STUDY, SESSION, SUMMARY, SWEEP_OPTIONAL, table_path
    from suite.runs.sweep import tables_of

    own = tables_of(name)
    kinds = {own: (SUMMARY, *OF_STUDY, *SWEEP_OPTIONAL), f"{SESSION}{own}": (ARMS, *OF_SESSION)}
    there: dict[str, tuple[Table, Path, Source]] = {}
    for set_, tables in kinds.items():
        origin = source(root, set_)
        paths = ((table, table_path(origin.root, table, set_)) for table in tables)
        there |= {table.suffix: (table, path, origin) for table, path in paths if path.is_file()}
    if not there:
        raise OptionError(f"no tables of {name} under {root}: {_remedy(name)}")
    if suffix is not None and suffix not in there:
        raise OptionError(f"{name} has no table {suffix!r}; it has {', '.join(there)}")
    return there[suffix] if suffix is not None else next(iter(there.values()))


def _remedy(name: str) -> str:
    """What makes the tables of a sweep or session."""
    from suite.runs.sweep import UnknownSweepError, load_sweep

    try:
        return f"`{load_sweep(name).command('sweep')}` trains what is missing"
    except UnknownSweepError as unknown:
        return f"{unknown}; `{shlex.join(['bandwise', 'session', name])}` holds a session of that name"


def _chosen(table: Table, names: Sequence[str] | None) -> Table:
    """The table with the columns of these names alone, in their order, without a key. Raises `OptionError`."""
    known = {column.name: column for column in table.columns}
    if odd := [name for name in names or () if name not in known]:
        raise OptionError(f"table {table.suffix} has no column {odd[0]!r}; it has {', '.join(known)}")
    return replace(table, columns=tuple(known[name] for name in names), keys=0) if names else table


def _parquet(frame: pd.DataFrame) -> bytes:
    buffer = io.BytesIO()
    try:
        frame.to_parquet(buffer, engine="pyarrow", index=False)
    except ImportError:
        raise OptionError(
            "Parquet needs pyarrow, which is not installed: `pip install pyarrow`, or --format csv"
        ) from None
    return buffer.getvalue()


def to_latex(table: Table, frame: pd.DataFrame, caption: str) -> str:
    """A table as LaTeX with booktabs; comments above it say what its columns mean.

    Args:
        table: The columns.
        frame: Its rows.
        caption: Of the table.

    Returns:
        Lines of LaTeX, whatever the texts hold.
    """
    from suite.analysis.tables import rows_of

    align = "".join("r" if column.kind in {"int", "float"} else "l" for column in table.columns)
    lines = [
        "% needs \\usepackage{booktabs}",
        *(f"% {column.name}: {column.meaning}" for column in table.columns),
        r"\begin{table}",
        rf"\caption{{{_escaped(caption)}}}",
        rf"\begin{{tabular}}{{{align}}}",
        r"\toprule",
        " & ".join(map(_escaped, table.names)) + r" \\",
        r"\midrule",
        *(" & ".join(map(_cell, row.values())) + r" \\" for row in rows_of(frame)),
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]
    return "".join(f"{line}\n" for line in lines)


def _escaped(text: str) -> str:
    return text.translate(_ESCAPES)


def _cell(value: Any) -> str:
    if value is None:
        return "--"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return _escaped(value)
    if isinstance(value, float) and math.isinf(value):
        return r"$\infty$" if value > 0 else r"$-\infty$"
    text = str(value) if isinstance(value, int) else format(value, f".{DIGITS}g")
    mantissa, exponent, power = text.partition("e")
    if exponent:
        return rf"${mantissa}\times 10^{{{int(power)}}}$"
    return f"${text}$" if text.startswith("-") else text
