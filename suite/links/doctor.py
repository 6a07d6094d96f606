"""What stands between this machine and an emulated cluster, or between it and believable seconds; a command for each.

`checks` looks at everything, `obstacle` names the first thing without which no cluster can be made, `namespaces` is about
namespaces alone. Whether something works is tried, in a throw-away namespace; files of the kernel are read only to say why
it does not. A machine is examined through `Machine`, so that a made-up one can be examined too. What a machine does not
tell, as a virtual one does not tell its clocks, is said to be so and counts as no problem: nobody could mend it from inside.

    python -m suite.links.doctor

is the trial: it writes one JSON object, for each of `TRIAL_STEPS` null where it worked, else what the system said; a step
that was not reached is left out. ``namespaces`` comes first; without it nothing else is tried. All that was made ends with
the process. Standard library only.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from suite.links.process import CommandError, find_program, program_environment, run_program
from suite.links.topology import (
    CAP_NET_ADMIN,
    CAP_SYS_ADMIN,
    NamespaceError,
    enter_new_network,
    entry,
)


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    fix: one command that helps, or where there is none what to do instead; empty where all is well. needed: without it
    no emulated cluster can be made; otherwise it costs speed, or the belief in what is measured.
    """

    name: str
    ok: bool
    detail: str
    fix: str = ""
    needed: bool = True


# A throw-away cluster of no workers


NAMESPACES, ENTER, BRIDGE, VETH, TBF, NETEM = "namespaces", "enter", "bridge", "veth", "tbf", "netem"
TRIAL_STEPS = (NAMESPACES, ENTER, BRIDGE, VETH, TBF, NETEM)

TRIAL_COMMANDS = {
    BRIDGE: "ip link add name br0 type bridge",
    VETH: "ip link add name v0 type veth peer name v1",
    TBF: "tc qdisc add dev v0 root tbf rate 100mbit burst 64kb limit 1mb",
    NETEM: "tc qdisc add dev v1 root netem delay 5ms",
}


def main() -> int:
    """Try all steps, write what came of each."""
    sys.stdout.write(json.dumps(try_all()) + "\n")
    return 0


def try_all() -> dict[str, str | None]:
    """Step -> None where it worked, else what the system said. This process stays in the new namespace."""
    try:
        enter_new_network()
    except NamespaceError as error:
        return {NAMESPACES: str(error)}
    tried = {NAMESPACES: complaint("ip", "link", "set", "lo", "up")}  # rights in it, not only the namespace
    if tried[NAMESPACES] is not None:
        return tried
    prefix = entry(os.getpid(), user_namespace=False)  # we are in the user namespace, if there is one
    tried[ENTER] = complaint(*prefix, "ip", "link", "show", "dev", "lo")
    for step, command in TRIAL_COMMANDS.items():
        tried[step] = complaint(*command.split())
    return tried


def complaint(*command: str) -> str | None:
    """What a command that fails says; None where it works."""
    try:
        run_program(command)
    except CommandError as error:
        return str(error)
    return None


# The machine at hand


CHECKOUT = Path(__file__).resolve().parents[2]
TRIAL_MODULE = "suite.links.doctor"
TRIAL_TIMEOUT_S = 60.0

Trial = dict[str, str | None]
"""Step of `TRIAL_STEPS` -> None where it worked, else what the system said; missing where not reached."""


