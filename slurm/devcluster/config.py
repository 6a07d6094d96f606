"""What a development cluster is made of, as data: nodes, limits, and the slurm.conf and commands that follow.

Everything here is pure: no process is started and no file is written. A node says where it listens
(``address``) and what stands before its command (``prefix``), so that a node may live in a network namespace
of its own (``prefix=("nsenter", "--net=...")``) while the rest stays as it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

MARKER = "bandwise-devcluster-1"
"""Stands in ``cluster.json``: a folder without it is never removed."""

SOCKET_PATH_MAX_BYTES = 107
"""Longest path of a Unix socket on Linux; munge and every job step listen on one below the state folder."""


@dataclass(frozen=True)
class Node:
    """One compute node: its ``slurmd`` listens on ``address:port`` and is started as ``prefix + command``."""

    name: str
    port: int
    address: str = "127.0.0.1"
    prefix: tuple[str, ...] = ()


@dataclass(frozen=True)
class ClusterConfig:
    """A cluster in one machine. Times in seconds are short, so that losing a node or a job takes seconds.

    cpus_per_node may exceed what the machine has: nodes are logical, and several may share a core.
    cred_expire_s also is the time that a requeued job is held back. extra_lines go to slurm.conf as they are.
    """

    nodes: tuple[Node, ...]
    controller_port: int
    hostname: str
    user: str
    controller_address: str = "127.0.0.1"
    cpus_per_node: int = 1
    memory_mib: int = 1024
    max_array_size: int = 1001
    kill_wait_s: int = 2
    slurmd_timeout_s: int = 10
    cred_expire_s: int = 10
    extra_lines: tuple[str, ...] = ()


@dataclass(frozen=True)
class Daemon:
    """A program that the keeper starts; once it can be used, the path ``ready`` exists ("" = at once)."""

    name: str
    argv: tuple[str, ...]
    ready: str = ""


@dataclass(frozen=True)
class Layout:
    """Where things lie below the state folder; `Layout.of` fills it in."""

    state_dir: Path
    munge_dir: Path
    munge_key: Path
    munge_socket: Path
    log_dir: Path
    spool_dir: Path
    save_dir: Path
    slurm_conf: Path
    cluster_json: Path
    daemons_json: Path

    @classmethod
    def of(cls, state_dir: Path) -> Layout:
        """The layout of a state folder, whether it exists or not."""
        return cls(
            state_dir=state_dir,
            munge_dir=state_dir / "munge",
            munge_key=state_dir / "munge" / "key",
            munge_socket=state_dir / "munge" / "socket",
            log_dir=state_dir / "log",
            spool_dir=state_dir / "spool",
            save_dir=state_dir / "save",
            slurm_conf=state_dir / "slurm.conf",
            cluster_json=state_dir / "cluster.json",
            daemons_json=state_dir / "daemons.json",
        )

    def check(self, nodes: tuple[Node, ...]) -> None:
        """Raises ValueError where the folder lies too deep for the sockets of job steps below it."""
        name = max((node.name for node in nodes), key=len)
        longest = self.spool_dir / name / f"{name}_4294967295.4294967295"
        if len(str(longest).encode()) > SOCKET_PATH_MAX_BYTES:
            raise ValueError(
                f"{self.state_dir}: too long for Unix sockets below it "
                f"({SOCKET_PATH_MAX_BYTES} bytes at most); choose a shorter folder, such as one in /tmp"
            )


def slurm_conf(config: ClusterConfig, layout: Layout) -> str:
    """Text of slurm.conf: no accounting, no cgroups, several ``slurmd`` on one host."""
    settings: dict[str, object] = {
        "ClusterName": "bandwise",
        "SlurmctldHost": f"{config.hostname}({config.controller_address})",
        "SlurmctldPort": config.controller_port,
        "SlurmUser": config.user,
        "SlurmdUser": config.user,
        "AuthType": "auth/munge",
        "AuthInfo": f"socket={layout.munge_socket},cred_expire={config.cred_expire_s}",
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
        "JobAcctGatherType": "jobacct_gather/none",
        "AccountingStorageType": "accounting_storage/none",
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_Core",
        "SchedulerType": "sched/backfill",
        "SchedulerParameters": "batch_sched_delay=0,sched_interval=2,bf_interval=2",
        "MpiDefault": "none",
        "SwitchType": "switch/none",
        "MailProg": "/bin/true",
        "ReturnToService": 2,
        "MaxArraySize": config.max_array_size,
        "KillWait": config.kill_wait_s,
        "SlurmdTimeout": config.slurmd_timeout_s,
        "SlurmctldTimeout": config.slurmd_timeout_s,
        "InactiveLimit": 0,
        "MinJobAge": 300,
    }
    lines = [f"{key}={value}" for key, value in settings.items()]
    lines += [
        f"NodeName={node.name} NodeHostname={config.hostname} NodeAddr={node.address} Port={node.port} "
        f"CPUs={config.cpus_per_node} RealMemory={config.memory_mib} State=UNKNOWN"
        for node in config.nodes
    ]
    lines.append("PartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE State=UP")
    return "\n".join([*lines, *config.extra_lines, ""])


def daemons(config: ClusterConfig, layout: Layout, programs: dict[str, str]) -> tuple[Daemon, ...]:
    """What to start, in order. ``programs`` maps munged, slurmctld and slurmd to their paths."""
    munge = layout.munge_dir
    started = [
        Daemon(
            "munged",
            (
                *(programs["munged"], "--foreground", "--num-threads=2"),
                *(f"--key-file={layout.munge_key}", f"--socket={layout.munge_socket}"),
                *(
                    f"--pid-file={munge / 'pid'}",
                    f"--log-file={munge / 'log'}",
                    f"--seed-file={munge / 'seed'}",
                ),
            ),
            ready=str(layout.munge_socket),
        ),
        Daemon("slurmctld", (programs["slurmctld"], "-D", "-f", str(layout.slurm_conf))),
    ]
    started += [
        Daemon(
            node.name, (*node.prefix, programs["slurmd"], "-D", "-N", node.name, "-f", str(layout.slurm_conf))
        )
        for node in config.nodes
    ]
    return tuple(started)
