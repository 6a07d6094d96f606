"""A real Slurm cluster in one machine: brought up, used by its clients, broken on purpose by tests, taken down.

One ``munged``, one ``slurmctld`` and a ``slurmd`` for every node, with a key, sockets, ports, logs and state
of their own in one folder, kept by one process (``keeper.py``). Nothing outside the folder is read or
written: a Slurm that the machine already has does not notice.

Nodes either share this machine's network, or each lives behind a wire of the emulated cluster: then ``slurmctld``
listens at the switch, and all that Slurm says goes over the shaped wires, like what jobs say. Behind links
nothing of this machine's own network leads to ``slurmctld``, and nothing is added to it. Each client gets a small script
instead, in a folder that stands first on PATH: called from outside, it runs the client at the cluster's switch, with root's
privileges or in the cluster's user namespace; called inside, by a job, it runs it right there.
"""

from __future__ import annotations

import json
import math
import os
import pwd
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from slurm.scheduler import without_slurm
from suite.links.cluster import SWITCH_ADDRESS, find_program
from suite.links.cluster import Cluster as Links
from suite.links.cluster import up as links_up
from suite.links.link import Link
from tests.processes import Process
from tests.support import ROOT

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "sinfo")
CLIENTS = (
    "sbatch", "srun", "salloc", "sattach", "squeue", "scontrol", "scancel", "sinfo", "sstat", "sprio",
)  # fmt: skip
OWN_NETWORK = Path("/proc/self/ns/net")
CONTROLLER_PORT, SLURMD_PORT = 6817, 6818
"""Slurm's own, behind links, where nobody else listens."""
SLURMD_TIMEOUT_S = 10
"""A node is given up so long after its last word, as soon as a ping has waited in vain: losing one takes seconds."""
UP_TIMEOUT_S = 60.0
"""From when all daemons run until all nodes are idle."""
STOP_TIMEOUT_S = 20.0
ANSWER_TIMEOUT_S = 60.0
LOG_TAIL_LINES = 8


class DevClusterError(RuntimeError):
    """The cluster cannot be brought up, used or taken down; the message says why and what to do."""


# A running cluster


@dataclass(frozen=True)
class Cluster:
    """A running cluster.

    env: what a client's environment needs to find it. nodes: their names, by rank. links: the emulated cluster whose
    workers are the nodes, None where they share this machine's network.
    """

    state_dir: Path
    env: Mapping[str, str]
    nodes: tuple[str, ...]
    keeper: Process
    links: Links | None = None
    _popen: subprocess.Popen[bytes] | None = field(default=None, repr=False, compare=False)

    def states(self) -> dict[str, str]:
        """Slurm's word on each node (``idle``, ``allocated``, ``down*``); nothing while nobody answers."""
        command = ["sinfo", "--noheader", "--Node", "--format=%N %T"]
        environment = {**without_slurm(os.environ), **self.env}
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, timeout=ANSWER_TIMEOUT_S
        )
        return dict(line.split(maxsplit=1) for line in done.stdout.splitlines())

    def processes(self, node: str) -> list[Process]:
        """All that runs on a node: its ``slurmd``, job steps and their tasks. Needs links, which tell nodes apart."""
        assert self.links is not None
        network, found = os.readlink(self.links.networks[self.nodes.index(node)]), []
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it has ended, or may not be looked at
                if os.readlink(entry / "ns" / "net") == network:
                    found.append(Process.of(int(entry.name)))
        return found

    def kill_node(self, node: str) -> None:
        """SIGKILL to all that runs on the node, as when its power fails; its network stays. Needs links."""
        while running := self.processes(node):
            for process in running:
                process.signal(signal.SIGKILL)
            for process in running:
                process.wait_s(STOP_TIMEOUT_S)

    def down(self) -> None:
        """Stop every process of the cluster and remove its folder. Harmless when it is down already."""
        self.keeper.signal(signal.SIGTERM)
        if not self.keeper.wait_s(STOP_TIMEOUT_S):
            raise DevClusterError(
                f"the keeper (pid {self.keeper.pid}) does not end; see {self.state_dir / 'log'}"
            )
        shutil.rmtree(self.state_dir, ignore_errors=True)
        if self._popen is not None:
            self._popen.wait()
            if self._popen.stdin is not None:
                self._popen.stdin.close()
        if self.links is not None:
            self.links.down()


