"""Who has a run in hand: a file in its folder, so that sweeps which share runs do each of them once.

``lease-<k>.json`` holds the owner's name and its process. It is made exclusively and is alive by the time of its last
change, which its holder moves between steps. A lease may be taken over when it is stale, when its owner's process has
ended on this machine, or by an owner of the same name (a job that was requeued). Whoever makes number k + 1 while
number k is still there has it; numbers only grow while a folder holds a lease, so of two that try one wins, and a kill
at any moment leaves a lease that can be taken over. It needs nothing but exclusive creation, which network file
systems have.
"""

from __future__ import annotations

import os
import re
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from suite.links.process import Process
from suite.runs.files import RefusedError, parsed, read
from suite.runs.store import STALE_AFTER_S, cannot_write, dump

ATTEMPTS: Final = 20
"""How often a lease is tried for that changes hands just then."""


@dataclass(frozen=True)
class Owner:
    """Who works on a run, by a name that no two have at the same time."""

    name: str

    @classmethod
    def here(cls, pid: int | None = None) -> Owner:
        """This process, or another one of this machine."""
        return cls(f"pid {pid or os.getpid()} on {socket.gethostname()}")


@dataclass(frozen=True)
class Lease:
    """A lease in hand."""

    path: Path

    def heartbeat(self) -> bool:
        """Show life; False when somebody else has taken the run over."""
        try:
            os.utime(self.path)
        except FileNotFoundError:
            return False
        return True

    def held(self) -> bool:
        """Whether nobody has taken the run over."""
        return self.path.exists()

    def release(self) -> None:
        """Give it back."""
        self.path.unlink(missing_ok=True)


def take(folder: Path, owner: Owner, stale_after_s: float = STALE_AFTER_S) -> Lease | None:
    """The lease of the run in `folder`; None while a live owner of another name has it. Raises `StoreError`."""
    for _ in range(ATTEMPTS):
        held = _leases(folder)
        newest = held[-1] if held else None
        if newest is not None and not _free(newest, owner, stale_after_s):
            return None
        mine = _path(folder, 1 if newest is None else _number(newest) + 1)
        if not _create(mine, owner):
            continue
        if (newest is None or newest.exists()) and _leases(folder)[-1:] == [mine]:
            for older in held:
                older.unlink(missing_ok=True)
            return Lease(mine)
        mine.unlink(missing_ok=True)  # it had changed hands in between
        time.sleep(0.01)
    return None


def holder(folder: Path) -> str | None:
    """Name of the owner whose lease is the newest; None where there is none."""
    held = _leases(folder)
    return str(_content(held[-1]).get("owner", "unknown")) if held else None


def release(folder: Path, owner: Owner) -> bool:
    """Remove the lease of an owner that is known to be dead (by the scheduler, say); True where it held one."""
    if holder(folder) != owner.name:
        return False
    for path in _leases(folder):
        path.unlink(missing_ok=True)
    return True


def _free(path: Path, owner: Owner, stale_after_s: float) -> bool:
    """Whether a lease may be taken over."""
    try:
        silent_s = time.time() - path.stat().st_mtime
    except FileNotFoundError:
        return True
    content = _content(path)
    if silent_s > stale_after_s or content.get("owner") == owner.name:
        return True
    pid, started_ticks = content.get("pid"), content.get("started_ticks")
    if content.get("machine") != _machine() or not isinstance(pid, int) or not isinstance(started_ticks, int):
        return False
    return not Process(pid, started_ticks).alive()


def _create(path: Path, owner: Owner) -> bool:
    """Make the file; False when another was quicker. Raises `StoreError`, and leaves no empty file where the disk is full."""
    me = Process.of(os.getpid())
    content = {
        "owner": owner.name,
        "machine": _machine(),
        "pid": me.pid,
        "started_ticks": me.started_ticks,
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("x", encoding="utf-8")
    except FileExistsError:
        return False
    except OSError as error:
        raise cannot_write(path, error) from error
    try:
        with file:
            file.write(dump(content) + "\n")
    except OSError as error:
        path.unlink(missing_ok=True)
        raise cannot_write(path, error) from error
    return True


def _content(path: Path) -> dict[str, Any]:
    """What a lease says; empty where it has gone, is damaged, or its owner died while writing it."""
    try:
        found = parsed(read(path) or "{}", path)
    except RefusedError:
        return {}
    return found if isinstance(found, dict) else {}


def _machine() -> str:
    """Where a pid means one process: this boot of this machine, and the namespace of pids."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    return f"{boot} {os.readlink('/proc/self/ns/pid')}"


def _leases(folder: Path) -> list[Path]:
    """All leases in the folder, the newest last."""
    return sorted(
        (p for p in folder.glob("lease-*.json") if re.fullmatch("[0-9]{1,18}", p.stem[6:])), key=_number
    )


def _path(folder: Path, number: int) -> Path:
    return folder / f"lease-{number}.json"


def _number(path: Path) -> int:
    return int(path.stem.partition("-")[2])