def run_trial() -> Trial:
    """Try out namespaces and shaping. Starts one process; nothing of it is left."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", TRIAL_MODULE],
            cwd=CHECKOUT,
            env=program_environment(),
            capture_output=True,
            text=True,
            timeout=TRIAL_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {NAMESPACES: f"the trial did not end within {TRIAL_TIMEOUT_S:g} s"}
    if done.returncode != 0:
        return {NAMESPACES: f"the trial failed: {(done.stderr.strip() or 'no word').splitlines()[-1]}"}
    tried: Trial = json.loads(done.stdout)
    return tried


@dataclass(frozen=True)
class Machine:
    """A machine to examine.

    root: below it lie ``proc``, ``sys`` and marker files. uid: of who asks. cores: that may be used. find: absolute path of
    a program or None. trial: runs `try_all` in another process. python_header: whether Python's C header is there.
    """

    root: Path
    uid: int
    cores: int
    find: Callable[[str], str | None]
    trial: Callable[[], Trial]
    python_header: bool

    @classmethod
    def here(cls) -> Machine:
        """This machine, for this process."""
        return cls(
            root=Path("/"),
            uid=os.geteuid(),
            cores=len(os.sched_getaffinity(0)),
            find=find_program,
            trial=run_trial,
            python_header=Path(sysconfig.get_path("include"), "Python.h").is_file(),
        )

    def read(self, path: str) -> str | None:
        """Text of a file below `root`, or None where it cannot be read."""
        try:
            return (self.root / path).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return None

    def number(self, path: str) -> int | None:
        """The number that a file of the kernel holds, or None."""
        text = (self.read(path) or "").strip()
        return int(text) if text.lstrip("-").isdigit() else None

    def status(self, key: str) -> str | None:
        """A field of ``/proc/self/status``, such as ``CapEff``."""
        for line in (self.read("proc/self/status") or "").splitlines():
            name, _, value = line.partition(":")
            if name == key:
                return value.strip()
        return None

    def has_capability(self, number: int) -> bool:
        """Whether this process holds a capability of <linux/capability.h>; True where the kernel does not tell."""
        held = self.status("CapEff")
        return held is None or bool(int(held, 16) >> number & 1)

    def in_container(self) -> bool:
        """Whether this looks like the inside of a container."""
        if (self.root / ".dockerenv").exists() or (self.root / "run/.containerenv").exists():
            return True
        control_groups = self.read("proc/1/cgroup") or ""
        return any(word in control_groups for word in ("docker", "kubepods", "containerd", "lxc"))


# What an emulated cluster needs


CAPABILITIES = {"CAP_SYS_ADMIN": CAP_SYS_ADMIN, "CAP_NET_ADMIN": CAP_NET_ADMIN}
CONTAINER_FIX = "docker run --privileged ..."
"""AppArmor's and seccomp's profiles of a container forbid more than the two capabilities; this lifts all."""

# program -> (what for, its package for apt, dnf, apk, pacman)
PROGRAMS = {
    "ip": ("makes interfaces", ("iproute2", "iproute", "iproute2", "iproute2")),
    "tc": ("shapes links", ("iproute2", "iproute-tc", "iproute2-tc", "iproute2")),
    "nsenter": ("runs a program on a worker", ("util-linux", "util-linux", "util-linux-misc", "util-linux")),
}
COMPILER_PACKAGES = ("g++ python3-dev", "gcc-c++ python3-devel", "g++ python3-dev", "gcc python")
INSTALLERS = {
    "apt-get": "apt-get install",
    "dnf": "dnf install",
    "apk": "apk add",
    "pacman": "pacman -S",
}
MODULES = {BRIDGE: "bridge", VETH: "veth", TBF: "sch_tbf"}


def checks(workers: int = 4, machine: Machine | None = None) -> list[Finding]:
    """Look at everything that a cluster needs and that timing needs; takes about half a second.

    Args:
        workers: How many workers the cluster is to have.
        machine: The machine to examine; default this one.

    Returns:
        A finding for each thing looked at.
    """
    asked = machine or Machine.here()
    tried = asked.trial()
    return [
        *_programs(asked),
        _namespaces(asked, tried),
        *_shaping(asked, tried),
        _delay(asked, tried),
        _compiler(asked),
        _cores(asked, workers),
        *disturbances(asked),
    ]


def obstacle(machine: Machine | None = None) -> Finding | None:
    """The first thing without which no cluster can be made here.

    Args:
        machine: The machine to examine; default this one.

    Returns:
        The finding, None where nothing is in the way.
    """
    asked = machine or Machine.here()
    tried = asked.trial()
    needed = [*_programs(asked), _namespaces(asked, tried), *_shaping(asked, tried)]
    return next((finding for finding in needed if not finding.ok), None)


def namespaces(machine: Machine | None = None) -> Finding:
    """Whether network namespaces can be made here, and if not, why and what helps."""
    asked = machine or Machine.here()
    return _namespaces(asked, asked.trial())


def _namespaces(machine: Machine, tried: Trial) -> Finding:
    problem = tried.get(NAMESPACES) or tried.get(ENTER)
    if problem is None:
        how = "in a user namespace, without root" if _lacking(machine) else "as root"
        return Finding("namespaces", True, f"network namespaces work, {how}")
    why, fix = _why_no_namespaces(machine)
    return Finding("namespaces", False, f"{why} ({problem})", fix)


def _why_no_namespaces(machine: Machine) -> tuple[str, str]:
    """The cause, as far as the machine tells, and the command that removes it."""
    for name in ("ip", "nsenter"):
        if machine.find(name) is None:
            return f"the program `{name}` is missing", _install(machine, PROGRAMS[name][1])
    for kind in ("net", "mnt"):
        if machine.number(f"proc/sys/user/max_{kind}_namespaces") == 0:
            return (
                f"the kernel is set to make no {kind} namespaces",
                f"sudo sysctl -w user.max_{kind}_namespaces=1000",
            )
    lacking = _lacking(machine)
    if machine.uid == 0:
        if lacking:
            return f"root without {' and '.join(lacking)}, as in a container", CONTAINER_FIX
        return "a security profile (seccomp or AppArmor) forbids namespaces", CONTAINER_FIX
    if machine.number("proc/sys/user/max_user_namespaces") == 0:
        return "the kernel is set to make no user namespaces", "sudo sysctl -w user.max_user_namespaces=1000"
    if machine.number("proc/sys/kernel/unprivileged_userns_clone") == 0:
        return (
            "user namespaces are kept for root",
            "sudo sysctl -w kernel.unprivileged_userns_clone=1",
        )
    if machine.in_container():
        return "the container's security profile forbids user namespaces", CONTAINER_FIX
    if machine.number("proc/sys/kernel/apparmor_restrict_unprivileged_userns") == 1:
        return (
            "AppArmor takes the rights away that a user namespace gives",
            "sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0",
        )
    return "an ordinary user may not make namespaces here", 'sudo env "PATH=$PATH" bandwise session quick'


def _lacking(machine: Machine) -> list[str]:
    """Names of the capabilities that making namespaces takes and this process has not."""
    return [name for name, number in CAPABILITIES.items() if not machine.has_capability(number)]


def _programs(machine: Machine) -> list[Finding]:
    findings = []
    for name, (purpose, packages) in PROGRAMS.items():
        path = machine.find(name)
        if path is not None:
            findings.append(Finding(name, True, path))
        else:
            findings.append(Finding(name, False, f"not installed; it {purpose}", _install(machine, packages)))
    return findings


def _install(machine: Machine, packages: tuple[str, ...]) -> str:
    """The command that installs a package with the machine's own package manager; apt's where none is found."""
    commands = [f"sudo {command} {name}" for command, name in zip(INSTALLERS.values(), packages, strict=True)]
    available = (command for command, name in zip(commands, INSTALLERS, strict=True) if machine.find(name))
    return next(available, commands[0])


def _shaping(machine: Machine, tried: Trial) -> list[Finding]:
    """Bridge, veth and tbf of the kernel."""
    findings = []
    for step, module in MODULES.items():
        if step not in tried:
            findings.append(Finding(step, False, "not tried, for want of a namespace", _see(machine)))
        elif (problem := tried[step]) is not None:
            findings.append(Finding(step, False, problem, f"sudo modprobe {module}"))
        else:
            findings.append(Finding(step, True, "works"))
    return findings


def _see(machine: Machine) -> str:
    return _why_no_namespaces(machine)[1]


def _delay(machine: Machine, tried: Trial) -> Finding:
    if tried.get(NETEM, "") is None:
        return Finding("delay", True, "the kernel's netem", needed=False)
    if NETEM not in tried:
        return Finding("delay", False, "not tried, for want of a namespace", _see(machine), needed=False)
    detail = f"links cannot have one, since the kernel has no netem: {tried[NETEM]}"
    return Finding("delay", False, detail, "sudo modprobe sch_netem", needed=False)


def _compiler(machine: Machine) -> Finding:
    path = next(filter(None, map(machine.find, ("g++", "clang++", "c++"))), None)
    if path is not None and machine.python_header:
        return Finding("compiler", True, path, needed=False)
    missing = "no C++ compiler" if path is None else "no header files of this Python"
    fix = _install(machine, COMPILER_PACKAGES)
    return Finding(
        "compiler", False, f"{missing}: codecs run uncompiled, several times slower", fix, needed=False
    )


def _cores(machine: Machine, workers: int) -> Finding:
    enough = machine.cores >= workers
    detail = f"{machine.cores} for {workers} workers"
    if enough:
        return Finding("cores", True, detail, needed=False)
    return Finding(
        "cores",
        False,
        f"{detail}: computing takes {workers / machine.cores:.3g} times as long as on machines of their own",
        f"time at most {max(2, machine.cores)} workers here (`world_size` in the session's file)",
        needed=False,
    )


# What disturbs timing


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
    this_process = (machine.read("proc/self/stat") or "").partition(" ")[0]
    busy = []
    for path in sorted((machine.root / "proc").glob("[0-9]*/stat")):
        text = machine.read(str(path.relative_to(machine.root))) or ""
        name, _, rest = text.partition("(")[2].rpartition(")")  # a name may hold brackets
        if path.parent.name != this_process and rest.split()[:1] == ["R"]:
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
    numbers: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        numbers |= set(range(int(first), int(last or first) + 1))
    return numbers


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
    group = next((line.removeprefix("0::").strip("/") for line in lines if line.startswith("0::")), None)
    quotas = []
    for folder in [] if group is None else [Path(group), *Path(group).parents]:
        quota, _, period = (machine.read(f"sys/fs/cgroup/{folder}/cpu.max") or "").strip().partition(" ")
        if quota.isdigit() and period.isdigit():
            quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


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
    governors = {
        path.read_text().strip() for path in sorted(folder.glob("cpu[0-9]*/cpufreq/scaling_governor"))
    }
    if not governors:
        return Finding(
            "governor", True, "not told by this machine, as is usual in a virtual one", needed=False
        )
    if governors == {"performance"}:
        return Finding("governor", True, "performance", needed=False)
    detail = f"{', '.join(sorted(governors))}: clocks follow the load"
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


if __name__ == "__main__":
    sys.exit(main())