def attach(state_dir: Path) -> Cluster:
    """The cluster of a folder, without its links. Raises DevClusterError where there is none."""
    told = kept(state_dir)
    if told is None:
        raise DevClusterError(f"no Slurm cluster is up in {state_dir}")
    names = tuple(json.loads((state_dir / "cluster.json").read_text(encoding="utf-8"))["nodes"])
    return Cluster(state_dir, variables(state_dir), names, Process(**told["keeper"]))


def kept(state_dir: Path) -> dict[str, Any] | None:
    """What the keeper has written: who it is, whether all daemons run, and exit codes of those that have ended; None: nothing."""
    with suppress(FileNotFoundError):
        return dict(json.loads((state_dir / "keeper.json").read_text(encoding="utf-8")))
    return None


def variables(state_dir: Path) -> dict[str, str]:
    """What a client's environment needs to find the cluster."""
    environment = {"SLURM_CONF": str(state_dir / "slurm.conf")}
    if (clients := state_dir / "bin").exists():
        path = os.environ.get("PATH", os.defpath).split(os.pathsep)
        environment["PATH"] = os.pathsep.join(dict.fromkeys([str(clients), *path]))
    return environment


# What it consists of


class Node(NamedTuple):
    """Where a daemon listens, and what stands before its command: ``address:port``, ``prefix + command``."""

    name: str
    port: int
    address: str = "127.0.0.1"
    prefix: tuple[str, ...] = ()


def _beside_each_other(nodes: int) -> list[Node]:
    """Controller, then the nodes, in this machine's own network."""
    return [Node(name, port) for name, port in zip(_names(nodes), free_ports(nodes + 1), strict=True)]


def _behind(links: Links) -> list[Node]:
    """Controller at the switch, then a node a worker."""
    controller, *names = _names(links.link.workers)
    return [
        Node(controller, CONTROLLER_PORT, SWITCH_ADDRESS, _entered(links, None)),
        *(
            Node(name, SLURMD_PORT, address, _entered(links, rank))
            for rank, (name, address) in enumerate(zip(names, links.addresses, strict=True))
        ),
    ]


def _names(nodes: int) -> list[str]:
    return ["controller", *(f"node-{i}" for i in range(nodes))]


def _entered(links: Links, rank: int | None) -> tuple[str, ...]:
    """What leads to a worker, or the switch, under this user's own name and without further rights.

    In a user namespace one is called root otherwise, and daemons believe that they may do what root may.
    """
    if not links.user_namespace:
        return links.enter(rank)
    own_name = ("--user", f"--map-user={os.geteuid()}", f"--map-group={os.getegid()}")
    return (*links.enter(rank), "unshare", *own_name)


