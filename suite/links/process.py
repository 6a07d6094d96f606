"""Processes of the machine, told apart beyond doubt, and programs of the system run.

A pid alone is used again after its process has ended, so a signal by pid can hit a stranger. The start time (field 22 of
``/proc/<pid>/stat``, in clock ticks since boot) makes the pair of a `Process` unique while the machine is up.

Programs of the system are found also where an ordinary user's PATH does not look, and run with their complaint kept.
Standard library only.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Process:
    """One process: ``pid`` and ``started_ticks`` (clock ticks since boot)."""

    pid: int
    started_ticks: int

    @classmethod
    def of(cls, pid: int) -> Process:
        """The process that has ``pid`` now. Raises ProcessLookupError where there is none."""
        stat = _stat(pid)
        if stat is None:
            raise ProcessLookupError(f"no process {pid}")
        return cls(pid, int(stat[19]))

    def alive(self) -> bool:
        """True while this very process runs; a zombie, which only waits to be reaped, counts as ended."""
        stat = _stat(self.pid)
        return stat is not None and int(stat[19]) == self.started_ticks and stat[0] not in "ZX"


def _stat(pid: int) -> list[str] | None:
    """Fields of ``/proc/<pid>/stat`` from the third (state) on; None where there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    return text.rpartition(")")[2].split()  # the name in brackets may itself hold blanks and brackets


def die_with_parent(parent_pid: int) -> None:
    """Have the kernel kill this process when ``parent_pid``, its parent, ends; called first thing in a new process."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl: {os.strerror(ctypes.get_errno())}")
    if os.getppid() != parent_pid:  # it had ended before the kernel was asked
        os._exit(1)


# Programs of the system


SBIN = ("/usr/sbin", "/sbin", "/usr/local/sbin")
PROGRAM_TIMEOUT_S = 20.0


class CommandError(RuntimeError):
    """A program of the system failed; the message holds its command and its complaint."""


def search_path() -> str:
    """PATH with the folders of system programs behind it."""
    return os.pathsep.join([os.environ.get("PATH", os.defpath), *SBIN])


def program_environment() -> Mapping[str, str]:
    """The environment with `search_path`, and with programs' messages in English."""
    return {**os.environ, "PATH": search_path(), "LC_ALL": "C"}


def find_program(program: str) -> str | None:
    """Absolute path of a program, or None."""
    return shutil.which(program, path=search_path())


def run_program(argv: Sequence[str]) -> str:
    """Run a program of the system that must succeed within `PROGRAM_TIMEOUT_S`.

    Args:
        argv: The program and its arguments.

    Returns:
        Its standard output.

    Raises:
        CommandError: It is missing, fails, or does not end; with its complaint.
    """
    try:
        done = subprocess.run(
            argv,
            env=program_environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=PROGRAM_TIMEOUT_S,
        )
    except FileNotFoundError as error:
        raise CommandError(f"`{' '.join(argv)}`: {argv[0]} not found") from error
    except subprocess.TimeoutExpired as error:
        raise CommandError(f"`{' '.join(argv)}` did not end within {PROGRAM_TIMEOUT_S:.0f} s") from error
    if done.returncode != 0:
        complaint = (done.stderr or done.stdout).strip() or f"exit code {done.returncode}"
        raise CommandError(f"`{' '.join(argv)}`: {complaint}")
    return done.stdout
