"""What stands between this machine and an emulated cluster, or between it and believable seconds; a command for each.

`checks` looks at everything, `obstacle` names the first thing without which no cluster can be made. Whether something works is
tried, in a throw-away namespace; files of the kernel are read only to say why it does not.

    python -m suite.links.doctor

is the trial: it writes one JSON object, for each step of `TRIAL` null where it worked, else what the system said; a step
that was not reached is left out. All that was made ends with the process. The trial needs the standard library only.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from suite.links.cluster import (
    CHECKOUT,
    OWN_NETWORK,
    CommandError,
    NamespaceError,
    enter_new_network,
    entry,
    find_program,
    program_environment,
    run_program,
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


NAMESPACES, DELAY = "namespaces", "delay"
TRIAL: Final = {
    "bridge": "ip link add name br0 type bridge",
    "veth": "ip link add name v0 type veth peer name v1",
    "tbf": "tc qdisc add dev v0 root tbf rate 100mbit burst 64kb limit 1mb",
    DELAY: "tc qdisc add dev v1 root netem delay 5ms",
}
MODULES: Final = {"bridge": "bridge", "veth": "veth", "tbf": "sch_tbf", DELAY: "sch_netem"}
TRIAL_TIMEOUT_S: Final = 60.0

Trial = dict[str, str | None]
"""`NAMESPACES` and steps of `TRIAL` -> None where it worked, else what the system said; missing where not reached."""


def try_all() -> Trial:
    """Try all steps in this process, which stays in the new namespace."""
    try:
        enter_new_network()
        run_program(["ip", "link", "set", "lo", "up"])  # rights in it, not only the namespace
        run_program([*entry(OWN_NETWORK), *["ip", "link", "show", "dev", "lo"]])
    except (NamespaceError, CommandError) as error:
        return {NAMESPACES: str(error)}
    tried: Trial = {NAMESPACES: None}
    for step, command in TRIAL.items():
        try:
            run_program(command.split())
            tried[step] = None
        except CommandError as error:
            tried[step] = str(error)
    return tried


def run_trial() -> Trial:
    """Try out namespaces and shaping. Starts one process; nothing of it is left."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", "suite.links.doctor"],
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


def checks(workers: int = 4) -> list[Finding]:
    """Look at everything that a cluster needs and that timing needs.

    Args:
        workers: How many workers the cluster is to have.

    Returns:
        A finding for each thing looked at.
    """
    tried = run_trial()
    return [*needed(tried), delay(tried), _compiler(), _cores(workers), _load(), _torch(), _gpu(), _slurm()]


def obstacle() -> Finding | None:
    """The first thing without which no cluster can be made here, None where nothing is in the way."""
    return next((finding for finding in needed(run_trial()) if not finding.ok), None)


# What an emulated cluster needs


PROGRAMS: Final = {"ip": "iproute2", "tc": "iproute2", "nsenter": "util-linux"}
"""Program -> the package it comes with."""
CONTAINER_FIX: Final = "docker run --privileged ..."
"""AppArmor's and seccomp's profiles of a container forbid more than two capabilities; this lifts all."""
KERNEL: Final = (
    ("user/max_net_namespaces", "0", "user.max_net_namespaces=1000"),
    ("user/max_user_namespaces", "0", "user.max_user_namespaces=1000"),
    ("kernel/unprivileged_userns_clone", "0", "kernel.unprivileged_userns_clone=1"),
    ("kernel/apparmor_restrict_unprivileged_userns", "1", "kernel.apparmor_restrict_unprivileged_userns=0"),
)
"""File below /proc/sys, the value with which the kernel refuses namespaces, what to set instead."""


def needed(tried: Trial, root: Path = Path("/"), uid: int | None = None) -> Iterator[Finding]:
    """The programs, namespaces, and of the kernel bridge, veth and tbf.

    Args:
        tried: What `try_all` found.
        root: Below it lie ``proc`` and the marker files of containers.
        uid: Of who asks; None: of this process.

    Yields:
        A finding each.
    """
    if missing := [name for name in PROGRAMS if find_program(name) is None]:
        packages = " ".join(dict.fromkeys(PROGRAMS[name] for name in missing))
        yield Finding(
            "programs", False, f"{', '.join(missing)} not installed", f"sudo apt-get install {packages}"
        )
    else:
        yield Finding("programs", True, ", ".join(PROGRAMS))
    if (said := tried.get(NAMESPACES)) is not None:
        yield Finding(NAMESPACES, False, f"no network namespaces: {said}", _namespaces_fix(root, uid))
        return
    yield Finding(NAMESPACES, True, "network namespaces work")
    for step in list(TRIAL)[:-1]:
        yield _of_the_kernel(step, tried)