def free_ports(count: int) -> list[int]:
    """Distinct TCP ports free on every address now (another program may still take one before Slurm does)."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("", 0))
        return [each.getsockname()[1] for each in sockets]


def slurm_conf(
    folder: Path,
    controller: Node,
    nodes: Sequence[Node],
    cpus_per_node: int,
    memory_mib: int,
    max_array_size: int,
) -> str:
    """Text of slurm.conf: no cgroups, several ``slurmd`` on one host."""
    user, host = pwd.getpwuid(os.geteuid()).pw_name, socket.gethostname().partition(".")[0]
    settings: dict[str, object] = {
        "ClusterName": "bandwise",
        "SlurmctldHost": f"{host}({controller.address})",
        "SlurmctldPort": controller.port,
        "SlurmUser": user,
        "SlurmdUser": user,
        "AuthType": "auth/munge",
        # for so long a requeued job is held back: tried, with less it never starts again
        "AuthInfo": f"socket={folder / 'munge' / 'socket'},cred_expire=5",
        "CredType": "cred/munge",
        "StateSaveLocation": folder / "save",
        "SlurmdSpoolDir": folder / "spool" / "%n",
        "SlurmctldPidFile": folder / "slurmctld.pid",
        "SlurmdPidFile": folder / "slurmd-%n.pid",
        "SlurmctldLogFile": folder / "log" / "slurmctld.log",
        "SlurmdLogFile": folder / "log" / "slurmd-%n.log",
        "SlurmdParameters": "config_overrides",  # a node has the CPUs and memory said here, not the machine's
        "ProctrackType": "proctrack/linuxproc",
        "TaskPlugin": "task/none",
        # memory is watched from /proc, since a cluster that leaves nothing behind makes no cgroups
        "JobAcctGatherType": "jobacct_gather/linux",
        "JobAcctGatherFrequency": 2,
        "JobAcctGatherParams": "OverMemoryKill",
        "DefMemPerCPU": memory_mib // cpus_per_node,  # else a job without --mem has a whole node's
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
        "MaxArraySize": max_array_size,
        "KillWait": 2,
        "SlurmdTimeout": SLURMD_TIMEOUT_S,
        "SlurmctldTimeout": SLURMD_TIMEOUT_S,
        "MessageTimeout": 4,
        "InactiveLimit": 0,
        "MinJobAge": 300,
    }
    lines = [f"{key}={value}" for key, value in settings.items()]
    lines += [
        f"NodeName={node.name} NodeHostname={host} NodeAddr={node.address} Port={node.port} "
        f"CPUs={cpus_per_node} RealMemory={memory_mib} State=UNKNOWN"
        for node in nodes
    ]
    return "\n".join([*lines, "PartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE State=UP", ""])


def daemons(
    folder: Path, controller: Node, nodes: Sequence[Node], paths: Mapping[str, str]
) -> list[dict[str, Any]]:
    """What the keeper starts, in this order; once one can be used, the path `ready` exists, where it has one.

    One ``munged`` serves all nodes: who reaches its socket is in the same file system, whatever the network.
    """
    munge, configuration = folder / "munge", ("-D", "-f", str(folder / "slurm.conf"))
    files = {"key": "key-file", "socket": "socket", "pid": "pid-file", "log": "log-file", "seed": "seed-file"}
    options = [f"--{option}={munge / name}" for name, option in files.items()]
    slurmd = (paths["slurmd"], *configuration, "-N")
    return [
        {
            "name": "munged",
            "argv": [paths["munged"], "--foreground", "--num-threads=2", *options],
            "ready": str(munge / "socket"),
        },
        {"name": "slurmctld", "argv": [*controller.prefix, paths["slurmctld"], *configuration]},
        *({"name": node.name, "argv": [*node.prefix, *slurmd, node.name]} for node in nodes),
    ]


def write_clients(folder: Path, prefix: tuple[str, ...]) -> None:
    """Write the scripts that stand in for Slurm's clients. prefix: leads from this network to the switch."""
    folder.mkdir(mode=0o755)
    for name, path in _found(CLIENTS).items():
        script = folder / name
        script.write_text(
            "#!/bin/sh\n"
            f'case "$(readlink {OWN_NETWORK})" in\n'
            f'{shlex.quote(os.readlink(OWN_NETWORK))}) exec {shlex.join([*prefix, path])} "$@" ;;\n'
            f'*) exec {shlex.quote(path)} "$@" ;;\n'
            "esac\n",
            encoding="utf-8",
        )
        script.chmod(0o755)


def _found(names: Sequence[str]) -> dict[str, str]:
    """Name -> absolute path of the programs that are installed."""
    return {name: path for name in names if (path := find_program(name)) is not None}


# Bringing one up


