"""What changed from A to B: results folders, studies published under a label, or the tables of git at two commits.

    bandwise compare HEAD~1 results
    bandwise compare 2026-11-20-quick results --sweep quick --html changes.html

Accuracy is paired by seed, arm by arm, with a 95 % interval and Holm's correction over all arms; bytes and speedups
stand beside it; runs that one side alone has, runs that ended otherwise, and other hardware are listed. Exit code 0.
"""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bandwise.options import add_results_option, require_checkout, results_root
from bandwise.output import print_json, table

if TYPE_CHECKING:
    from suite.analysis.compare import Comparison

NAME = "compare"


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the verb."""
    what = "results folder, label of a published study, or commit"
    parser.add_argument("a", metavar="A", help=f"before: {what}")
    parser.add_argument("b", metavar="B", help=f"after: {what}")
    parser.add_argument(
        "--sweep", metavar="NAME", help="this sweep alone, by name or file (default: all that both have)"
    )
    parser.add_argument("--html", metavar="FILE", type=Path, help="also as one self-contained page")
    add_results_option(parser)


def run(args: argparse.Namespace) -> int:
    """Compare."""
    require_checkout(NAME)
    from report.pages.compare import build_compare_page
    from suite.analysis.compare import ResultSetError, compare, read_results
    from suite.runs.sweep import tables_of

    root = results_root(args)
    a, b = (read_results(name, root) for name in (args.a, args.b))
    sweep = args.sweep and tables_of(args.sweep)
    for side in (a, b):
        if sweep and sweep not in side.studies:
            raise ResultSetError(
                f"{side.label} has no sweep {sweep}; it has {', '.join(side.studies) or 'none'}"
            )
    found = compare(a, b, sweep)
    if args.html:
        build_compare_page(found, args.html)
    if args.json:
        print_json(found.as_dict())
        return 0
    _print(found)
    if args.html:
        print(f"page: {args.html}")
    return 0


def _print(found: Comparison) -> None:
    print(f"A: {found.a}\nB: {found.b}\n")
    for name, differences in (("hardware", found.hardware), ("environment", found.environment)):
        for what, which, before, after in differences:
            print(f"other {name}, {what}: {which} {before} -> {after}")
    moved = [change for change in found.arms if change.word != "identical" or change.bytes not in (None, 1.0)]
    print(f"{len(found.arms)} arms: {_counted(change.word for change in found.arms)}")
    if moved:
        names = [
            "sweep",
            "workload",
            "sharding",
            "arm",
            "n_pairs",
            "a",
            "b",
            "difference",
            "low",
            "high",
            "p_holm",
        ]
        print(table([vars(change) for change in moved], [*names, "unit", "bytes", "word"]))
        if (least := found.smallest_p) is not None and least > 0.05:
            print(f"so many arms and so few pairs cannot tell: the least p after Holm is {least:.2g}")
    if found.speeds:
        print(f"\n{len(found.speeds)} speedups: {_counted(change.word for change in found.speeds)}")
        names = ["session", "link", "sharding", "arm", "a", "b", "ratio", "low", "high", "word"]
        differing = [vars(change) for change in found.speeds if change.word != "no change"]
        if differing:
            print(table(differing, names))
    for turned in found.turned:
        workload, sharding, workers, arm, seed = turned.run
        where = f"{turned.sweep}: {arm} on {workload}, {sharding}, {workers} workers, seed {seed}"
        print(f"ended otherwise, {where}: {turned.a} -> {turned.b} {turned.reason}".rstrip())
    for side, lines in (("A", found.only_a), ("B", found.only_b)):
        for line in lines:
            print(f"only in {side}: {line}")


def _counted(words: Any) -> str:
    return ", ".join(f"{count} {word}" for word, count in Counter(words).most_common()) or "none"
