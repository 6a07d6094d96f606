"""Freeze a study for others to cite, in a dated folder that is never written over; or check such a folder.

    bandwise publish quick                          # results/published/<day>-quick: tables, figures, page, hashes
    bandwise publish --verify results/published/2026-11-20-quick

Exit codes: 0 well, 3 something in the folder is not as it was published.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from bandwise.checkout import add_results_option, require_checkout, results_root
from bandwise.options import OptionError
from bandwise.output import print_json

NAME = "publish"
HELP = "freeze a study for others to cite, or check one"
CHANGED = 3


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the verb."""
    parser.add_argument("sweep", nargs="?", help="name of a sweep, or path of a .yaml file")
    parser.add_argument("--as", dest="name", metavar="NAME", help="name of the folder, after its day")
    parser.add_argument("--out", metavar="DIR", type=Path, help="where (default: <results>/published)")
    parser.add_argument("--verify", metavar="DIR", type=Path, help="check a published folder or a snapshot")
    add_results_option(parser)


def run(args: argparse.Namespace) -> int:
    """Publish, or verify."""
    require_checkout(NAME)
    from report.study.publication import examine, publish

    if (args.sweep is None) == (args.verify is None):
        raise OptionError("give either a sweep or --verify DIR")
    root = results_root(args)
    found = examine(args.verify) if args.verify else publish(root, args.sweep, args.out, args.name)
    if args.json:
        print_json(
            {"folder": str(found.folder), "fingerprint": found.fingerprint, "wrong": list(found.wrong)}
        )
    else:
        print("\n".join([*found.wrong, f"{found.folder}: {_verdict(args, len(found.wrong))}"]))
        if found.fingerprint:
            print(f"fingerprint: {found.fingerprint}")
    return CHANGED if found.wrong else 0


def _verdict(args: argparse.Namespace, wrong: int) -> str:
    if not args.verify:
        return "published"
    return f"{wrong} files are not as published" if wrong else "every file is as published"
