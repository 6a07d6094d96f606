"""What only a checkout has: the suite, its results. The installed wheel holds the methods and this command alone.

The suite needs more packages than the methods do, which are the extra `bandwise[suite]`.
"""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path
from typing import Final

TOP: Final = Path(__file__).resolve().parents[1]


SUITE_PACKAGES: Final = {
    "asv": "asv",
    "jinja2": "Jinja2",
    "matplotlib": "matplotlib",
    "pydantic": "pydantic",
    "scipy": "scipy",
    "seaborn": "seaborn",
    "sklearn": "scikit-learn",
    "submitit": "submitit",
    "yaml": "PyYAML",
}
"""What the extra installs: name of an import -> distribution."""


class CheckoutError(ValueError):
    """The verb needs a checkout; the message says how to get one."""


def require_checkout(verb: str) -> None:
    """Raise `CheckoutError` unless the suite of this project can be imported."""
    if not has_checkout():
        raise CheckoutError(
            f"`bandwise {verb}` works in a checkout of the project: clone it and there run `make bench`, or "
            "`pip install -e '.[suite]'`"
        )


def extra_needed(verb: str, error: ModuleNotFoundError) -> str:
    """What to install, in a line, where a verb lacks a package of the extra; empty where another one is missing."""
    name = (error.name or "").partition(".")[0]
    if name not in SUITE_PACKAGES:
        return ""
    what = "-e '.[suite]'" if (TOP / "pyproject.toml").is_file() else "'bandwise[suite]'"
    return f"`bandwise {verb}` needs {SUITE_PACKAGES[name]}, which is not installed: pip install {what}"


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
