"""The command line: ``bandwise VERB ...``, a file a verb under `bandwise.verbs`: NAME, configure(parser), run(args) -> exit code.

A verb is loaded when it is called, and imports the floors below (suite, slurm, report) inside `run` only, so that the command
starts fast and the wheel works without a checkout.

Answers go to standard output, as text or with ``--json`` as one JSON document; progress and errors go to standard
error. Exit codes: 0 well, 2 the request is wrong, 3 a run or the store ended in failure, 130 interrupted.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import io
import os
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any, Final

from bandwise.options import OptionError, extra_needed, require_checkout

USAGE, FAILURE, INTERRUPTED = 2, 3, 130
HELP_WIDTH = 80
OUR_PACKAGES = frozenset({"bandwise", "report", "slurm", "suite", "reference_impls"})


GROUPS: Final[Mapping[str, Mapping[str, str]]] = MappingProxyType(
    {
        "choose a method": {
            "list": "algorithms, workloads, sweeps",
            "info": "options, differences and bytes of an algorithm; a workload",
            "advise": "which method to run for a model, a link and a number of workers",
            "try": "five methods on your own model and data, simulated side by side",
        },
        "train and time": {
            "run": "train one run",
            "sweep": "train what is missing of a sweep, here or on a cluster",
            "status": "the state of a sweep's runs, once or until nothing is under way",
            "session": "time the methods of a study on an emulated cluster or between nodes",
        },
        "results": {
            "report": "build the pages of all results, of a sweep, or of the claims",
            "export": "a table as CSV, LaTeX or Parquet",
            "publish": "make results part of the project; whether they can be relied on",
            "claims": "claims of papers: verdicts, checks",
            "reproduce": "train a run again and compare it with its record",
        },
        "your own method and workload": {
            "new": "begin a method or a workload: a file that works, to be changed into yours",
            "test-method": "hold a method to what every method has to keep",
        },
    }
)
"""What `bandwise --help` lists, in its order: a title, and its verbs with a line of what each is for."""
VERBS: Final = tuple(name for verbs in GROUPS.values() for name in verbs)
ALONE: Final = frozenset({"advise", "info", "list", "new", "test-method"})
"""Verbs that need no checkout; all others do, and have ``--results``."""


def load(name: str) -> ModuleType:
    """The module of a verb; `list` and `try` have other names in Python, and hyphens are underscores."""
    module = name.replace("-", "_") + ("_" if name in ("list", "try") else "")
    return importlib.import_module(f"bandwise.verbs.{module}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # what its encoding lacks is shown as ?, and ends nothing
    args = parser().parse_args(arguments)
    collects = gc.isenabled()
    if getattr(args, "dry_run", False) or (args.verb.NAME == "status" and not args.follow):
        gc.disable()  # what answers and ends: importing torch and reading files takes a fifth less
    try:
        _load_plugins(args.plugin)
        _set_data_folder(args.data_dir)
        if args.verb.NAME not in ALONE:
            require_checkout(args.verb.NAME)
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
        usage="bandwise [-h] [--plugin FILE.py] [--data-dir DIR] VERB ...",
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
        help="a file that registers methods or workloads of yours, for this verb and all processes it starts",
    )
    top.add_argument(
        "--data-dir", metavar="DIR", help="the folder with the files that workloads ask you for, likewise"
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
    from reference_impls.core.registry import registry

    for path in paths:
        before = _registered(), len(registry.plugins)
        try:
            load_plugin(path)
        except FileNotFoundError as error:
            raise OptionError(
                f"--plugin: {error}; `bandwise new method NAME` writes one to begin with, `bandwise new workload NAME` too"
            ) from None
        except ModuleNotFoundError as error:
            if error.name == "suite":
                require_checkout(f"--plugin {path}")
            raise
        if len(registry.plugins) > before[1] and _registered() == before[0]:
            raise OptionError(
                f"--plugin: {path} registers no method and no workload: end it with registry.add(NAME, Entry(...)) or "
                "add(CLASS), as `bandwise new method NAME` and `bandwise new workload NAME` write it"
            )


def _registered() -> list[str]:
    """Names of all methods, and of the workloads from outside where a file has imported what registers them."""
    from reference_impls import list_algorithms

    workloads = sys.modules.get("suite.workloads.registry")
    return [*list_algorithms(), *(workloads.from_outside() if workloads else ())]


def _set_data_folder(path: str | None) -> None:
    if path is None:
        return
    require_checkout("--data-dir")
    from suite import DATA

    folder = Path(path).resolve()
    if not folder.is_dir():
        raise OptionError(f"--data-dir: no folder {folder}")
    os.environ[DATA] = str(folder)


def _listed(title: str, verbs: Mapping[str, str]) -> str:
    """A group of verbs as `--help` lists it: each by its name and a line of what it is for."""
    lines = (
        textwrap.fill(about, HELP_WIDTH, initial_indent=f"  {name:<11} ", subsequent_indent=" " * 14)
        for name, about in verbs.items()
    )
    return "\n".join([f"{title}:", *lines])


class _Verb(argparse.ArgumentParser):
    """The parser of a verb, which is made when the verb is called."""

    def __init__(self, *args: Any, verb: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.verb = verb

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse with the arguments of the verb."""
        return parser_of(self.verb).parse_known_args(args, namespace)


def parser_of(name: str) -> argparse.ArgumentParser:
    """The parser of a verb, with its arguments and those that all have."""
    verb = load(name)
    own = argparse.ArgumentParser(
        prog=f"bandwise {name}", description=verb.__doc__, formatter_class=_Formatter
    )
    own.add_argument("--json", action="store_true", help="answer as one JSON document")
    verb.configure(own)
    if name not in ALONE:
        words = "results folder (default: $BANDWISE_RESULTS, else results/ here)"
        own.add_argument("--results", metavar="DIR", type=Path, help=words)
    own.set_defaults(verb=verb)
    return own


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Descriptions keep their lines."""


if __name__ == "__main__":
    sys.exit(main())
