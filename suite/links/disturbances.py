"""What on a machine disturbs timing, and the fix for each: clocks that move, neighbours, quotas, memory, the clock itself.

Everything is read from the kernel's own files, through `suite.links.machine.Machine`. What a machine does not tell, as a
virtual one does not tell its clocks, is said to be so and counts as no problem: nobody could mend it from inside.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from suite.links.finding import Finding
from suite.links.machine import Machine

QUIET_LOAD_PER_CORE: Final = 0.25
MOST_STEAL: Final = 0.01
CPU: Final = "sys/devices/system/cpu"
THP: Final = "sys/kernel/mm/transparent_hugepage/enabled"
CLOCK: Final = "sys/devices/system/clocksource/clocksource0"
FAST_CLOCKS: Final = frozenset({"tsc", "kvm-clock", "arch_sys_counter", "hyperv_clocksource_tsc_page"})
"""Clock sources that are read without a system call."""
SHOWN: Final = 4
UNTOLD: Final = "not told by this machine"
LOOK: Final = "ps -eo pcpu,etime,args --sort=-pcpu | head"


def disturbances(machine: Machine) -> list[Finding]:
    """Look at everything that makes seconds differ from one moment to the next; reads files alone."""
    return [
        _load(machine),
        _others(machine),
        _governor(machine),
        _turbo(machine),
        _throttling(machine),
        _siblings(machine),
        _quota(machine),
        _steal(machine),
        _swap(machine),
        _huge_pages(machine),
        _balancing(machine),
        _clock(machine),
    ]


def _well(name: str, detail: str) -> Finding:
    return Finding(name, True, detail, needed=False)


def _ill(name: str, detail: str, fix: str) -> Finding:
    return Finding(name, False, detail, fix, needed=False)


def _others(machine: Machine) -> Finding:
    """Processes that run or wait for a core at this very moment, this one and its threads aside."""
    own = (machine.read("proc/self/stat") or "").partition(" ")[0]
    busy = []
    for path in sorted((machine.root / "proc").glob("[0-9]*/stat")):
        text = machine.read(str(path.relative_to(machine.root))) or ""
        name, _, rest = text.partition("(")[2].rpartition(")")  # a name may hold brackets
        if path.parent.name != own and rest.split()[:1] == ["R"]:
            busy.append(f"{name} ({path.parent.name})")
    if not busy:
        return _well("processes", "no other one computes at this moment")
    more = f" and {len(busy) - SHOWN} more" if len(busy) > SHOWN else ""
    return _ill("processes", f"computing at this moment: {', '.join(busy[:SHOWN])}{more}", LOOK)


def _turbo(machine: Machine) -> Finding:
    """Clocks above the nominal one last as long as heat and neighbours allow."""
    detail = "on: clocks rise and fall with heat and with what other cores do"
    if (no_turbo := machine.number(f"{CPU}/intel_pstate/no_turbo")) is not None:
        fix = f"echo 1 | sudo tee /{CPU}/intel_pstate/no_turbo"
        return _well("turbo", "off") if no_turbo else _ill("turbo", detail, fix)
    if (boost := machine.number(f"{CPU}/cpufreq/boost")) is not None:
        return (
            _ill("turbo", detail, f"echo 0 | sudo tee /{CPU}/cpufreq/boost")
            if boost
            else _well("turbo", "off")
        )
    return _well("turbo", f"{UNTOLD}, as is usual in a virtual one")


def _throttling(machine: Machine) -> Finding:
    counts = [
        machine.number(str(path.relative_to(machine.root)))
        for path in sorted((machine.root / CPU).glob("cpu[0-9]*/thermal_throttle/core_throttle_count"))
    ]
    if not counts:
        return _well("throttling", f"{UNTOLD}, as is usual in a virtual one")
    worst = max(count or 0 for count in counts)
    if not worst:
        return _well("throttling", "no core was slowed down for heat since boot")
    return _ill(
        "throttling",
        f"a core was slowed down for heat {worst} times since boot",
        f"clean or better the cooling, or cap the clock below it: sudo cpupower frequency-set -u 2GHz; then watch "
        f"/{CPU}/cpu*/thermal_throttle",
    )


def _siblings(machine: Machine) -> Finding:
    """Hardware threads of one core share its units: a worker on each is no worker a core."""
    allowed = _listed(machine.status("Cpus_allowed_list") or "")
    shared = set()
    for path in sorted((machine.root / CPU).glob("cpu[0-9]*/topology/thread_siblings_list")):
        threads = _listed(path.read_text()) & (allowed or _listed(path.read_text()))
        if len(threads) > 1:
            shared.add(tuple(sorted(threads)))
    if not shared:
        return _well("SMT", "no two of the cores that may be used are threads of one")
    cores = "; ".join(" and ".join(map(str, threads)) for threads in sorted(shared)[:SHOWN])
    more = f"; {len(shared) - SHOWN} more" if len(shared) > SHOWN else ""
    detail = f"these are threads of one core: {cores}{more}"
    if (machine.read(f"{CPU}/smt/control") or "").strip() == "on":
        return _ill("SMT", detail, f"echo off | sudo tee /{CPU}/smt/control")
    first = ",".join(str(threads[0]) for threads in sorted(shared))
    return _ill("SMT", detail, f"taskset -c {first} bandwise session ...")


def _listed(text: str) -> set[int]:
    """The numbers of a list as the kernel writes it: ``0-2,7``."""
    found: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found


def _quota(machine: Machine) -> Finding:
    """A quota of seconds a period stops all workers at once when it is used up; one that spans all cores never is."""
    cores = min(
        (limit for limit in (_v2_quota(machine), _v1_quota(machine)) if limit is not None), default=None
    )
    if cores is None:
        return _well("CPU quota", "none")
    detail = f"{cores:.3g} cores' worth of time for {machine.cores} cores"
    if cores >= machine.cores:
        return _well("CPU quota", detail)
    return _ill(
        "CPU quota",
        f"{detail}: all workers stand still when it is used up",
        "lift it where it was set (docker update --cpus, the pod's limits.cpu, systemctl set-property CPUQuota=), or use "
        f"fewer cores: taskset -c 0-{max(0, int(cores) - 1)}",
    )


def _v2_quota(machine: Machine) -> float | None:
    """The least of ``cpu.max`` from this process's control group up to the root, in cores."""
    lines = (machine.read("proc/self/cgroup") or "").splitlines()
    own = next((line.removeprefix("0::").strip("/") for line in lines if line.startswith("0::")), None)
    found = []
    for folder in [] if own is None else [Path(own), *Path(own).parents]:
        quota, _, period = (machine.read(f"sys/fs/cgroup/{folder}/cpu.max") or "").strip().partition(" ")
        if quota.isdigit() and period.isdigit():
            found.append(int(quota) / int(period))
    return min(found, default=None)


