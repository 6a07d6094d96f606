"""What several verbs have in common: values as people type them, where runs are trained, where results lie, and what only a
checkout has.

The installed wheel holds the methods and this command alone; the suite and its results are in a checkout, and it needs more
packages than the methods do, which are the extra `bandwise[suite]`.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from slurm.profile import Profile

# ---- options


class OptionError(ValueError):
    """An option on the command line cannot be read; the message shows the form."""


def parse_settings(settings: Sequence[str], flag: str = "--set") -> dict[str, Any]:
    """``["a=1", "b=never"]`` -> ``{"a": 1, "b": "never"}``. Raises `OptionError`."""
    found: dict[str, Any] = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals or not key:
            raise OptionError(f"{flag} {setting!r}: write {flag} key=value")
        if key in found:
            raise OptionError(f"{flag} {key} is given twice")
        found[key] = parse_value(text)
    return found


def parse_value(text: str) -> Any:
    """A number, true, false, null or a JSON list where the text is one; else the text itself."""
    try:
        value = json.loads(text, parse_constant=_refuse)
    except ValueError:
        return text
    return text if isinstance(value, dict) else value


def _refuse(name: str) -> float:
    """NaN and Infinity are words here, not numbers."""
    raise ValueError(name)


METAVAR = "local|slurm|PROFILE"


def add_place_option(parser: argparse.ArgumentParser, default: str | None, text: str) -> None:
    """``--on local``, ``--on slurm`` (the default profile), ``--on slurm:NAME``, or a profile's name or path alone."""
    parser.add_argument("--on", default=default, metavar=METAVAR, help=text)


def profile_of(where: str) -> Profile | None:
    """The profile that was asked for, None for this machine. Raises `OptionError`, or `YamlError` for a wrong file."""
    if where == "local":
        return None
    from slurm.profile import UnknownProfileError, load_profile

    name = where.removeprefix("slurm:") or "slurm"
    try:
        return load_profile(name)
    except UnknownProfileError as error:
        raise OptionError(
            f"--on {where}: {error}; write local, slurm, or slurm:PROFILE, or a profile's name or path alone"
        ) from None


# ---- what only a checkout has

TOP: Final = Path(__file__).resolve().parents[1]


SUITE_PACKAGES: Final = {
    "adjustText": "adjustText",
    "itables": "itables",
    "jinja2": "Jinja2",
    "markdown_it": "markdown-it-py",
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


def results_root(args: argparse.Namespace) -> Path:
    """The results folder that was asked for."""
    from suite.runs.store import default_root

    return args.results if args.results is not None else default_root()
