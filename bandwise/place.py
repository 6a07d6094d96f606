"""``--on``: where runs are carried out."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from bandwise.options import OptionError

if TYPE_CHECKING:
    from slurm.profile import Profile

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