def _v1_quota(machine: Machine) -> float | None:
    """The same of the older hierarchy, in cores."""
    for line in (machine.read("proc/self/cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)
        if "cpu" in controllers.split(","):
            for folder in ("sys/fs/cgroup/cpu", "sys/fs/cgroup/cpu,cpuacct"):
                quota, period = (
                    machine.number(f"{folder}/{path.strip('/')}/cpu.cfs_{name}_us")
                    for name in ("quota", "period")
                )
                if quota is not None and quota > 0 and period:
                    return quota / period
    return None


def _huge_pages(machine: Machine) -> Finding:
    """With `always` the kernel looks for large pages at each large allocation, and moves memory about behind."""
    text = machine.read(THP)
    if text is None:
        return _well("huge pages", UNTOLD)
    chosen = text.partition("[")[2].partition("]")[0]
    if chosen != "always":
        return _well("huge pages", chosen)
    return _ill(
        "huge pages",
        "transparent ones always: large buffers come fast or slowly, as memory happens to lie",
        f"echo madvise | sudo tee /{THP}",
    )


def _balancing(machine: Machine) -> Finding:
    """Automatic NUMA balancing takes pages away for a moment to see who uses them; it needs two nodes to matter."""
    nodes = len(list((machine.root / "sys/devices/system/node").glob("node[0-9]*")))
    if nodes < 2 or machine.number("proc/sys/kernel/numa_balancing") in {0, None}:
        return _well("NUMA balancing", "off" if nodes > 1 else "one memory node")
    return _ill(
        "NUMA balancing",
        f"on, with {nodes} memory nodes: pages move while they are used",
        "sudo sysctl -w kernel.numa_balancing=0",
    )


def _clock(machine: Machine) -> Finding:
    current = (machine.read(f"{CLOCK}/current_clocksource") or "").strip()
    if not current:
        return _well("clock source", UNTOLD)
    if current in FAST_CLOCKS:
        return _well("clock source", current)
    better = sorted(FAST_CLOCKS & set((machine.read(f"{CLOCK}/available_clocksource") or "").split()))
    fix = f"echo {better[0]} | sudo tee /{CLOCK}/current_clocksource" if better else "boot with tsc=reliable"
    return _ill("clock source", f"{current}: reading it takes a system call, about a microsecond", fix)


def _load(machine: Machine) -> Finding:
    words = (machine.read("proc/loadavg") or "").split()
    if not words:
        return Finding("load", True, "not told by this machine", needed=False)
    quiet = float(words[0]) <= QUIET_LOAD_PER_CORE * machine.cores
    detail = f"load average {words[0]} on {machine.cores} cores"
    fix = "" if quiet else "ps -eo pcpu,etime,args --sort=-pcpu | head"
    return Finding("load", quiet, detail if quiet else f"{detail}: others are computing", fix, needed=False)


def _governor(machine: Machine) -> Finding:
    folder = machine.root / "sys/devices/system/cpu"
    found = {path.read_text().strip() for path in sorted(folder.glob("cpu[0-9]*/cpufreq/scaling_governor"))}
    if not found:
        return Finding(
            "governor", True, "not told by this machine, as is usual in a virtual one", needed=False
        )
    if found == {"performance"}:
        return Finding("governor", True, "performance", needed=False)
    detail = f"{', '.join(sorted(found))}: clocks follow the load"
    return Finding("governor", False, detail, "sudo cpupower frequency-set -g performance", needed=False)


def _steal(machine: Machine) -> Finding:
    """The share of time since boot in which this virtual machine was ready to run and its host ran others."""
    words = (machine.read("proc/stat") or "").split("\n")[0].split()[1:]
    if len(words) < 8:
        return Finding("steal", True, "not told by this machine", needed=False)
    ticks = [int(word) for word in words[:8]]  # guest time is part of user time
    share = ticks[7] / max(sum(ticks), 1)
    detail = f"{share:.2%} of the time since boot went to other virtual machines"
    if share <= MOST_STEAL:
        return Finding("steal", True, detail, needed=False)
    return Finding("steal", False, detail, "measure on a machine with cores of its own", needed=False)


def _swap(machine: Machine) -> Finding:
    lines = (line.split() for line in (machine.read("proc/meminfo") or "").splitlines())
    kib = {line[0].rstrip(":"): int(line[1]) for line in lines if len(line) >= 2 and line[1].isdigit()}
    used = kib.get("SwapTotal", 0) - kib.get("SwapFree", 0)
    if used <= 0:
        return Finding("swap", True, "none in use", needed=False)
    return Finding(
        "swap", False, f"{used} KiB in use: memory may be waited for", "sudo swapoff -a", needed=False
    )
