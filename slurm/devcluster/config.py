"""What a development cluster is made of, as data: nodes, limits, and the slurm.conf that follows.

Everything here is pure: no process is started and no file is written. A node says where it listens
(``address``) and what stands before its command (``prefix``), so that it may live behind a link, in a network
namespace of its own, while the rest stays as it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from slurm.devcluster.layout import Layout, SettingsError

CLUSTER_NAME = "bandwise"
ACCOUNT = "bandwise"
URGENT_QOS = "urgent"
"""With accounting: the QoS that takes nodes away from jobs of QoS ``normal``, where ``preempt`` is ``qos``."""

DEFAULT_PARTITION = "debug"
HIGH_PARTITION = "high"
"""The partition that takes nodes away from jobs of the default one, where ``preempt`` is ``partition``."""

MIN_CRED_EXPIRE_S = 5

Preempt = Literal["partition", "qos"]


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

    controller: of slurmctld; accounting: of slurmdbd, None without accounting. preempt: by what a job may take nodes
    from others, who are requeued. cpus_per_node may exceed what the machine has: nodes are logical, and several may
    share a core. memory_mib: of a node; a job that uses more than it asked for is killed, as seen every memory_poll_s.
    A node is given up slurmd_timeout_s after its last word, as soon as a ping has waited message_timeout_s in vain, which
    is also how long clients wait for an answer.
    cred_expire_s: for so long a requeued job is held back, 5 at least: tried, with less it never starts again.
    extra_lines go to slurm.conf as they are, behind everything else. Raises SettingsError for settings that do not go
    together.
    """

    nodes: tuple[Node, ...]
    controller: Node
    hostname: str
    user: str
    accounting: Node | None = None
    preempt: Preempt = "partition"
    cpus_per_node: int = 1
    memory_mib: int = 1024
    memory_poll_s: int = 2
    max_array_size: int = 1001
    kill_wait_s: int = 2
    slurmd_timeout_s: int = 10
    message_timeout_s: int = 4
    cred_expire_s: int = 5
    extra_lines: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.preempt == "qos" and self.accounting is None:
            raise SettingsError("preemption by QoS needs accounting: bring the cluster up with accounting")
        if self.cred_expire_s < MIN_CRED_EXPIRE_S:
            raise SettingsError(f"cred_expire_s {self.cred_expire_s}: choose {MIN_CRED_EXPIRE_S} or more")


@dataclass(frozen=True)
class Daemon:
    """A program that the keeper starts.

    Once it can be used, the path ``ready`` exists ("" = at once). once: it does its work and ends, and the next one
    waits for that; another exit code than 0 ends the cluster.
    """

    name: str
    argv: tuple[str, ...]
    ready: str = ""
    once: bool = False


def slurm_conf(config: ClusterConfig, layout: Layout) -> str:
    """Text of slurm.conf: no cgroups, several ``slurmd`` on one host."""
    settings: dict[str, object] = {
        "ClusterName": CLUSTER_NAME,
        "SlurmctldHost": f"{config.hostname}({config.controller.address})",
        "SlurmctldPort": config.controller.port,
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
        **_memory(config),
        **_accounting(config, layout),
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_Core_Memory",
        "SchedulerType": "sched/backfill",
        "SchedulerParameters": "batch_sched_delay=0,sched_interval=2,bf_interval=2",
        "PreemptType": {"partition": "preempt/partition_prio", "qos": "preempt/qos"}[config.preempt],
        "PreemptMode": "REQUEUE",
        "JobRequeue": 1,
        "MpiDefault": "none",
        "SwitchType": "switch/none",
        "MailProg": "/bin/true",
        "ReturnToService": 2,
        "MaxArraySize": config.max_array_size,
        "KillWait": config.kill_wait_s,
        "SlurmdTimeout": config.slurmd_timeout_s,
        "SlurmctldTimeout": config.slurmd_timeout_s,
        "MessageTimeout": config.message_timeout_s,
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
        f"PartitionName={DEFAULT_PARTITION} Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1",
        f"PartitionName={HIGH_PARTITION} Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF",
    ]
    return "\n".join([*lines, *config.extra_lines, ""])


def _memory(config: ClusterConfig) -> dict[str, object]:
    """Memory is watched from /proc, since a cluster that leaves nothing behind makes no cgroups."""
    return {
        "JobAcctGatherType": "jobacct_gather/linux",
        "JobAcctGatherFrequency": config.memory_poll_s,
        "JobAcctGatherParams": "OverMemoryKill",
        "DefMemPerCPU": config.memory_mib
        // config.cpus_per_node,  # else a job without --mem has a whole node's
    }


def _accounting(config: ClusterConfig, layout: Layout) -> dict[str, object]:
    if config.accounting is None:
        return {"AccountingStorageType": "accounting_storage/none"}
    return {
        "AccountingStorageType": "accounting_storage/slurmdbd",
        "AccountingStorageHost": config.accounting.address,
        "AccountingStoragePort": config.accounting.port,
        "AccountingStoragePass": layout.munge_socket,
        "AccountingStorageEnforce": "associations,limits,qos",
    }
