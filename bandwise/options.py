"""Options that several verbs have: ``--set key=value``, values as people type them, and ``--on``, where runs are trained."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from slurm.profile import Profile


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


def add_action(actions: Any, name: str, act: Any, text: str, **more: Any) -> argparse.ArgumentParser:
    """An action of a verb, whose parser is returned: `act` carries it out, `text` is what it is for; more: of `add_parser`."""
    parser: argparse.ArgumentParser = actions.add_parser(name, help=text, description=text, **more)
    # SUPPRESS: else the action's default would undo a --json that stands before the action
    parser.add_argument(
        "--json", action="store_true", default=argparse.SUPPRESS, help="answer as one JSON document"
    )
    parser.set_defaults(action=act)
    return parser
