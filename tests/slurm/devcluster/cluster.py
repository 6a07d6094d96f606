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
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from slurm.scheduler import without_slurm
from suite.links.cluster import SWITCH_ADDRESS
from suite.links.cluster import Cluster as Links
from suite.links.cluster import up as links_up
from suite.links.link import Link
from tests.processes import Process
from tests.slurm.devcluster.config import (
    MARKER,
    ClusterConfig,
    DevClusterError,
    Layout,
    Node,
    Record,
    daemons,
    installed_clients,
    programs,
    slurm_conf,
    write_json,
)

# Clients


ANSWER_TIMEOUT_S = 60.0
OWN_NETWORK = Path("/proc/self/ns/net")


def variables(layout: Layout) -> dict[str, str]:
    """What a client's environment needs to find the cluster."""
    environment = {"SLURM_CONF": str(layout.slurm_conf)}
    if layout.clients_dir.exists():
        path = os.environ.get("PATH", os.defpath).split(os.pathsep)
        environment["PATH"] = os.pathsep.join(dict.fromkeys([str(layout.clients_dir), *path]))
    return environment


def write_clients(layout: Layout, prefix: tuple[str, ...], programs: Mapping[str, str]) -> None:
    """Write the scripts. prefix: leads from this network to the switch; programs: client -> its path."""
    layout.clients_dir.mkdir(mode=0o755)
    for name, path in programs.items():
        script = layout.clients_dir / name
        script.write_text(client_script(path, prefix, os.readlink(OWN_NETWORK)), encoding="utf-8")
        script.chmod(0o755)


def client_script(program: str, prefix: tuple[str, ...], outside: str) -> str:
    """Text of a script. outside: name of the network namespace from which ``prefix`` must lead, as readlink says."""
    return (
        "#!/bin/sh\n"
        f'case "$(readlink {OWN_NETWORK})" in\n'
        f'{shlex.quote(outside)}) exec {shlex.join([*prefix, program])} "$@" ;;\n'
        f'*) exec {shlex.quote(program)} "$@" ;;\n'
        "esac\n"
    )


def ask(layout: Layout, *command: str) -> str:
    """Ask one of Slurm's clients.

    Args:
        layout: The cluster's folder.
        command: The client and its arguments.

    Returns:
        Its standard output.

    Raises:
        DevClusterError: The client is missing, failed, or gave no answer in `ANSWER_TIMEOUT_S`; with its complaint.
    """
    environment = {**without_slurm(os.environ), **variables(layout)}
    try:
        done = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=ANSWER_TIMEOUT_S,
        )
    except (FileNotFoundError, subprocess.TimeoutExpired) as error:
        raise DevClusterError(f"`{shlex.join(command)}`: {error}") from error
    if done.returncode != 0:
        raise DevClusterError(
            f"`{shlex.join(command)}`: {done.stderr.strip() or f'exit code {done.returncode}'}"
        )
    return done.stdout


def node_states(layout: Layout) -> dict[str, str]:
    """Slurm's word on each node (``idle``, ``allocated``, ``down*``); nothing while the controller does not answer."""
    try:
        answer = ask(layout, "sinfo", "--noheader", "--Node", "--format=%N %T")
    except DevClusterError:
        return {}
    return dict(line.split(maxsplit=1) for line in answer.splitlines())


# A running cluster


STOP_TIMEOUT_S = 20.0
FAULT_TIMEOUT_S = 20.0


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

    def ask(self, *command: str) -> str:
        """Standard output of one of Slurm's clients. Raises DevClusterError with the client's complaint."""
        return ask(self._layout, *command)

    def states(self) -> dict[str, str]:
        """Slurm's word on each node (``idle``, ``allocated``, ``down*``); nothing while nobody answers."""
        return node_states(self._layout)

    def processes(self, node: str) -> list[Process]:
        """All that runs on a node: its ``slurmd``, job steps and their tasks. Needs links, which tell nodes apart."""
        assert self.links is not None
        return _in_network(os.readlink(self.links.networks[self.nodes.index(node)]))

    def kill_node(self, node: str) -> None:
        """SIGKILL to all that runs on the node, as when its power fails; its network stays. Needs links."""
        while running := self.processes(node):
            for process in running:
                process.signal(signal.SIGKILL)
            for process in running:
                process.wait_s(FAULT_TIMEOUT_S)

    def down(self) -> None:
        """Stop every process of the cluster and remove its folder. Harmless when it is down already."""
        self.keeper.signal(signal.SIGTERM)
        self.keeper.wait_s(STOP_TIMEOUT_S)
        down(self.state_dir)
        if self._popen is not None:
            self._popen.wait()
            if self._popen.stdin is not None:
                self._popen.stdin.close()
        if self.links is not None:
            self.links.down()

    @property
    def _layout(self) -> Layout:
        return Layout(self.state_dir)


