"""The system's programs: found also where an ordinary user's PATH does not look, and run with their complaint kept."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence

SBIN = ("/usr/sbin", "/sbin", "/usr/local/sbin")
TIMEOUT_S = 20.0


class CommandError(RuntimeError):
    """A program of the system failed; the message holds its command and its complaint."""


def search_path() -> str:
    """PATH with the folders of system programs behind it."""
    return os.pathsep.join([os.environ.get("PATH", os.defpath), *SBIN])


def environ() -> Mapping[str, str]:
    """The environment with `search_path`, and with programs' messages in English."""
    return {**os.environ, "PATH": search_path(), "LC_ALL": "C"}


def find(program: str) -> str | None:
    """Absolute path of a program, or None."""
    return shutil.which(program, path=search_path())


def run(argv: Sequence[str]) -> str:
    """Standard output of a program that must succeed within `TIMEOUT_S`. Raises CommandError."""
    try:
        done = subprocess.run(
            argv,
            env=environ(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=TIMEOUT_S,
        )
    except FileNotFoundError as error:
        raise CommandError(f"`{' '.join(argv)}`: {argv[0]} not found") from error
    except subprocess.TimeoutExpired as error:
        raise CommandError(f"`{' '.join(argv)}` did not end within {TIMEOUT_S:.0f} s") from error
    if done.returncode != 0:
        complaint = (done.stderr or done.stdout).strip() or f"exit code {done.returncode}"
        raise CommandError(f"`{' '.join(argv)}`: {complaint}")
    return done.stdout
