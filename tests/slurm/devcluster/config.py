"""What a development cluster is made of, as data: programs, files, nodes, limits, and the daemons that follow.

Nothing here starts a process; of files only the two that describe the cluster are read and written. ``cluster.json`` is
written once, by who brings the cluster up: its configuration and what to start. ``daemons.json`` is written by the keeper: who
runs, and how what has ended ended. Both are replaced whole.

A node says where it listens (``address``) and what stands before its command (``prefix``), so that it may live behind a link,
in a network namespace of its own, while the rest stays as it is.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from suite.links.cluster import find_program
from tests.processes import Process

# Programs of the system


SLURM = ("munged", "slurmctld", "slurmd", "sbatch", "sinfo")
SLURM_PACKAGES = "slurm-wlm munge"
CLIENTS = (
    "sbatch", "srun", "salloc", "sattach", "squeue", "scontrol", "scancel", "sinfo", "sstat", "sprio",
)  # fmt: skip


class DevClusterError(RuntimeError):
    """The cluster cannot be brought up, used or taken down; the message says why and what to do."""


def programs() -> dict[str, str]:
    """Name -> absolute path of what a cluster starts. Raises DevClusterError with the packages to install."""
    paths = {name: path for name in SLURM if (path := find_program(name)) is not None}
    if missing := [name for name in SLURM if name not in paths]:
        raise DevClusterError(
            f"{', '.join(missing)} not found: install Slurm and munge (`sudo make system`, or `apt-get install {SLURM_PACKAGES}`)"
        )
    return paths


def installed_clients() -> dict[str, str]:
    """Name -> absolute path of the clients that are installed."""
    return {name: path for name in CLIENTS if (path := find_program(name)) is not None}


# The state folder


MARKER = "bandwise-devcluster-1"
"""Stands in ``cluster.json``: a folder without it is never removed."""


class Layout:
    """Where things lie below the state folder, whether it exists or not."""

    def __init__(self, state_dir: Path) -> None:
        self.state_dir = state_dir
        self.munge_dir = state_dir / "munge"
        self.munge_key = self.munge_dir / "key"
        """The secret by which daemons and clients know each other."""
        self.munge_socket = self.munge_dir / "socket"
        self.log_dir = state_dir / "log"
        self.spool_dir = state_dir / "spool"
        """A folder a node, for ``slurmd`` and its steps."""
        self.save_dir = state_dir / "save"
        """What ``slurmctld`` would need after a restart."""
        self.clients_dir = state_dir / "bin"
        """Slurm's clients as they are to be called from outside the links; only with links."""
        self.slurm_conf = state_dir / "slurm.conf"
        self.cluster_json = state_dir / "cluster.json"
        """Configuration and daemons, as values."""
        self.daemons_json = state_dir / "daemons.json"
        """The `Record`."""

    def plan(self) -> dict[str, Any] | None:
        """What ``cluster.json`` says; None where the folder is none of ours."""
        plan = read_json(self.cluster_json)
        return plan if plan is not None and plan.get("marker") == MARKER else None


def read_json(path: Path) -> dict[str, Any] | None:
    """What a file holds, None where it holds no JSON object or does not exist."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, json.JSONDecodeError):
        return None
    return values if isinstance(values, dict) else None


def write_json(path: Path, values: dict[str, Any]) -> None:
    """Replace a file whole."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    temporary.write_text(json.dumps(values, indent=1), encoding="utf-8")
    temporary.replace(path)


@dataclass
class Record:
    """Who runs: the keeper, what it started by name, exit codes of what has ended (negative: the signal's number)."""

    keeper: Process
    started: dict[str, Process] = field(default_factory=dict)
    exited: dict[str, int] = field(default_factory=dict)

    def write(self, layout: Layout) -> None:
        """Replace ``daemons.json``."""
        write_json(layout.daemons_json, asdict(self))

    @classmethod
    def read(cls, layout: Layout) -> Record | None:
        """The record in the folder; None where no keeper has written any."""
        values = read_json(layout.daemons_json)
        if values is None:
            return None
        started = {name: Process(**process) for name, process in values["started"].items()}
        return cls(Process(**values["keeper"]), started, values["exited"])


# Settings


CLUSTER_NAME = "bandwise"
DEFAULT_PARTITION = "debug"


@dataclass(frozen=True)
class Node:
    """Where a daemon listens, and what stands before its command: ``address:port``, ``prefix + command``."""

    name: str
    port: int
    address: str = "127.0.0.1"
    prefix: tuple[str, ...] = ()


