"""Processes told apart beyond doubt: a pid together with the time the kernel started it.

A pid alone is used again after its process has ended, so a signal by pid can hit a stranger. The start time
(field 22 of ``/proc/<pid>/stat``, in clock ticks since boot) makes the pair unique while the machine is up.
"""

from __future__ import annotations

import os
import signal
import time
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
        """SIGTERM, then SIGKILL after ``grace_s`` seconds. Raises TimeoutError if it survives both."""
        self.signal(signal.SIGTERM)
        if self.wait_s(grace_s):
            return
        self.signal(signal.SIGKILL)
        if not self.wait_s(grace_s):
            raise TimeoutError(f"process {self.pid} does not end; `ps -p {self.pid}` says what it waits for")


def children(pid: int) -> list[int]:
    """Pids whose parent is ``pid`` now, zombies included."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            stat = _stat(int(entry.name))
            if stat is not None and int(stat[1]) == pid:
                found.append(int(entry.name))
    return found


def _stat(pid: int) -> list[str] | None:
    """Fields of ``/proc/<pid>/stat`` from the third (state) on; None where there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    return text.rpartition(")")[2].split()  # the name in brackets may itself hold blanks and brackets
