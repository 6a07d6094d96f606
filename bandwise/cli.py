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
from collections.abc import Mapping, Sequence
from typing import Any

from bandwise.checkout import extra_needed
from bandwise.options import OptionError
from bandwise.verbs import GROUPS, VERBS, load

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
        _load_plugins(args.plugin)
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
        usage="bandwise [-h] [--plugin FILE.py] VERB ...",
        description="Which communication-efficient training method is worth it for my model, my\nlink, my workers?\n\n"
        + "\n\n".join(_listed(title, verbs) for title, verbs in GROUPS.items()),
        epilog="`bandwise VERB --help` explains a verb.",
        formatter_class=_Formatter,
    )
    top.add_argument(
        "--plugin",
        action="append",
        default=[],
        metavar="FILE.py",
        help="a file that registers methods of yours, for this verb and all processes it starts",
    )
    # listed in groups above; left to argparse they would stand in one row
    verbs = top.add_subparsers(
        metavar="VERB", required=True, prog="bandwise", help=argparse.SUPPRESS, parser_class=_Verb
    )
    for name in VERBS:
        verbs.add_parser(name, verb=name, formatter_class=_Formatter)
    return top


def _load_plugins(paths: Sequence[str]) -> None:
    if not paths:
        return  # what lists or explains imports no torch
    from reference_impls import load_plugin

    for path in paths:
        try:
            load_plugin(path)
        except FileNotFoundError as error:
            raise OptionError(
                f"--plugin: {error}; `bandwise new method NAME` writes one to begin with"
            ) from None


def _listed(title: str, verbs: Mapping[str, str]) -> str:
    """A group of verbs as `--help` lists it: each by its name and a line of what it is for."""
    lines = (
        textwrap.fill(about, HELP_WIDTH, initial_indent=f"  {name:<11} ", subsequent_indent=" " * 14)
        for name, about in verbs.items()
    )
    return "\n".join([f"{title}:", *lines])


class _Verb(argparse.ArgumentParser):
    """The parser of a verb, which loads its module when the verb is called."""

    def __init__(self, *args: Any, verb: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.verb = verb

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse with the arguments of the verb."""
        verb = load(self.verb)
        self.description = verb.__doc__
        self.add_argument("--json", action="store_true", help="answer as one JSON document")
        verb.configure(self)
        self.set_defaults(verb=verb)
        return super().parse_known_args(args, namespace)


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Descriptions keep their lines."""


if __name__ == "__main__":
    sys.exit(main())
