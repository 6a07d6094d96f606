"""What stands between this machine and an emulated cluster, or between it and believable seconds; a command for each.

`checks` looks at everything, `obstacle` names the first thing without which no cluster can be made. Whether something works is
tried, in a throw-away namespace; files of the kernel are read only to say why it does not. A machine is examined through
`Machine`, so that a made-up one can be examined too. What a machine does not tell, as a virtual one does not tell its clocks, is
said to be so and counts as no problem: nobody could mend it from inside.

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
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from suite.links.cluster import (
    CAP_NET_ADMIN,
    CAP_SYS_ADMIN,
    CHECKOUT,
    OWN_NETWORK,
    NamespaceError,
    enter_new_network,
    entry,
)
from suite.links.process import CommandError, find_program, program_environment, run_program


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
TRIAL_STEPS: Final = (NAMESPACES, ENTER, BRIDGE, VETH, TBF, NETEM)
TRIAL_COMMANDS: Final = {
    BRIDGE: "ip link add name br0 type bridge",
    VETH: "ip link add name v0 type veth peer name v1",
    TBF: "tc qdisc add dev v0 root tbf rate 100mbit burst 64kb limit 1mb",
    NETEM: "tc qdisc add dev v1 root netem delay 5ms",
}
TRIAL_MODULE: Final = "suite.links.doctor"
TRIAL_TIMEOUT_S: Final = 60.0

Trial = dict[str, str | None]
"""Step of `TRIAL_STEPS` -> None where it worked, else what the system said; missing where not reached."""


def try_all() -> Trial:
    """Try all steps in this process, which stays in the new namespace."""
    try:
        enter_new_network()
    except NamespaceError as error:
        return {NAMESPACES: str(error)}
    tried = {NAMESPACES: _complaint("ip", "link", "set", "lo", "up")}  # rights in it, not only the namespace
    if tried[NAMESPACES] is not None:
        return tried
    tried[ENTER] = _complaint(*entry(OWN_NETWORK), "ip", "link", "show", "dev", "lo")
    for step, command in TRIAL_COMMANDS.items():
        tried[step] = _complaint(*command.split())
    return tried


def _complaint(*command: str) -> str | None:
    """What a command that fails says; None where it works."""
    try:
        run_program(command)
    except CommandError as error:
        return str(error)
    return None


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


# The machine at hand


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

    def read(self, path: str) -> str:
        """Text of a file below `root`, empty where it cannot be read."""
        try:
            return (self.root / path).read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            return ""

    def number(self, path: str) -> int | None:
        """The number that a file of the kernel holds, or None."""
        text = self.read(path)
        return int(text) if text.lstrip("-").isdigit() else None

    def each(self, pattern: str) -> Iterator[str]:
        """Texts of all files of that pattern below `root`, by name."""
        return (self.read(str(path.relative_to(self.root))) for path in sorted(self.root.glob(pattern)))

    def status(self, key: str) -> str | None:
        """A field of ``/proc/self/status``, such as ``CapEff``."""
        fields = (line.partition(":") for line in self.read("proc/self/status").splitlines())
        return next((value.strip() for name, _, value in fields if name == key), None)

    def lacking(self) -> list[str]:
        """Capabilities that making namespaces takes and this process has not; none where the kernel does not tell."""
        held = self.status("CapEff")
        needed = {"CAP_SYS_ADMIN": CAP_SYS_ADMIN, "CAP_NET_ADMIN": CAP_NET_ADMIN}
        return [name for name, number in needed.items() if held and not int(held, 16) >> number & 1]

    def in_container(self) -> bool:
        """Whether this looks like the inside of a container."""
        marked = (self.root / ".dockerenv").exists() or (self.root / "run/.containerenv").exists()
        groups = self.read("proc/1/cgroup")
        return marked or any(word in groups for word in ("docker", "kubepods", "containerd", "lxc"))


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
    costs = {"delay": _delay(asked, tried), "compiler": _compiler(asked), "cores": _cores(asked, workers)}
    costs |= {name: look(asked) for name, look in DISTURBANCES.items()}
    return [
        *_needed(asked, tried),
        *(Finding(name, not fix, detail, fix, needed=False) for name, (detail, fix) in costs.items()),
    ]


def obstacle(machine: Machine | None = None) -> Finding | None:
    """The first thing without which no cluster can be made here.

    Args:
        machine: The machine to examine; default this one.

    Returns:
        The finding, None where nothing is in the way.
    """
    asked = machine or Machine.here()
    return next((finding for finding in _needed(asked, asked.trial()) if not finding.ok), None)


# What an emulated cluster needs


CONTAINER_FIX: Final = "docker run --privileged ..."
"""AppArmor's and seccomp's profiles of a container forbid more than the two capabilities; this lifts all."""
# program -> (what for, its package for apt, dnf, apk, pacman)
PROGRAMS: Final = {
    "ip": ("makes interfaces", ("iproute2", "iproute", "iproute2", "iproute2")),
    "tc": ("shapes links", ("iproute2", "iproute-tc", "iproute2-tc", "iproute2")),
    "nsenter": ("runs a program on a worker", ("util-linux", "util-linux", "util-linux-misc", "util-linux")),
}
COMPILER_PACKAGES: Final = ("g++ python3-dev", "gcc-c++ python3-devel", "g++ python3-dev", "gcc python")
INSTALLERS: Final = {
    "apt-get": "apt-get install",
    "dnf": "dnf install",
    "apk": "apk add",
    "pacman": "pacman -S",
}
MODULES: Final = {BRIDGE: "bridge", VETH: "veth", TBF: "sch_tbf"}
UNTRIED: Final = "not tried, for want of a namespace"


def _needed(machine: Machine, tried: Trial) -> Iterator[Finding]:
    """The programs, namespaces, and of the kernel bridge, veth and tbf."""
    for name, (purpose, packages) in PROGRAMS.items():
        path = machine.find(name)
        missing = f"not installed; it {purpose}"
        yield Finding(name, bool(path), path or missing, "" if path else _install(machine, packages))
    problem = tried.get(NAMESPACES) or tried.get(ENTER)
    if problem is None:
        how = "in a user namespace, without root" if machine.lacking() else "as root"
        yield Finding(NAMESPACES, True, f"network namespaces work, {how}")
    else:
        why, fix = _why_no_namespaces(machine)
        yield Finding(NAMESPACES, False, f"{why} ({problem})", fix)
    for step, module in MODULES.items():
        if step not in tried:
            yield Finding(step, False, UNTRIED, _why_no_namespaces(machine)[1])
        else:
            said = tried[step]
            yield Finding(step, said is None, said or "works", f"sudo modprobe {module}" if said else "")


def _why_no_namespaces(machine: Machine) -> tuple[str, str]:
    """The cause, as far as the machine tells, and the command that removes it."""
    for name in ("ip", "nsenter"):
        if machine.find(name) is None:
            return f"the program `{name}` is missing", _install(machine, PROGRAMS[name][1])
    for kind in ("net", "mnt"):
        if machine.number(f"proc/sys/user/max_{kind}_namespaces") == 0:
            fix = f"sudo sysctl -w user.max_{kind}_namespaces=1000"
            return f"the kernel is set to make no {kind} namespaces", fix
    if machine.uid == 0:
        if lacking := machine.lacking():
            return f"root without {' and '.join(lacking)}, as in a container", CONTAINER_FIX
        return "a security profile (seccomp or AppArmor) forbids namespaces", CONTAINER_FIX
    if machine.number("proc/sys/user/max_user_namespaces") == 0:
        return "the kernel is set to make no user namespaces", "sudo sysctl -w user.max_user_namespaces=1000"
    if machine.number("proc/sys/kernel/unprivileged_userns_clone") == 0:
        return "user namespaces are kept for root", "sudo sysctl -w kernel.unprivileged_userns_clone=1"
    if machine.in_container():
        return "the container's security profile forbids user namespaces", CONTAINER_FIX
    if machine.number("proc/sys/kernel/apparmor_restrict_unprivileged_userns") == 1:
        fix = "sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"
        return "AppArmor takes the rights away that a user namespace gives", fix
    return "an ordinary user may not make namespaces here", 'sudo env "PATH=$PATH" bandwise session quick'


def _install(machine: Machine, packages: tuple[str, ...]) -> str:
    """The command that installs a package with the machine's own package manager; apt's where none is found."""
    commands = [f"sudo {command} {name}" for command, name in zip(INSTALLERS.values(), packages, strict=True)]
    available = (command for command, name in zip(commands, INSTALLERS, strict=True) if machine.find(name))
    return next(available, commands[0])


# What costs speed, or belief in what is measured: for each what was found, and what helps, empty where all is well


Found = tuple[str, str]
QUIET_LOAD_PER_CORE: Final = 0.25
MOST_STEAL: Final = 0.01
CPU: Final = "sys/devices/system/cpu"
THP: Final = "sys/kernel/mm/transparent_hugepage/enabled"
CLOCK: Final = "sys/devices/system/clocksource/clocksource0"
FAST_CLOCKS: Final = frozenset({"tsc", "kvm-clock", "arch_sys_counter", "hyperv_clocksource_tsc_page"})
"""Clock sources that are read without a system call."""
SHOWN: Final = 4
UNTOLD: Final = "not told by this machine"
UNTOLD_AS_USUAL: Final = f"{UNTOLD}, as is usual in a virtual one"
LOOK: Final = "ps -eo pcpu,etime,args --sort=-pcpu | head"


def _delay(machine: Machine, tried: Trial) -> Found:
    if NETEM not in tried:
        return UNTRIED, _why_no_namespaces(machine)[1]
    if tried[NETEM] is None:
        return "the kernel's netem", ""
    return (
        f"links cannot have one, since the kernel has no netem: {tried[NETEM]}",
        "sudo modprobe sch_netem",
    )


def _compiler(machine: Machine) -> Found:
    path = next(filter(None, map(machine.find, ("g++", "clang++", "c++"))), None)
    if path is not None and machine.python_header:
        return path, ""
    missing = "no C++ compiler" if path is None else "no header files of this Python"
    return f"{missing}: codecs run uncompiled, several times slower", _install(machine, COMPILER_PACKAGES)


def _cores(machine: Machine, workers: int) -> Found:
    detail = f"{machine.cores} for {workers} workers"
    if machine.cores >= workers:
        return detail, ""
    return (
        f"{detail}: computing takes {workers / machine.cores:.3g} times as long as on machines of their own",
        f"time at most {max(2, machine.cores)} workers here (`world_size` in the session's file)",
    )


def _load(machine: Machine) -> Found:
    words = machine.read("proc/loadavg").split()
    if not words:
        return UNTOLD, ""
    detail = f"load average {words[0]} on {machine.cores} cores"
    if float(words[0]) <= QUIET_LOAD_PER_CORE * machine.cores:
        return detail, ""
    return f"{detail}: others are computing", LOOK


def _others(machine: Machine) -> Found:
    """Processes that run or wait for a core at this very moment, this one and its threads aside."""
    this_process = machine.read("proc/self/stat").partition(" ")[0]
    busy = []
    for text in machine.each("proc/[0-9]*/stat"):
        pid = text.partition(" ")[0]
        name, _, rest = text.partition("(")[2].rpartition(")")  # a name may hold brackets
        if pid != this_process and rest.split()[:1] == ["R"]:
            busy.append(f"{name} ({pid})")
    if not busy:
        return "no other one computes at this moment", ""
    more = f" and {len(busy) - SHOWN} more" if len(busy) > SHOWN else ""
    return f"computing at this moment: {', '.join(busy[:SHOWN])}{more}", LOOK


def _governor(machine: Machine) -> Found:
    governors = set(machine.each(f"{CPU}/cpu[0-9]*/cpufreq/scaling_governor"))
    if governors <= {"performance"}:
        return "performance" if governors else UNTOLD_AS_USUAL, ""
    return (
        f"{', '.join(sorted(governors))}: clocks follow the load",
        "sudo cpupower frequency-set -g performance",
    )


def _turbo(machine: Machine) -> Found:
    """Clocks above the nominal one last as long as heat and neighbours allow."""
    for path, off in ((f"{CPU}/intel_pstate/no_turbo", 1), (f"{CPU}/cpufreq/boost", 0)):
        state = machine.number(path)
        if state == off:
            return "off", ""
        if state is not None:
            detail = "on: clocks rise and fall with heat and with what other cores do"
            return detail, f"echo {off} | sudo tee /{path}"
    return UNTOLD_AS_USUAL, ""


def _throttling(machine: Machine) -> Found:
    counts = list(map(int, machine.each(f"{CPU}/cpu[0-9]*/thermal_throttle/core_throttle_count")))
    if not counts:
        return UNTOLD_AS_USUAL, ""
    if not max(counts):
        return "no core was slowed down for heat since boot", ""
    return (
        f"a core was slowed down for heat {max(counts)} times since boot",
        f"clean or better the cooling, or cap the clock below it: sudo cpupower frequency-set -u 2GHz; then watch "
        f"/{CPU}/cpu*/thermal_throttle",
    )


def _siblings(machine: Machine) -> Found:
    """Hardware threads of one core share its units: a worker on each is no worker a core."""
    allowed = _listed(machine.status("Cpus_allowed_list") or "")
    shared = set()
    for text in machine.each(f"{CPU}/cpu[0-9]*/topology/thread_siblings_list"):
        threads = _listed(text) & (allowed or _listed(text))
        if len(threads) > 1:
            shared.add(tuple(sorted(threads)))
    if not shared:
        return "no two of the cores that may be used are threads of one", ""
    cores = "; ".join(" and ".join(map(str, threads)) for threads in sorted(shared)[:SHOWN])
    more = f"; {len(shared) - SHOWN} more" if len(shared) > SHOWN else ""
    detail = f"these are threads of one core: {cores}{more}"
    if machine.read(f"{CPU}/smt/control") == "on":
        return detail, f"echo off | sudo tee /{CPU}/smt/control"
    first = ",".join(str(threads[0]) for threads in sorted(shared))
    return detail, f"taskset -c {first} bandwise session ..."


def _listed(text: str) -> set[int]:
    """The numbers of a list as the kernel writes it: ``0-2,7``."""
    numbers: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        numbers |= set(range(int(first), int(last or first) + 1))
    return numbers


def _quota(machine: Machine) -> Found:
    """A quota of seconds a period stops all workers at once when it is used up; one that spans all cores never is.

    It is the least of ``cpu.max`` from this process's control group up to the root, or that of the older hierarchy.
    """
    quotas = []
    for line in machine.read("proc/self/cgroup").splitlines():
        _, controllers, name = line.split(":", 2)
        group = Path(name.strip("/"))
        if not controllers:
            limits = [
                machine.read(f"sys/fs/cgroup/{folder}/cpu.max").split() for folder in [group, *group.parents]
            ]
        elif "cpu" in controllers.split(","):
            of_cpu = (f"sys/fs/cgroup/{top}/{group}/cpu.cfs" for top in ("cpu", "cpu,cpuacct"))
            limits = [
                [machine.read(f"{start}_quota_us"), machine.read(f"{start}_period_us")] for start in of_cpu
            ]
        else:
            limits = []
        quotas += [int(limit[0]) / int(limit[1]) for limit in limits if limit and limit[0].isdigit()]
    if not quotas:
        return "none", ""
    cores = min(quotas)
    detail = f"{cores:.3g} cores' worth of time for {machine.cores} cores"
    if cores >= machine.cores:
        return detail, ""
    return (
        f"{detail}: all workers stand still when it is used up",
        "lift it where it was set (docker update --cpus, the pod's limits.cpu, systemctl set-property CPUQuota=), or use "
        f"fewer cores: taskset -c 0-{max(0, int(cores) - 1)}",
    )


def _steal(machine: Machine) -> Found:
    """The share of time since boot in which this virtual machine was ready to run and its host ran others."""
    words = machine.read("proc/stat").partition("\n")[0].split()[1:]
    if len(words) < 8:
        return UNTOLD, ""
    ticks = [int(word) for word in words[:8]]  # guest time is part of user time
    share = ticks[7] / max(sum(ticks), 1)
    detail = f"{share:.2%} of the time since boot went to other virtual machines"
    return detail, "measure on a machine with cores of its own" if share > MOST_STEAL else ""


def _swap(machine: Machine) -> Found:
    lines = (line.split() for line in machine.read("proc/meminfo").splitlines())
    kib = {line[0].rstrip(":"): int(line[1]) for line in lines if len(line) >= 2 and line[1].isdigit()}
    used = kib.get("SwapTotal", 0) - kib.get("SwapFree", 0)
    return (
        (f"{used} KiB in use: memory may be waited for", "sudo swapoff -a")
        if used > 0
        else ("none in use", "")
    )


def _huge_pages(machine: Machine) -> Found:
    """With `always` the kernel looks for large pages at each large allocation, and moves memory about behind."""
    text = machine.read(THP)
    chosen = text.partition("[")[2].partition("]")[0]
    if chosen != "always":
        return chosen if text else UNTOLD, ""
    detail = "transparent ones always: large buffers come fast or slowly, as memory happens to lie"
    return detail, f"echo madvise | sudo tee /{THP}"


def _balancing(machine: Machine) -> Found:
    """Automatic NUMA balancing takes pages away for a moment to see who uses them; it needs two nodes to matter."""
    nodes = len(list((machine.root / "sys/devices/system/node").glob("node[0-9]*")))
    if nodes < 2 or machine.number("proc/sys/kernel/numa_balancing") in {0, None}:
        return "off" if nodes > 1 else "one memory node", ""
    detail = f"on, with {nodes} memory nodes: pages move while they are used"
    return detail, "sudo sysctl -w kernel.numa_balancing=0"


def _clock(machine: Machine) -> Found:
    current = machine.read(f"{CLOCK}/current_clocksource")
    if not current or current in FAST_CLOCKS:
        return current or UNTOLD, ""
    better = sorted(FAST_CLOCKS & set(machine.read(f"{CLOCK}/available_clocksource").split()))
    fix = f"echo {better[0]} | sudo tee /{CLOCK}/current_clocksource" if better else "boot with tsc=reliable"
    return f"{current}: reading it takes a system call, about a microsecond", fix


DISTURBANCES: Final[Mapping[str, Callable[[Machine], Found]]] = {
    "load": _load,
    "processes": _others,
    "governor": _governor,
    "turbo": _turbo,
    "throttling": _throttling,
    "SMT": _siblings,
    "CPU quota": _quota,
    "steal": _steal,
    "swap": _swap,
    "huge pages": _huge_pages,
    "NUMA balancing": _balancing,
    "clock source": _clock,
}
"""What makes seconds differ from one moment to the next; files alone are read."""


if __name__ == "__main__":
    sys.stdout.write(json.dumps(try_all()) + "\n")
