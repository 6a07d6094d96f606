"""What only a checkout has: the suite, its results. The installed wheel holds the methods and this command alone."""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path


class CheckoutError(ValueError):
    """The verb needs a checkout; the message says how to get one."""


def require_checkout(verb: str) -> None:
    """Raise `CheckoutError` unless the suite of this project can be imported."""
    if not has_checkout():
        raise CheckoutError(
            f"`bandwise {verb}` works in a checkout of the project: clone it and there run `make bench`, or "
            "`pip install -e .` in an environment with the packages of requirements.txt"
        )


def has_checkout() -> bool:
    """Whether the suite can be imported."""
    try:
        return importlib.util.find_spec("suite.runs") is not None
    except ModuleNotFoundError:
        return False


def add_results_option(parser: argparse.ArgumentParser) -> None:
    """``--results DIR``."""
    parser.add_argument(
        "--results",
        metavar="DIR",
        type=Path,
        help="results folder (default: $BANDWISE_RESULTS, else results/ here)",
    )


def results_root(args: argparse.Namespace) -> Path:
    """The results folder that was asked for."""
    from suite.runs.store import default_root

    return args.results if args.results is not None else default_root()