def attach(state_dir: Path) -> Cluster:
    """The cluster that is up in ``state_dir``, without its links. Raises DevClusterError where there is none."""
    layout = Layout(state_dir.resolve())
    plan, record = layout.plan(), Record.read(layout)
    if plan is None or record is None or not record.keeper.alive():
        raise DevClusterError(f"no Slurm cluster is up in {layout.state_dir}")
    names = tuple(node["name"] for node in plan["config"]["nodes"])
    return Cluster(layout.state_dir, variables(layout), names, record.keeper)


def down(state_dir: Path) -> None:
    """Stop the cluster of a folder and remove the folder; nothing happens where there is no such folder.

    Args:
        state_dir: The folder.

    Raises:
        DevClusterError: The folder is not a cluster's, or its processes do not end.
    """
    layout = Layout(state_dir.resolve())
    if not layout.state_dir.exists():
        return
    if layout.plan() is None or layout.state_dir.stat().st_uid != os.geteuid():
        raise DevClusterError(f"{layout.state_dir} holds no cluster of ours: nothing was stopped or removed")
    record = Record.read(layout)
    if record is not None:
        keeper = record.keeper
        keeper.signal(signal.SIGTERM)
        if not keeper.wait_s(STOP_TIMEOUT_S):
            raise DevClusterError(
                f"the cluster's keeper (pid {keeper.pid}) does not end; see {layout.log_dir}"
            )
    if layout.state_dir.exists():
        shutil.rmtree(layout.state_dir)


def _network(pid: int) -> str:
    """Name of a process's network namespace; nothing for one that has ended, or that may not be looked at."""
    try:
        return os.readlink(f"/proc/{pid}/ns/net")
    except OSError:
        return ""


def _in_network(name: str) -> list[Process]:
    """Processes in the network namespace of that name."""
    processes = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and _network(int(entry.name)) == name:
            with suppress(ProcessLookupError):
                processes.append(Process.of(int(entry.name)))
    return processes


# Bringing one up


UP_TIMEOUT_S = 60.0
"""Until all nodes are idle; each daemon has `tests.slurm.devcluster.keeper.READY_TIMEOUT_S` besides."""

LOG_TAIL_LINES = 8
CHECKOUT = Path(__file__).resolve().parents[3]
CONTROLLER_PORT, SLURMD_PORT = 6817, 6818
"""Slurm's own, behind links, where nobody else listens."""


def up(
    nodes: int | Link = 2,
    *,
    state_dir: Path | None = None,
    tied: bool = True,
    **settings: Any,
) -> Cluster:
    """Start a cluster and return once all its nodes are idle.

    Args:
        nodes: How many, all on 127.0.0.1 and free ports; or a ``Link``: every worker is a node.
        state_dir: A folder that is empty or does not exist; default a new one among the temporary files.
        tied: Whether the cluster ends with this process, however that ends. Otherwise it stays until ``down(state_dir)``.
        settings: Further fields of ``ClusterConfig`` (``cpus_per_node``, ``max_array_size``, ...).

    Returns:
        The running cluster.

    Raises:
        DevClusterError: A program is missing, the folder is in use, or the cluster does not come up.
        ClusterError, LinkError: The links (`suite.links`) cannot be had.
    """
    paths = programs()
    with ExitStack() as undo:  # when it fails, and when it is interrupted
        layout = _new_folder(state_dir)
        undo.callback(shutil.rmtree, layout.state_dir, ignore_errors=True)
        links = None
        if isinstance(nodes, Link):
            links = links_up(nodes)
            undo.callback(links.down)
            places = _behind(links)
        else:
            places = _beside_each_other(nodes)
        config = ClusterConfig(
            nodes=places[1:],
            controller=places[0],
            hostname=socket.gethostname().partition(".")[0],
            user=pwd.getpwuid(os.geteuid()).pw_name,
            **{"memory_mib": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20, **settings},
        )
        _write(config, layout, paths)
        popen = _start_keeper(layout, tied, links)
        names = tuple(node.name for node in config.nodes)
        cluster = Cluster(layout.state_dir, variables(layout), names, Process.of(popen.pid), links, popen)
        undo.callback(cluster.down)
        _wait_until_idle(cluster, layout, popen)
        undo.pop_all()
    return cluster


@contextmanager
def cluster(nodes: int | Link = 2, **settings: Any) -> Iterator[Cluster]:
    """``with cluster(nodes=2) as slurm:`` a cluster for the block's time. Arguments as ``up``."""
    handle = up(nodes, **settings)
    try:
        yield handle
    finally:
        handle.down()


