"""What stands between this machine and an emulated cluster, or between it and believable seconds; a command for each.

`checks` looks at everything (what disturbs timing is in `disturbances`), `obstacle` names the first thing without
which no cluster can be made, `namespaces` is about namespaces alone. Whether something works is tried, in a throw-away
namespace; files of the kernel are read only to say why it does not. A machine is examined through
`suite.links.machine.Machine`.
"""

from __future__ import annotations

from suite.links import delay_line, trial
from suite.links.disturbances import disturbances
from suite.links.finding import Finding
from suite.links.machine import Machine, Trial
from suite.links.namespaces import CAP_NET_ADMIN, CAP_NET_RAW, CAP_SYS_ADMIN

CAPABILITIES = {"CAP_SYS_ADMIN": CAP_SYS_ADMIN, "CAP_NET_ADMIN": CAP_NET_ADMIN, "CAP_NET_RAW": CAP_NET_RAW}
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
MODULES = {trial.BRIDGE: "bridge", trial.VETH: "veth", trial.TBF: "sch_tbf"}

RECEIVE_BUFFER_BYTES = 4 << 20  # of the delay line: tens of milliseconds at its highest rate


def checks(workers: int = 4, machine: Machine | None = None) -> list[Finding]:
    """Look at everything that a cluster of `workers` needs and that timing needs; takes about half a second."""
    asked = machine or Machine.here()
    tried = asked.trial()
    return [
        *_programs(asked),
        _namespaces(asked, tried),
        *_shaping(asked, tried),
        _delay(asked, tried),
        _receive_buffers(asked, tried),
        _compiler(asked),
        _cores(asked, workers),
        *disturbances(asked),
    ]


def obstacle(machine: Machine | None = None) -> Finding | None:
    """The first thing without which no cluster can be made here, or None."""
    asked = machine or Machine.here()
    tried = asked.trial()
    needed = [*_programs(asked), _namespaces(asked, tried), *_shaping(asked, tried)]
    return next((finding for finding in needed if not finding.ok), None)


def namespaces(machine: Machine | None = None) -> Finding:
    """Whether network namespaces can be made here, and if not, why and what helps."""
    asked = machine or Machine.here()
    return _namespaces(asked, asked.trial())


def _namespaces(machine: Machine, tried: Trial) -> Finding:
    said = tried.get(trial.NAMESPACES) or tried.get(trial.ENTER)
    if said is None:
        how = "in a user namespace, without root" if _lacking(machine) else "as root"
        return Finding("namespaces", True, f"network namespaces work, {how}")
    why, fix = _why_no_namespaces(machine)
    return Finding("namespaces", False, f"{why} ({said})", fix)


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
    return "an ordinary user may not make namespaces here", 'sudo env "PATH=$PATH" bandwise cluster up'


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
    found = (command for command, name in zip(commands, INSTALLERS, strict=True) if machine.find(name))
    return next(found, commands[0])


def _shaping(machine: Machine, tried: Trial) -> list[Finding]:
    """Bridge, veth and tbf of the kernel."""
    findings = []
    for step, module in MODULES.items():
        if step not in tried:
            findings.append(Finding(step, False, "not tried, for want of a namespace", _see(machine)))
        elif (said := tried[step]) is not None:
            findings.append(Finding(step, False, said, f"sudo modprobe {module}"))
        else:
            findings.append(Finding(step, True, "works"))
    return findings


def _see(machine: Machine) -> str:
    return _why_no_namespaces(machine)[1]


def _delay(machine: Machine, tried: Trial) -> Finding:
    if tried.get(trial.NETEM, "") is None:
        return Finding("delay", True, "the kernel's netem", needed=False)
    if tried.get(trial.PACKET, "") is None:
        rate = delay_line.MAX_RATE_BPS / 1e9
        detail = f"the kernel has no netem: by the delay line in user space, for links up to {rate:g} Gbit/s"
        return Finding("delay", True, detail, needed=False)
    if trial.VETH not in tried:
        return Finding("delay", False, "not tried, for want of a namespace", _see(machine), needed=False)
    said = tried.get(trial.PACKET) or "no interface to try it on"
    return Finding(
        "delay", False, f"neither netem nor a packet socket: {said}", "sudo modprobe sch_netem", needed=False
    )


def _receive_buffers(machine: Machine, tried: Trial) -> Finding:
    """Only root may pass over the kernel's limit; the delay line needs room while it waits for a core."""
    name = "receive buffers"
    most = machine.number("proc/sys/net/core/rmem_max")
    if machine.uid == 0 or most is None or most >= RECEIVE_BUFFER_BYTES or tried.get(trial.NETEM, "") is None:
        return Finding(name, True, "large enough", needed=False)
    detail = (
        f"net.core.rmem_max is {most} bytes: the delay line may lose frames on fast links, and counts them"
    )
    return Finding(
        name, False, detail, f"sudo sysctl -w net.core.rmem_max={2 * RECEIVE_BUFFER_BYTES}", needed=False
    )


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
        f"bandwise cluster up --workers {max(2, machine.cores)}",
        needed=False,
    )
