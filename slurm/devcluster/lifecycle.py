"""Bring a real Slurm cluster up in one machine.

One ``munged``, one ``slurmctld`` and a ``slurmd`` for every node, with a key, sockets, ports, logs and state
of their own in one folder, kept by one process (``keeper.py``). Nothing outside the folder is read or
written: a Slurm that the machine already has does not notice.

Nodes either share this machine's network, or each lives behind a wire of the emulated cluster: then ``slurmctld``
and ``slurmdbd`` listen at the switch, and all that Slurm says goes over the shaped wires, like what jobs say.
"""

from __future__ import annotations

import math
import os
import pwd
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from slurm.devcluster.accounting import slurmdbd_conf
from slurm.devcluster.clients import variables, without_slurm, write_clients
from slurm.devcluster.cluster import Cluster
from slurm.devcluster.config import ClusterConfig, Node, slurm_conf
from slurm.devcluster.daemons import daemons
from slurm.devcluster.layout import MARKER, Layout, Record
from slurm.devcluster.programs import DevClusterError, installed_clients, programs
from suite.links import cluster as links_cluster
from suite.links.keeper import write_json
from suite.links.link import Link
from suite.links.process import Process
from suite.links.topology import SWITCH_ADDRESS

UP_TIMEOUT_S = 60.0
"""Until all nodes are idle; each daemon has `slurm.devcluster.keeper.READY_TIMEOUT_S` besides."""

LOG_TAIL_LINES = 8
CHECKOUT = Path(__file__).resolve().parents[2]
CONTROLLER_PORT, SLURMD_PORT, ACCOUNTING_PORT = 6817, 6818, 6819
"""Slurm's own, behind links, where nobody else listens."""


def up(
    nodes: int | Sequence[Node] | Link = 2,
    *,
    state_dir: Path | None = None,
    tied: bool = True,
    accounting: bool = False,
    **settings: Any,
) -> Cluster:
    """Start a cluster and return once all its nodes are idle.

    nodes: how many, all on 127.0.0.1 and free ports; or each ``Node`` with its own place; or a ``Link``: every worker
    is a node.
    state_dir: a folder that is empty or does not exist; default a new one among the temporary files.
    tied: the cluster ends with this process, however that ends. Otherwise it stays until ``down(state_dir)``.
    accounting: with slurmdbd and a MariaDB of our own, so that ``sacct`` answers and there are accounts and QoS.
    settings: further fields of ``ClusterConfig`` (``cpus_per_node``, ``max_array_size``, ...).

    Raises DevClusterError where a program is missing, the folder is in use, or the cluster does not come up; ClusterError
    and LinkError (`suite.links`) where the links cannot be had; SettingsError for a folder whose path is too long.
    """
    found = programs(accounting)
    if nodes in (0, [], ()):
        raise DevClusterError("a cluster has at least 1 node")
    with ExitStack() as undo:  # when it fails, and when it is interrupted
        layout = _new_folder(state_dir, _names(nodes))
        undo.callback(shutil.rmtree, layout.state_dir, ignore_errors=True)
        links = None
        if isinstance(nodes, Link):
            links = links_cluster.up(nodes, state_dir=layout.links_dir)
            undo.callback(links.down)
            places = _behind(links)
        else:
            places = _beside_each_other(nodes)
        config = ClusterConfig(
            nodes=places[2:],
            controller=places[0],
            accounting=places[1] if accounting else None,
            hostname=socket.gethostname().partition(".")[0],
            user=pwd.getpwuid(os.geteuid()).pw_name,
            **{"memory_mib": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20, **settings},
        )
        _write(config, layout, found)
        popen = _start_keeper(layout, tied, links)
        names = tuple(node.name for node in config.nodes)
        cluster = Cluster(layout.state_dir, variables(layout), names, Process.of(popen.pid), links, popen)
        undo.callback(cluster.down)
        _wait_until_idle(cluster, layout, popen)
        undo.pop_all()
    return cluster


@contextmanager
def cluster(nodes: int | Sequence[Node] | Link = 2, **settings: Any) -> Iterator[Cluster]:
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


def _names(nodes: int | Sequence[Node] | Link) -> list[str]:
    if isinstance(nodes, Link):
        nodes = nodes.workers
    return [f"node-{i}" for i in range(nodes)] if isinstance(nodes, int) else [node.name for node in nodes]


def _beside_each_other(nodes: int | Sequence[Node]) -> tuple[Node, ...]:
    """Controller, accounting, then the nodes, in this machine's own network."""
    if isinstance(nodes, int):
        nodes = [Node(name, port) for name, port in zip(_names(nodes), free_ports(nodes), strict=True)]
    controller, accounting = free_ports(2)
    return (Node("controller", controller), Node("accounting", accounting), *nodes)


def _behind(links: links_cluster.Cluster) -> tuple[Node, ...]:
    """Controller and accounting at the switch, then a node a worker."""
    switch = links.enter_switch(as_self=True)
    nodes = (
        Node(name, SLURMD_PORT, address, links.enter(rank, as_self=True))
        for rank, (name, address) in enumerate(zip(_names(links.link), links.addresses, strict=True))
    )
    return (
        Node("controller", CONTROLLER_PORT, SWITCH_ADDRESS, switch),
        Node("accounting", ACCOUNTING_PORT, SWITCH_ADDRESS, switch),
        *nodes,
    )


def _new_folder(state_dir: Path | None, names: list[str]) -> Layout:
    """An empty state folder. munge insists that everybody may enter it and nobody else may write in it."""
    if state_dir is None:
        state_dir = Path(tempfile.gettempdir()) / f"bandwise-slurm-{secrets.token_hex(4)}"
    layout = Layout(state_dir.resolve())
    layout.check(names)
    layout.state_dir.mkdir(parents=True, exist_ok=True)
    if layout.state_dir.stat().st_uid != os.geteuid():
        raise DevClusterError(f"{layout.state_dir} belongs to another user; choose another folder")
    if any(layout.state_dir.iterdir()):
        raise DevClusterError(
            f"{layout.state_dir} is not empty: a cluster is up there (`down` ends it), or it is not for this"
        )
    layout.state_dir.chmod(0o755)
    return layout


def _write(config: ClusterConfig, layout: Layout, found: dict[str, str]) -> None:
    layout.database_dir.mkdir(mode=0o700)
    folders = [layout.munge_dir, layout.log_dir, layout.spool_dir, layout.save_dir, layout.requests_dir]
    for folder in [*folders, *(layout.spool_dir / node.name for node in config.nodes)]:
        folder.mkdir(mode=0o755)
    layout.munge_key.touch(mode=0o600)
    layout.munge_key.write_bytes(secrets.token_bytes(128))
    layout.slurm_conf.write_text(slurm_conf(config, layout), encoding="utf-8")
    if config.accounting is not None:
        layout.slurmdbd_conf.touch(mode=0o600)
        layout.slurmdbd_conf.write_text(slurmdbd_conf(config, config.accounting, layout), encoding="utf-8")
    if config.controller.prefix:
        write_clients(layout, config.controller.prefix, installed_clients())
    plan = {
        "marker": MARKER,
        "config": asdict(config),
        "daemons": [asdict(daemon) for daemon in daemons(config, layout, found)],
    }
    write_json(layout.cluster_json, plan)


def _start_keeper(layout: Layout, tied: bool, links: links_cluster.Cluster | None) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "slurm.devcluster.keeper", str(layout.state_dir)]
    tie = () if links is None else (links.tie(),)
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