def free_ports(count: int) -> list[int]:
    """Distinct TCP ports free on every address now (another program may still take one before Slurm does)."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def _names(nodes: int | Link) -> list[str]:
    return [f"node-{i}" for i in range(nodes.workers if isinstance(nodes, Link) else nodes)]


def _beside_each_other(nodes: int) -> tuple[Node, ...]:
    """Controller, then the nodes, in this machine's own network."""
    names = ["controller", *_names(nodes)]
    return tuple(Node(name, port) for name, port in zip(names, free_ports(nodes + 1), strict=True))


def _behind(links: Links) -> tuple[Node, ...]:
    """Controller at the switch, then a node a worker."""
    switch = _entered(links, None)
    nodes = (
        Node(name, SLURMD_PORT, address, _entered(links, rank))
        for rank, (name, address) in enumerate(zip(_names(links.link), links.addresses, strict=True))
    )
    return (
        Node("controller", CONTROLLER_PORT, SWITCH_ADDRESS, switch),
        *nodes,
    )


def _entered(links: Links, rank: int | None) -> tuple[str, ...]:
    """What leads to a worker, or the switch, under this user's own name and without further rights.

    In a user namespace one is called root otherwise, and daemons believe that they may do what root may.
    """
    if not links.user_namespace:
        return links.enter(rank)
    own_name = ("--user", f"--map-user={os.geteuid()}", f"--map-group={os.getegid()}")
    return (*links.enter(rank), "unshare", *own_name)


def _new_folder(state_dir: Path | None) -> Layout:
    """An empty state folder. munge insists that everybody may enter it and nobody else may write in it."""
    if state_dir is None:
        state_dir = Path(tempfile.gettempdir()) / f"bandwise-slurm-{secrets.token_hex(4)}"
    layout = Layout(state_dir.resolve())
    layout.state_dir.mkdir(parents=True, exist_ok=True)
    if layout.state_dir.stat().st_uid != os.geteuid():
        raise DevClusterError(f"{layout.state_dir} belongs to another user; choose another folder")
    if any(layout.state_dir.iterdir()):
        raise DevClusterError(
            f"{layout.state_dir} is not empty: a cluster is up there (`down` ends it), or it is not for this"
        )
    layout.state_dir.chmod(0o755)
    return layout


def _write(config: ClusterConfig, layout: Layout, paths: dict[str, str]) -> None:
    folders = [layout.munge_dir, layout.log_dir, layout.spool_dir, layout.save_dir]
    for folder in [*folders, *(layout.spool_dir / node.name for node in config.nodes)]:
        folder.mkdir(mode=0o755)
    layout.munge_key.touch(mode=0o600)
    layout.munge_key.write_bytes(secrets.token_bytes(128))
    layout.slurm_conf.write_text(slurm_conf(config, layout), encoding="utf-8")
    if config.controller.prefix:
        write_clients(layout, config.controller.prefix, installed_clients())
    plan = {
        "marker": MARKER,
        "config": asdict(config),
        "daemons": [asdict(daemon) for daemon in daemons(config, layout, paths)],
    }
    write_json(layout.cluster_json, plan)


def _start_keeper(layout: Layout, tied: bool, links: Links | None) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.slurm.devcluster.keeper", str(layout.state_dir)]
    tie = () if links is None else (links.tie,)
    with (layout.log_dir / "keeper.out").open("wb") as out:
        return subprocess.Popen(
            command + ["--tied"] * tied + [f"--links={number}" for number in tie],
            cwd=CHECKOUT,
            env=without_slurm(os.environ),
            stdin=subprocess.PIPE if tied else subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=tie,
        )


def _wait_until_idle(cluster: Cluster, layout: Layout, popen: subprocess.Popen[bytes]) -> None:
    deadline = math.inf
    states: dict[str, str] = {}
    while time.monotonic() < deadline:
        record = Record.read(layout)
        ended = sorted(record.exited) if record is not None else []
        if popen.poll() is not None:
            ended.append("keeper")
        if ended:
            raise DevClusterError(f"{', '.join(ended)} did not start.\n{_tails(layout)}")
        if record is not None and set(cluster.nodes) <= set(record.started):
            deadline = min(deadline, time.monotonic() + UP_TIMEOUT_S)
            states = cluster.states()
            if set(cluster.nodes) <= states.keys() and set(states.values()) == {"idle"}:
                return
        time.sleep(0.1)
    raise DevClusterError(
        f"not all nodes idle after {UP_TIMEOUT_S:.0f} s (states: {states}).\n{_tails(layout)}"
    )


def _tails(layout: Layout) -> str:
    """The last lines of every log: all that is left to read once the folder is gone."""
    parts = []
    for log in sorted(layout.log_dir.glob("*")):
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-LOG_TAIL_LINES:]
        parts += [f"--- {log.name}", *lines]
    return "\n".join(parts)
