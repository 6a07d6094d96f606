"""Who else used the processors while a block ran, and what the machine looks like to a timing.

*Foreign* is processor time in user and system mode that was neither ours (this process and all its descendants: ranks,
keeper) nor an interrupt's, since the network's own work is done in interrupts. *Stolen* is what a host took
from this virtual machine. The kernel counts the machine's time in ticks of 10 ms on every processor, so a block of a few
ticks tells little; a block is disturbed only where even a tick fewer on every processor would be beyond the limit.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from suite.timing.spec import Limits

ALLOCATORS = ("jemalloc", "tcmalloc", "mimalloc")


@dataclass(frozen=True)
class Snapshot:
    """What a machine has done so far.

    busy, stolen: ticks since it was started. ours_s: CPU seconds of our processes. clock_s: the clock, in s. load_average: of the
    last minute. cores: its processors. machine: see `machine_id`.
    """

    busy: int
    stolen: int
    ours_s: float
    clock_s: float
    load_average: float
    cores: int
    machine: str


@dataclass(frozen=True)
class Load:
    """Between two snapshots: shares of the machine's processor time (0 to 1), and the smallest that can be told.

    load_average: of the last minute, at the end.
    """

    foreign_share: float
    steal_share: float
    resolution: float
    load_average: float

    def disturbed(self, limits: Limits) -> str:
        """What is beyond the limits, in words; empty where nothing is."""
        if self.foreign_share - self.resolution > limits.foreign_share:
            return f"others used {self.foreign_share:.0%} of the processors"
        if self.steal_share - self.resolution > limits.steal_share:
            return f"the host took {self.steal_share:.0%} of the processors away"
        return ""


def cpu_seconds(pid: int) -> float:
    """CPU seconds that all threads of a process have used, to the nanosecond. Raises OSError once it is gone."""
    return time.clock_gettime(
        (~pid << 3) | 2
    )  # the kernel's number for another process's clock, see clock(3)


@dataclass
class Meter:
    """Reads the machine's counters. cores: processors of the machine. pids: our processes; `find` looks for them anew."""

    proc: Path = Path("/proc")
    cores: int = field(default_factory=lambda: os.cpu_count() or 1)
    root: int = field(default_factory=os.getpid)
    cpu: Callable[[int], float] = cpu_seconds
    clock: Callable[[], float] = time.monotonic
    pids: Collection[int] = ()

    def find(self) -> None:
        """Take this process and all its descendants, as they are now, for ours."""
        self.pids = descendants(self.root, self.proc)

    def snapshot(self) -> Snapshot:
        """The counters now."""
        busy, stolen = ticks((self.proc / "stat").read_text(encoding="utf-8"))
        ours_s = sum(self._ours(pid) for pid in self.pids)
        return Snapshot(
            busy, stolen, ours_s, self.clock(), load_average(self.proc)[0], self.cores, machine_id()
        )

    def since(self, before: Snapshot) -> Load:
        """What happened since `before`."""
        return between(before, self.snapshot())

    def _ours(self, pid: int) -> float:
        try:
            return self.cpu(pid)
        except OSError:  # it has ended since
            return 0.0


@dataclass
class ClusterMeter:
    """The load of several machines, read by the ranks that run on them; a block is as disturbed as on the worst of them.

    ask: tells all ranks a command; their answers by rank.
    """

    ask: Callable[[Mapping[str, Any]], Sequence[Mapping[str, Any]]]

    def find(self) -> None:
        """Have every rank take itself and all its descendants, as they are now, for ours."""
        self.ask({"do": "load", "find": True})

    def snapshot(self) -> Sequence[Snapshot]:
        """The counters now, by rank."""
        return [Snapshot(**answer["counters"]) for answer in self.ask({"do": "load", "find": False})]

    def since(self, before: Sequence[Snapshot]) -> Load:
        """What happened since `before`."""
        of_machine: dict[str, list[tuple[Snapshot, Snapshot]]] = {}
        for then, now in zip(before, self.snapshot(), strict=True):
            of_machine.setdefault(now.machine, []).append((then, now))
        loads = []
        # of one machine all ranks read the same counters, and each knows its own processor time
        for pairs in of_machine.values():
            first, last = (
                replace(ends[0], ours_s=sum(end.ours_s for end in ends)) for ends in zip(*pairs, strict=True)
            )
            loads.append(between(first, last))
        worst = {name: max(getattr(one, name) for one in loads) for name in Load.__dataclass_fields__}
        return Load(**worst)


