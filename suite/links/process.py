"""Processes of the machine: told apart beyond doubt, ended to the last descendant, and programs of the system run.

A pid alone is used again after its process has ended, so a signal by pid can hit a stranger. The start time (field 22 of
``/proc/<pid>/stat``, in clock ticks since boot) makes the pair of a `Process` unique while the machine is up.

A *subreaper* is handed every descendant whose own parent ends (Linux). To stop, it kills its children, which hands it their
children, until it has none: no pid is guessed, since a child that has not been reaped keeps its pid.

Programs of the system are found also where an ordinary user's PATH does not look, and run with their complaint kept.
Standard library only.
"""

from __future__ import annotations

import ctypes
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


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

    def signal(self, number: int) -> bool:
        """Send a signal to this very process; False where it has ended."""
        if not self.alive():
            return False
        try:
            os.kill(self.pid, number)
        except ProcessLookupError:
            return False
        return True

    def wait_s(self, timeout_s: float) -> bool:
        """Wait until the process has ended; False where it still runs after ``timeout_s`` seconds."""
        deadline = time.monotonic() + timeout_s
        while self.alive():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True

    def stop(self, grace_s: float = 5.0) -> None:
        """SIGTERM, then SIGKILL.

        Args:
            grace_s: Seconds that each of the two may take.

        Raises:
            TimeoutError: The process survives both.
        """
        self.signal(signal.SIGTERM)
        if self.wait_s(grace_s):
            return
        self.signal(signal.SIGKILL)
        if not self.wait_s(grace_s):
            raise TimeoutError(f"process {self.pid} does not end; `ps -p {self.pid}` says what it waits for")


def children(pid: int) -> list[int]:
    """Pids whose parent is ``pid`` now, zombies included."""
    pids = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            stat = _stat(int(entry.name))
            if stat is not None and int(stat[1]) == pid:
                pids.append(int(entry.name))
    return pids


def _stat(pid: int) -> list[str] | None:
    """Fields of ``/proc/<pid>/stat`` from the third (state) on; None where there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    return text.rpartition(")")[2].split()  # the name in brackets may itself hold blanks and brackets


# The parent of many processes


PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


def become_subreaper() -> None:
    """Make this process the parent of descendants whose parent ends. Raises OSError where the kernel refuses."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent_pid: int) -> None:
    """Have the kernel kill this process when ``parent_pid``, its parent, ends; called first thing after a fork."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:  # it had ended before the kernel was asked
        os._exit(1)


def kill_descendants() -> None:
    """Kill whatever descends from this process, and collect it."""
    while True:
        for pid in children(os.getpid()):
            os.kill(pid, signal.SIGKILL)  # not reaped yet, hence still this process
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def ended_children() -> list[tuple[int, int]]:
    """Collect children that have ended: pid and exit code (minus the signal's number where one killed it)."""
    ended: list[tuple[int, int]] = []
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended.append((pid, os.waitstatus_to_exitcode(status)))


class Signals:
    """SIGTERM, SIGINT, SIGCHLD and ``further`` signals of this process, from its making on, to be waited for with
    `wait_for_stop`."""

    def __init__(self, *further: int) -> None:
        self._woken, self._wake = socket.socketpair()
        self._wake.setblocking(False)
        signal.set_wakeup_fd(self._wake.fileno())
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, *further):
            signal.signal(number, _carried_by_the_wakeup_descriptor)

    def wait_for_stop(self, attend: Callable[[], None], tied: bool) -> None:
        """Wait for SIGTERM or SIGINT; ``tied``: or for standard input to close. Calls ``attend`` at any other signal."""
        watched = [self._woken, *([sys.stdin] if tied else [])]
        while True:
            readable, _, _ = select.select(watched, [], [])
            if self._woken in readable:
                numbers = self._woken.recv(4096)
                if signal.SIGTERM in numbers or signal.SIGINT in numbers:
                    return
                attend()
            if sys.stdin in readable and not os.read(sys.stdin.fileno(), 4096):
                return


def _carried_by_the_wakeup_descriptor(number: int, frame: object) -> None:
    """A handler must exist for the number to be written to the descriptor; it has nothing else to do."""


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}, {value}): {os.strerror(number)}")


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
