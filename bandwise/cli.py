"""The command line: ``bandwise VERB ...``, one small file a verb under `bandwise.verbs`.

Answers go to standard output, as text or with ``--json`` as one JSON document; progress and errors go to standard
error. Exit codes: 0 well, 2 the request is wrong, 3 a run or the store ended in failure, 130 interrupted.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import textwrap
from collections.abc import Iterable, Sequence
from types import ModuleType

from bandwise.checkout import extra_needed
from bandwise.verbs import GROUPS, VERBS

USAGE, FAILURE, INTERRUPTED = 2, 3, 130
BRIEF = frozenset({"plan", "status"})
"""Verbs that answer and end: without the collector of cycles, importing torch and reading files takes a fifth less."""
HELP_WIDTH = 80
OUR_PACKAGES = frozenset({"bandwise", "report", "slurm", "suite", "reference_impls"})


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    args = parser().parse_args(arguments)
    collects = gc.isenabled()
    if args.verb.NAME in BRIEF:
        gc.disable()
    try:
        return int(args.verb.run(args))
    except (ValueError, RuntimeError) as error:
        if type(error).__module__.partition(".")[0] not in OUR_PACKAGES:
            raise
        print(f"bandwise: error: {error}", file=sys.stderr)
        return USAGE if isinstance(error, ValueError) else FAILURE
    except ModuleNotFoundError as error:
        if not (needed := extra_needed(args.verb.NAME, error)):
            raise
        print(f"bandwise: error: {needed}", file=sys.stderr)
        return USAGE
    except KeyboardInterrupt:
        print("bandwise: interrupted; what was finished is kept", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # the reader of our output has gone, as in `bandwise list | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILURE
    finally:
        if collects:
            gc.enable()


def parser() -> argparse.ArgumentParser:
    """The parser with all verbs; needs neither torch nor a checkout."""
    top = argparse.ArgumentParser(
        prog="bandwise",
        usage="bandwise [-h] VERB ...",
        description="Which communication-efficient training method is worth it for my model, my\nlink, my workers?\n\n"
        + "\n\n".join(_listed(title, verbs) for title, verbs in GROUPS),
        epilog="`bandwise VERB --help` explains a verb.",
        formatter_class=_Formatter,
    )
    # listed in groups above; left to argparse they would stand in one row
    verbs = top.add_subparsers(metavar="VERB", required=True, prog="bandwise", help=argparse.SUPPRESS)
    for verb in VERBS:
        sub = verbs.add_parser(verb.NAME, description=verb.__doc__, formatter_class=_Formatter)
        sub.add_argument("--json", action="store_true", help="answer as one JSON document")
        verb.configure(sub)
        sub.set_defaults(verb=verb)
    return top


def _listed(title: str, verbs: Iterable[ModuleType]) -> str:
    """A group of verbs as `--help` lists it: each by its name and a line of what it is for."""
    lines = (
        textwrap.fill(verb.HELP, HELP_WIDTH, initial_indent=f"  {verb.NAME:<10} ", subsequent_indent=" " * 13)
        for verb in verbs
    )
    return "\n".join([f"{title}:", *lines])


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Descriptions keep their lines."""


if __name__ == "__main__":
    sys.exit(main())
