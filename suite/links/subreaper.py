"""What the parent of many processes needs to take all of them along when it ends (Linux).

A *subreaper* is handed every descendant whose own parent ends. To stop, it kills its children, which hands it their
children, until it has none: no pid is guessed, since a child that has not been reaped keeps its pid.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import socket
import sys
from collections.abc import Callable

from suite.links.process import children

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
    `until_told`."""

    def __init__(self, *further: int) -> None:
        self._woken, self._wake = socket.socketpair()
        self._wake.setblocking(False)
        signal.set_wakeup_fd(self._wake.fileno())
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, *further):
            signal.signal(number, _carried_by_the_wakeup_descriptor)

    def until_told(self, attend: Callable[[], None], tied: bool) -> None:
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
