"""Build the page of a sweep from its results: one self-contained HTML file."""

from __future__ import annotations

import argparse
from pathlib import Path

from bandwise.checkout import add_results_option, require_checkout, results_root
from bandwise.output import print_json

NAME = "report"
HELP = "build the page of a sweep"


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the verb."""
    parser.add_argument("sweep", help="name of a sweep, or path of a .yaml file")
    parser.add_argument(
        "--out", metavar="FILE", type=Path, help="the page (default: <results>/reports/<sweep>.html)"
    )
    parser.add_argument(
        "--snapshot",
        metavar="DIR",
        nargs="?",
        const="",
        help="also freeze tables and figures in a folder under DIR (default: <results>/snapshots)",
    )
    add_results_option(parser)


def run(args: argparse.Namespace) -> int:
    """Build."""
    require_checkout(NAME)
    from report.build import build_report
    from report.snapshot import freeze

    root = results_root(args)
    built = build_report(root, args.sweep, args.out)
    frozen = freeze(root, args.sweep, args.snapshot or None) if args.snapshot is not None else None
    if args.json:
        found = {"sweep": args.sweep, "path": str(built.path), "headline": list(built.headline)}
        print_json(found | ({"snapshot": str(frozen)} if frozen else {}))
        return 0
    for line in built.headline:
        print(line)
    print(f"report: {built.path}")
    if frozen:
        print(f"snapshot: {frozen}")
    return 0
