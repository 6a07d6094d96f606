"""Check a method of yours: what every method has to keep, on a small problem, in seconds.

    bandwise new method my-method          # a file that passes
    bandwise test-method my_method.py      # all methods that the file registers
    bandwise test-method my_method.py --set period=8

Exit codes: 0 all checks hold, 3 one does not. What the method does not declare is listed as such and fails nothing.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from bandwise.cli import OptionError, answer, execute_plugin, parse_settings, table

WORDS = {True: "holds", False: "BROKEN", None: "not declared"}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("method", help="a Python file that registers methods, or the name of a method")
    parser.add_argument(
        "--set", action="append", default=[], metavar="key=value", help="an option of the method"
    )


def run(args: argparse.Namespace) -> int:
    from bandwise.method_checks import check_method

    names = [args.method]
    if args.method.endswith(".py"):
        path = Path(args.method)
        if not path.is_file():
            raise OptionError(f"no file {path}: `bandwise new method NAME` writes one to begin with")
        names = execute_plugin(args.method)
        if not names:
            raise OptionError(
                f"{path} registers no method: end it with registry.add(NAME, Entry(...)), as `bandwise new method NAME` writes it"
            )
    options = parse_settings(args.set)
    found = {name: list(check_method(name, **options)) for name in names}
    lines = []
    for name, outcomes in found.items():
        rows = [{"check": one.check, "": WORDS[one.holds], "seen": one.seen} for one in outcomes]
        lines.append(f"{name}\n{table(rows, ('check', '', 'seen'))}\n")
    answer(args, {name: [vars(one) for one in outcomes] for name, outcomes in found.items()}, *lines)
    return 3 if any(one.holds is False for outcomes in found.values() for one in outcomes) else 0