def up(
    nodes: int | Link = 2,
    *,
    state_dir: Path | None = None,
    tied: bool = True,
    cpus_per_node: int = 1,
    memory_mib: int | None = None,
    max_array_size: int = 1001,
) -> Cluster:
    """Start a cluster and return once all its nodes are idle.

    Args:
        nodes: How many, all on 127.0.0.1 and free ports; or a ``Link``: every worker is a node.
        state_dir: A folder that is empty or does not exist; default a new one among the temporary files.
        tied: Whether the cluster ends with this process, however that ends. Otherwise it stays until it is told to go down.
        cpus_per_node: May exceed what the machine has: nodes are logical, and several may share a core.
        memory_mib: Of a node; a job that uses more than it asked for is killed. Default the machine's.
        max_array_size: Slurm's MaxArraySize.

    Returns:
        The running cluster.

    Raises:
        DevClusterError: A program is missing, the folder is in use, or the cluster does not come up.
        ClusterError, LinkError: The links (`suite.links`) cannot be had.
    """
    paths = _found(PROGRAMS)
    if missing := [name for name in PROGRAMS if name not in paths]:
        raise DevClusterError(
            f"{', '.join(missing)} not found: install Slurm and munge (`sudo make system`, or `apt-get install slurm-wlm munge`)"
        )
    memory = memory_mib or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20
    with ExitStack() as undo:  # when it fails, and when it is interrupted
        folder = _new_folder(state_dir)
        undo.callback(shutil.rmtree, folder, ignore_errors=True)
        links = links_up(nodes) if isinstance(nodes, Link) else None
        if links is not None:
            undo.callback(links.down)
        controller, *places = _behind(links) if links is not None else _beside_each_other(int(nodes))  # type: ignore[arg-type]
        names = tuple(node.name for node in places)
        for name in ("munge", "log", "spool", "save", *(f"spool/{name}" for name in names)):
            (folder / name).mkdir(mode=0o755)
        (folder / "munge" / "key").touch(mode=0o600)
        (folder / "munge" / "key").write_bytes(secrets.token_bytes(128))
        text = slurm_conf(folder, controller, places, cpus_per_node, memory, max_array_size)
        (folder / "slurm.conf").write_text(text, encoding="utf-8")
        if controller.prefix:
            write_clients(folder / "bin", controller.prefix)
        plan = {"nodes": names, "daemons": daemons(folder, controller, places, paths)}
        (folder / "cluster.json").write_text(json.dumps(plan, indent=1), encoding="utf-8")
        popen = _start_keeper(folder, tied, links)
        made = Cluster(folder, variables(folder), names, Process.of(popen.pid), links, popen)
        undo.callback(made.down)
        _wait_until_idle(made, popen)
        undo.pop_all()
    return made


@contextmanager
def cluster(nodes: int | Link = 2, **settings: Any) -> Iterator[Cluster]:
    """``with cluster(nodes=2) as slurm:`` a cluster for the block's time. Arguments as ``up``."""
    made = up(nodes, **settings)
    try:
        yield made
    finally:
        made.down()


def _new_folder(state_dir: Path | None) -> Path:
    """An empty state folder. munge insists that everybody may enter it and nobody else may write in it."""
    folder = (state_dir or Path(tempfile.gettempdir()) / f"bandwise-slurm-{secrets.token_hex(4)}").resolve()
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()) or folder.stat().st_uid != os.geteuid():
        raise DevClusterError(
            f"{folder} is not empty, or another user's: a cluster is up there (`down` ends it), or it is not for this"
        )
    folder.chmod(0o755)
    return folder


def _start_keeper(folder: Path, tied: bool, links: Links | None) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.slurm.devcluster.keeper", str(folder)]
    tie = () if links is None else (links.tie,)
    with (folder / "log" / "keeper.out").open("wb") as out:
        return subprocess.Popen(
            command + ["--tied"] * tied + [f"--links={number}" for number in tie],
            cwd=ROOT,
            env=without_slurm(os.environ),
            stdin=subprocess.PIPE if tied else subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=tie,
        )


def _wait_until_idle(made: Cluster, popen: subprocess.Popen[bytes]) -> None:
    deadline, states = math.inf, dict[str, str]()
    while time.monotonic() < deadline:
        told = kept(made.state_dir) or {"started": False, "ended": {}}
        ended = [*told["ended"], *(["keeper"] if popen.poll() is not None else [])]
        if ended:
            raise DevClusterError(f"{', '.join(ended)} did not start.\n{_tails(made.state_dir)}")
        if told["started"]:
            deadline = min(deadline, time.monotonic() + UP_TIMEOUT_S)
            states = made.states()
            if set(made.nodes) <= states.keys() and set(states.values()) == {"idle"}:
                return
        time.sleep(0.1)
    raise DevClusterError(
        f"not all nodes idle after {UP_TIMEOUT_S:.0f} s (states: {states}).\n{_tails(made.state_dir)}"
    )


def _tails(folder: Path) -> str:
    """The last lines of every log: all that is left to read once the folder is gone."""
    parts = []
    for log in sorted((folder / "log").glob("*")):
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-LOG_TAIL_LINES:]
        parts += [f"--- {log.name}", *lines]
    return "\n".join(parts)
