"""Rewrite the results of older versions of this project as the newest version, each file whole or not at all.

Nothing needs it to read them: older versions are read as the newest. Exit code 3 where a file was refused; it is named, and
all others are rewritten.
"""

from __future__ import annotations

import argparse

from bandwise.checkout import add_results_option, require_checkout, results_root
from bandwise.output import print_json

NAME = "migrate"
HELP = "rewrite results of older versions as the newest"
REFUSED = 3


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the verb."""
    parser.add_argument(
        "--dry-run", action="store_true", help="say what would be rewritten, and change nothing"
    )
    add_results_option(parser)


def run(args: argparse.Namespace) -> int:
    """Rewrite."""
    require_checkout(NAME)
    from suite.runs.formats import RESULT_VERSION
    from suite.runs.rewrite import rewrite

    root = results_root(args)
    done = rewrite(root, dry_run=args.dry_run)
    if args.json:
        print_json({"results": str(root), "version": RESULT_VERSION, "dry_run": args.dry_run, **vars(done)})
    else:
        for line in done.refused:
            print(f"refused: {line}")
        for run_id in done.busy:
            print(f"{run_id} is being worked on: migrate again when it has ended")
        word = "would be rewritten" if args.dry_run else "rewritten"
        print(
            f"{root}: {len(done.changed)} results {word} as version {RESULT_VERSION}, {done.current} had it already"
        )
    return REFUSED if done.refused else 0