def between(before: Snapshot, now: Snapshot) -> Load:
    """What happened on a machine from one snapshot to another."""
    capacity = max(1e-9, (now.clock_s - before.clock_s) * now.cores)
    tick_s = 1 / os.sysconf("SC_CLK_TCK")
    foreign = (now.busy - before.busy) * tick_s - (now.ours_s - before.ours_s)
    return Load(
        foreign_share=min(1.0, max(0.0, foreign / capacity)),
        steal_share=min(1.0, (now.stolen - before.stolen) * tick_s / capacity),
        resolution=tick_s * now.cores / capacity,
        load_average=now.load_average,
    )


def machine_id() -> str:
    """A word that two processes share where they run on one kernel, since it was started."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()


def ticks(stat: str) -> tuple[int, int]:
    """(user + nice + system, stolen) of the machine's line of /proc/stat. Guests' time is part of user's already."""
    numbers = [int(text) for text in stat.splitlines()[0].split()[1:]]
    numbers += [0] * (8 - len(numbers))
    user, nice, system, _idle, _iowait, _irq, _softirq, stolen = numbers[:8]
    return user + nice + system, stolen


def descendants(root: int, proc: Path = Path("/proc")) -> list[int]:
    """A process and all that it and its children have started, as far as they still have their parents."""
    children: dict[int, list[int]] = {}
    for folder in proc.iterdir():
        if not folder.name.isdecimal():
            continue
        try:
            text = (folder / "stat").read_text(encoding="utf-8")
        except OSError:  # it has ended since
            continue
        parent = int(text.rpartition(")")[2].split()[1])
        children.setdefault(parent, []).append(int(folder.name))
    pids, todo = [], [root]
    while todo:
        pid = todo.pop()
        pids.append(pid)
        todo += children.get(pid, [])
    return sorted(pids)


def load_average(proc: Path = Path("/proc")) -> list[float]:
    """Mean numbers of processes that ran or wanted to, over 1, 5 and 15 minutes."""
    return [float(text) for text in (proc / "loadavg").read_text(encoding="utf-8").split()[:3]]


def machine(ranks: int, threads: int, *, emulated: bool) -> dict[str, Any]:
    """What the machine is to `ranks` processes of `threads` threads each: plain values for the record."""
    cores = len(os.sched_getaffinity(0))
    return {
        "cores": cores,
        "ranks": ranks,
        "threads_per_rank": threads,
        "oversubscription": ranks * threads / cores,
        "allocator": allocator(dict(os.environ)),
        "governor": governor(),
        "load_average": load_average(),
        "emulated": emulated,
        "backend": "gloo",
    }


def allocator(environment: dict[str, str]) -> str:
    """The allocator that processes of this environment get, and settings that change its speed."""
    preload = environment.get("LD_PRELOAD", "")
    name = next((name for name in ALLOCATORS if name in preload), "libc")
    settings = [f"{key}={value}" for key, value in sorted(environment.items()) if key.startswith("MALLOC_")]
    settings += [f"{key}={environment[key]}" for key in ("GLIBC_TUNABLES",) if key in environment]
    return " ".join([name, *settings])


def governor() -> str | None:
    """How the first processor's frequency is governed; None where the system does not tell."""
    path = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
    return path.read_text(encoding="utf-8").strip() if path.is_file() else None
