"""A table of a sweep or of a timing session for other programs and papers: CSV, LaTeX with booktabs, Parquet.

bandwise export digits --format latex --columns arm mean diff_low diff_high equal
bandwise export quick --table runs --format parquet --out runs.parquet

The table is the one that reports show, brought up to date: made here where that is whole, otherwise published.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import suppress
from pathlib import Path

from bandwise.options import OptionError, results_root
from bandwise.output import print_json

NAME = "export"
FORMATS = ("csv", "latex", "parquet")


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the verb."""
    parser.add_argument("name", help="name of a sweep or a session, or path of its .yaml file")
    parser.add_argument("--format", choices=FORMATS, default="csv", help="of the file (default: csv)")
    parser.add_argument("--table", metavar="NAME", help="which table (default: summary; of a session, arms)")
    parser.add_argument("--columns", nargs="+", metavar="NAME", help="only these, in this order")
    parser.add_argument(
        "--out", metavar="FILE", type=Path, help="where to (default: standard output, but for Parquet)"
    )


def run(args: argparse.Namespace) -> int:
    """Export."""
    from suite.analysis.export import choose, find, to_parquet, to_text
    from suite.runs.files import replacing
    from suite.runs.sweep import tables_of

    if args.out is None and (args.json or args.format == "parquet"):
        raise OptionError(f"name a file with --out: {'the answer' if args.json else 'Parquet'} needs one")
    root = results_root(args)
    _collect(root, args.name)
    table, rows = find(root, args.name, args.table)
    columns = choose(table, args.columns)
    if args.format == "parquet":
        content = to_parquet(columns, rows)
    else:
        content = to_text(columns, rows, args.format, f"{tables_of(args.name)}: {table.suffix}").encode()
    if args.out is None:
        sys.stdout.buffer.write(content)  # UTF-8 whatever the terminal has: it is data
        return 0
    with replacing(args.out) as file:
        file.write(content)
    if args.json:
        print_json({"table": table.suffix, "rows": len(rows), "format": args.format, "path": str(args.out)})
    else:
        print(f"{args.out}: {len(rows)} rows of {table.suffix}")
    return 0


def _collect(root: Path, name: str) -> None:
    """Bring the tables of the sweep and of the session of that name up to date, where there are runs or records of them."""
    from slurm.states import note_ends
    from suite.analysis import collect
    from suite.analysis.session_tables import collect_session
    from suite.runs.store import Store
    from suite.runs.sweep import UnknownSweepError, load_sweep, tables_of

    with suppress(UnknownSweepError):
        sweep = load_sweep(name)
        if unanswered := note_ends(Store(root), sweep.called):
            print(f"Slurm was not asked: {unanswered}", file=sys.stderr)
        collected = collect.collect_sweep(root, sweep)
        if not set(collected.facts["statuses"]) <= {"missing"}:
            collect.write(root, collected)
    collect_session(
        root, tables_of(name)
    )  # after the sweep's tables, of which a budget sweep's seconds are made