@dataclass(frozen=True)
class ClusterConfig:
    """A cluster in one machine. Times in seconds are short, so that losing a node or a job takes seconds.

    controller: of slurmctld. cpus_per_node may exceed what the machine has: nodes are logical, and several may
    share a core. memory_mib: of a node; a job that uses more than it asked for is killed, as seen every memory_poll_s.
    A node is given up slurmd_timeout_s after its last word, as soon as a ping has waited in vain.
    """

    nodes: tuple[Node, ...]
    controller: Node
    hostname: str
    user: str
    cpus_per_node: int = 1
    memory_mib: int = 1024
    memory_poll_s: int = 2
    max_array_size: int = 1001
    slurmd_timeout_s: int = 10


@dataclass(frozen=True)
class Daemon:
    """A program that the keeper starts.

    Once it can be used, the path ``ready`` exists ("" = at once).
    """

    name: str
    argv: tuple[str, ...]
    ready: str = ""


def slurm_conf(config: ClusterConfig, layout: Layout) -> str:
    """Text of slurm.conf: no cgroups, several ``slurmd`` on one host."""
    settings: dict[str, object] = {
        "ClusterName": CLUSTER_NAME,
        "SlurmctldHost": f"{config.hostname}({config.controller.address})",
        "SlurmctldPort": config.controller.port,
        "SlurmUser": config.user,
        "SlurmdUser": config.user,
        "AuthType": "auth/munge",
        "AuthInfo": f"socket={layout.munge_socket},cred_expire=5",
        # for so long a requeued job is held back: tried, with less it never starts again
        "CredType": "cred/munge",
        "StateSaveLocation": layout.save_dir,
        "SlurmdSpoolDir": layout.spool_dir / "%n",
        "SlurmctldPidFile": layout.state_dir / "slurmctld.pid",
        "SlurmdPidFile": layout.state_dir / "slurmd-%n.pid",
        "SlurmctldLogFile": layout.log_dir / "slurmctld.log",
        "SlurmdLogFile": layout.log_dir / "slurmd-%n.log",
        "SlurmdParameters": "config_overrides",  # a node has the CPUs and memory said here, not the machine's
        "ProctrackType": "proctrack/linuxproc",
        "TaskPlugin": "task/none",
        **_memory(config),
        "AccountingStorageType": "accounting_storage/none",
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_Core_Memory",
        "SchedulerType": "sched/backfill",
        "SchedulerParameters": "batch_sched_delay=0,sched_interval=1,bf_interval=1",
        "JobRequeue": 1,
        "MpiDefault": "none",
        "SwitchType": "switch/none",
        "MailProg": "/bin/true",
        "ReturnToService": 2,
        "MaxArraySize": config.max_array_size,
        "KillWait": 2,
        "SlurmdTimeout": config.slurmd_timeout_s,
        "SlurmctldTimeout": config.slurmd_timeout_s,
        "MessageTimeout": 4,
        "InactiveLimit": 0,
        "MinJobAge": 300,
    }
    lines = [f"{key}={value}" for key, value in settings.items()]
    lines += [
        f"NodeName={node.name} NodeHostname={config.hostname} NodeAddr={node.address} Port={node.port} "
        f"CPUs={config.cpus_per_node} RealMemory={config.memory_mib} State=UNKNOWN"
        for node in config.nodes
    ]
    lines += [
        f"PartitionName={DEFAULT_PARTITION} Nodes=ALL Default=YES MaxTime=INFINITE State=UP",
    ]
    return "\n".join([*lines, ""])


def _memory(config: ClusterConfig) -> dict[str, object]:
    """Memory is watched from /proc, since a cluster that leaves nothing behind makes no cgroups."""
    return {
        "JobAcctGatherType": "jobacct_gather/linux",
        "JobAcctGatherFrequency": config.memory_poll_s,
        "JobAcctGatherParams": "OverMemoryKill",
        "DefMemPerCPU": config.memory_mib
        // config.cpus_per_node,  # else a job without --mem has a whole node's
    }


# What is started


def daemons(config: ClusterConfig, layout: Layout, programs: Mapping[str, str]) -> tuple[Daemon, ...]:
    """``programs`` maps the names of `tests.slurm.devcluster.config` to paths."""
    configuration = ("-D", "-f", str(layout.slurm_conf))
    return (
        _munged(layout, programs),
        Daemon("slurmctld", (*config.controller.prefix, programs["slurmctld"], *configuration)),
        *(
            Daemon(node.name, (*node.prefix, programs["slurmd"], "-N", node.name, *configuration))
            for node in config.nodes
        ),
    )


def _munged(layout: Layout, programs: Mapping[str, str]) -> Daemon:
    """One for all nodes: who reaches its socket is in the same file system, whatever the network."""
    folder = layout.munge_dir
    options = {
        "key-file": layout.munge_key,
        "socket": layout.munge_socket,
        "pid-file": folder / "pid",
        "log-file": folder / "log",
        "seed-file": folder / "seed",
    }
    argv = (programs["munged"], "--foreground", "--num-threads=2")
    return Daemon(
        "munged",
        (*argv, *(f"--{name}={path}" for name, path in options.items())),
        ready=str(layout.munge_socket),
    )
