"""A table of a sweep or of a timing session for other programs and papers: CSV, LaTeX with booktabs, Parquet.

bandwise export digits --format latex --columns arm mean diff_low diff_high equal
bandwise export quick --table runs --format parquet --out runs.parquet

The table is the one that reports show: made here where that is whole (`bandwise collect NAME`), otherwise published.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from bandwise.options import OptionError, add_results_option, require_checkout, results_root
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
    add_results_option(parser)


def run(args: argparse.Namespace) -> int:
    """Export."""
    require_checkout(NAME)
    from suite.analysis.export import choose, find, to_parquet, to_text
    from suite.runs.files import replacing
    from suite.runs.sweep import tables_of

    if args.out is None and (args.json or args.format == "parquet"):
        raise OptionError(f"name a file with --out: {'the answer' if args.json else 'Parquet'} needs one")
    table, rows = find(results_root(args), args.name, args.table)
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
