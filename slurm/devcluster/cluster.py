"""A running development cluster: where clients find it, faults for tests, and its end."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slurm.devcluster.clients import ask, node_states, variables, without_slurm
from slurm.devcluster.layout import Layout, Record
from slurm.devcluster.programs import DevClusterError
from suite.links import cluster as links_cluster
from suite.links.process import Process

STOP_TIMEOUT_S = 20.0
STOP_GRACE_S = 2.0
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
    links: links_cluster.Cluster | None = None
    _popen: subprocess.Popen[bytes] | None = field(default=None, repr=False, compare=False)

    def environ(self) -> dict[str, str]:
        """This process's environment without what an outer Slurm job left in it, pointed at the cluster."""
        return {**without_slurm(os.environ), **self.env}

    def ask(self, *command: str) -> str:
        """Standard output of one of Slurm's clients. Raises DevClusterError with the client's complaint."""
        return ask(self._layout, *command)

    def states(self) -> dict[str, str]:
        """Slurm's word on each node (``idle``, ``allocated``, ``down*``); nothing while nobody answers."""
        return node_states(self._layout)

    def slurmd(self, node: str) -> Process:
        """The node's ``slurmd``, which may have ended."""
        return self._record().started[self._known(node)]

    def processes(self, node: str) -> list[Process]:
        """All that runs on a node: its ``slurmd``, job steps and their tasks. Needs links, which tell nodes apart."""
        if self.links is None:
            raise DevClusterError(
                "nodes that share a network cannot be told apart: bring the cluster up with a link"
            )
        holder = self.links.holder(self.nodes.index(self._known(node)))
        return [process for process in _in_network(_network(holder.pid)) if process != holder]

    def kill_slurmd(self, node: str) -> None:
        """SIGKILL to the node's ``slurmd`` alone: its jobs go on until Slurm gives the node up."""
        process = self.slurmd(node)
        process.signal(signal.SIGKILL)
        self._until(lambda: node in self._record().exited, f"{node}'s slurmd does not end")

    def kill_node(self, node: str) -> None:
        """SIGKILL to all that runs on the node, as when its power fails; its network stays. Needs links."""
        while found := self.processes(node):
            for process in found:
                process.signal(signal.SIGKILL)
            for process in found:
                process.wait_s(FAULT_TIMEOUT_S)

    def start_slurmd(self, node: str) -> None:
        """Start the node's ``slurmd`` again; Slurm takes the node back once that has registered."""
        before = self.slurmd(node)
        if before.alive():
            raise DevClusterError(f"{node}'s slurmd runs (pid {before.pid}): kill it first")
        (self._layout.requests_dir / node).touch()
        self.keeper.signal(signal.SIGUSR1)
        self._until(lambda: self.slurmd(node) != before, f"{node}'s slurmd is not started again")

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

    def _known(self, node: str) -> str:
        if node not in self.nodes:
            raise DevClusterError(f"no node {node!r}: there are {', '.join(self.nodes)}")
        return node

    def _record(self) -> Record:
        record = Record.read(self._layout)
        if record is None or not record.keeper.alive():
            raise DevClusterError(f"no cluster is up in {self.state_dir}")
        return record

    def _until(self, condition: Callable[[], bool], otherwise: str) -> None:
        deadline = time.monotonic() + FAULT_TIMEOUT_S
        while not condition():
            if time.monotonic() > deadline:
                raise DevClusterError(f"{otherwise}; see {self._layout.log_dir}")
            time.sleep(0.02)


def is_here(state_dir: Path) -> bool:
    """Whether the folder holds a development cluster, up or not."""
    return Layout(state_dir.resolve()).plan() is not None


def attach(state_dir: Path) -> Cluster:
    """The cluster that is up in ``state_dir``. Raises DevClusterError where there is none."""
    layout = Layout(state_dir.resolve())
    plan, record = layout.plan(), Record.read(layout)
    if plan is None or record is None or not record.keeper.alive():
        raise DevClusterError(f"no Slurm cluster is up in {layout.state_dir}")
    links = links_cluster.attach(layout.links_dir) if layout.links_dir.exists() else None
    names = tuple(node["name"] for node in plan["config"]["nodes"])
    return Cluster(layout.state_dir, variables(layout), names, record.keeper, links)


def down(state_dir: Path) -> None:
    """Stop the cluster of ``state_dir`` and remove the folder; nothing happens where there is no such folder.

    Raises DevClusterError where the folder is not a cluster's, or its processes do not end.
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
        # Only where the keeper itself was killed is there anything left to do.
        for process in [*_beyond_links(record), *record.started.values()]:
            process.stop(grace_s=STOP_GRACE_S)
    links_cluster.down(layout.links_dir)
    if layout.state_dir.exists():
        shutil.rmtree(layout.state_dir)


def status(state_dir: Path) -> dict[str, Any]:
    """How the cluster of ``state_dir`` stands, as plain values, with the keys of `suite.links.cluster.status`.

    A worker also has its ``node`` and ``slurm``, the node's state in Slurm's words, ``unknown`` where nobody answers.
    Without links, ``label`` and ``delay`` are empty and workers have no address.
    """
    layout = Layout(state_dir.resolve())
    plan, record = layout.plan(), Record.read(layout)
    if plan is None:
        return {"state": "down", "state_dir": str(layout.state_dir)}
    up = record is not None and record.keeper.alive()
    found: dict[str, Any] = {"label": "", "delay": "", "workers": []}
    if layout.links_dir.exists():
        found = links_cluster.status(layout.links_dir)
    reason = "" if up else "its keeper has ended"
    if up and record is not None and record.exited:
        reason = ", ".join(f"{name} ended with code {code}" for name, code in record.exited.items())
    states = node_states(layout) if up else {}
    names = [node["name"] for node in plan["config"]["nodes"]]
    workers = found["workers"] or [{"rank": rank} for rank in range(len(names))]
    reason = reason or found.get("reason", "")
    return {
        **found,
        "state": "broken" if reason else "up",
        "reason": reason,
        "state_dir": str(layout.state_dir),
        "slurm": {"conf": str(layout.slurm_conf), "accounting": plan["config"]["accounting"] is not None},
        "workers": [
            {**worker, "node": name, "slurm": states.get(name, "unknown")}
            for worker, name in zip(workers, names, strict=False)
        ],
    }


def _beyond_links(record: Record) -> list[Process]:
    """All that runs in networks other than ours in which a recorded process still runs: job steps, their tasks."""
    networks = {_network(process.pid) for process in record.started.values() if process.alive()}
    return [process for name in networks - {_network(os.getpid()), ""} for process in _in_network(name)]


def _network(pid: int) -> str:
    """Name of a process's network namespace; nothing for one that has ended, or that may not be looked at."""
    try:
        return os.readlink(f"/proc/{pid}/ns/net")
    except OSError:
        return ""


def _in_network(name: str) -> list[Process]:
    """Processes in the network namespace of that name."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and _network(int(entry.name)) == name:
            with suppress(ProcessLookupError):
                found.append(Process.of(int(entry.name)))
    return found
