"""Make results that were made here part of the project: whole, with hashes, in results/published, which git keeps.

    bandwise publish quick             # the study and the session of that name: tables, facts, figures
    bandwise publish quick --replace   # in place of what is published and different; git keeps what it was
    bandwise publish claims            # the record of claims
    bandwise publish --verify          # every published file against its hash

Nothing else writes there. Refused is what is not whole (a run that has not finished, a link without numbers), what
was made by changed code whose changes were not kept, and a session that would take the place of published ones of another
machine, whose seconds are not put together with its own. Exit codes: 0 well, 3 something is not as it was published.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict

from bandwise.options import OptionError, add_results_option, require_checkout, results_root
from bandwise.output import print_json

NAME = "publish"
CHANGED = 3


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the verb."""
    parser.add_argument(
        "name",
        nargs="?",
        help="a sweep or a session, by name or path of its .yaml file; claims",
    )
    parser.add_argument(
        "--replace", action="store_true", help="take the place of what is published and different"
    )
    parser.add_argument("--verify", action="store_true", help="check every published file against its hash")
    add_results_option(parser)


def run(args: argparse.Namespace) -> int:
    """Publish, or verify."""
    require_checkout(NAME)
    if (args.name is None) != args.verify or (args.verify and args.replace):
        raise OptionError("give either a name (`bandwise publish NAME`) or --verify alone")
    root = results_root(args)
    if args.verify:
        return _verify(args, root)
    from report.study.publication import publish

    found = publish(root, args.name, replace=args.replace)
    if args.json:
        print_json([asdict(one) for one in found])
    else:
        for one in found:
            print(f"{one.name}: published {one.day}, {one.files} files, fingerprint {one.fingerprint}")
    return 0


def _verify(args: argparse.Namespace, root: object) -> int:
    from suite.analysis.published import published_root, verify

    wrong, folder = verify(str(root)), published_root(str(root))
    if args.json:
        print_json({"folder": str(folder), "wrong": wrong})
    else:
        verdict = f"{len(wrong)} files are not as published" if wrong else "every file is as published"
        print("\n".join([*wrong, f"{folder}: {verdict}"]))
    return CHANGED if wrong else 0