def delay(tried: Trial) -> Finding:
    """Whether links can have a delay."""
    if NAMESPACES in tried and tried[NAMESPACES] is None:
        return replace(_of_the_kernel(DELAY, tried), needed=False)
    return Finding(DELAY, False, "not tried, for want of a namespace", "see namespaces", needed=False)


def _of_the_kernel(step: str, tried: Trial) -> Finding:
    said = tried.get(step)
    return Finding(step, said is None, said or "works", f"sudo modprobe {MODULES[step]}" if said else "")


def _namespaces_fix(root: Path, uid: int | None) -> str:
    """The command that helps, as far as the machine tells."""
    groups = _read(root / "proc/1/cgroup")
    contained = (root / ".dockerenv").exists() or (root / "run/.containerenv").exists()
    if contained or any(word in groups for word in ("docker", "kubepods", "containerd", "lxc")):
        return CONTAINER_FIX
    for file, refusing, setting in KERNEL:
        if _read(root / "proc/sys" / file) == refusing:
            return f"sudo sysctl -w {setting}"
    is_root = (os.geteuid() if uid is None else uid) == 0
    return CONTAINER_FIX if is_root else 'sudo env "PATH=$PATH" bandwise session quick'


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


# What costs speed, or belief in what is measured


QUIET_LOAD_PER_CORE: Final = 0.25


def _compiler() -> Finding:
    path = next(filter(None, map(find_program, ("g++", "clang++", "c++"))), None)
    header = Path(sysconfig.get_path("include"), "Python.h").is_file()
    if path is not None and header:
        return Finding("compiler", True, path, needed=False)
    missing = "no C++ compiler" if path is None else "no header files of this Python"
    fix = "sudo apt-get install g++ python3-dev"
    return Finding(
        "compiler", False, f"{missing}: compressors run uncompiled, several times slower", fix, False
    )


def _cores(workers: int) -> Finding:
    cores = len(os.sched_getaffinity(0))
    fix = f"time at most {max(2, cores)} workers here (`world_size` in the session's file)"
    detail = f"{cores} for {workers} workers of a thread each"
    return Finding("cores", cores >= workers, detail, "" if cores >= workers else fix, needed=False)


def _load() -> Finding:
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    quiet = load <= QUIET_LOAD_PER_CORE * cores
    detail = f"load average {load:.2f} on {cores} cores" + ("" if quiet else ": others are computing")
    return Finding(
        "load", quiet, detail, "" if quiet else "ps -eo pcpu,etime,args --sort=-pcpu | head", False
    )


def _torch() -> Finding:
    import torch
    import torch.distributed as dist

    works = dist.is_available() and dist.is_gloo_available()
    detail = f"{torch.__version__}, {'with' if works else 'without'} gloo"
    return Finding("torch", works, detail, "" if works else "pip install torch", needed=False)


def _gpu() -> Finding:
    import torch

    if torch.cuda.is_available():
        return Finding("GPU", True, torch.cuda.get_device_name(), needed=False)
    if find_program("nvidia-smi") is None:
        return Finding("GPU", True, "none here; nothing of the emulated cluster needs one", needed=False)
    fix = "install the torch of your CUDA version (https://pytorch.org/get-started)"
    return Finding("GPU", False, "there is a driver, but this torch sees no GPU", fix, needed=False)


def _slurm() -> Finding:
    if find_program("sbatch") is None:
        return Finding("Slurm", True, "none here; `--on slurm` needs a login node of a cluster", needed=False)
    try:
        nodes = run_program(["sinfo", "--noheader", "--Node", "--format=%N"]).split()
    except CommandError as error:
        return Finding(
            "Slurm", False, str(error), "ask who runs the cluster: slurmctld is away", needed=False
        )
    return Finding("Slurm", True, f"{len(set(nodes))} nodes", needed=False)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(try_all()) + "\n")
