"""Bring a real Slurm cluster up in one machine, look at it, take it down.

One ``munged``, one ``slurmctld`` and a ``slurmd`` for every node, with a key, sockets, ports, logs and state
of their own in one folder, kept by one process (``keeper.py``). Nothing outside the folder is read or
written: a Slurm that the machine already has does not notice. Clients (``sbatch``, ``squeue``) find the
cluster by ``SLURM_CONF``.
"""

from __future__ import annotations

import json
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from slurm.devcluster.config import MARKER, ClusterConfig, Layout, Node, daemons, slurm_conf
from suite.links.process import Process

UP_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 20.0
LOG_TAIL_LINES = 8
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "sinfo")
SBIN = ("/usr/sbin", "/sbin", "/usr/local/sbin")
CHECKOUT = Path(__file__).resolve().parents[2]


class DevClusterError(RuntimeError):
    """The cluster cannot be brought up or taken down; the message says why and what to do."""


@dataclass(frozen=True)
class Cluster:
    """A running cluster; ``env`` is what a client's environment needs to find it."""

    state_dir: Path
    env: Mapping[str, str]
    nodes: tuple[str, ...]
    keeper: Process
    _popen: subprocess.Popen[bytes] = field(repr=False, compare=False)

    def environ(self) -> dict[str, str]:
        """This process's environment without what an outer Slurm job left in it, pointed at the cluster."""
        return {**_without_slurm(os.environ), **self.env}

    def down(self) -> None:
        """Stop every process of the cluster and remove its folder. Harmless when it is down already."""
        self.keeper.signal(signal.SIGTERM)
        self.keeper.wait_s(STOP_TIMEOUT_S)
        down(self.state_dir)
        self._popen.wait()
        if self._popen.stdin is not None:
            self._popen.stdin.close()


def up(
    nodes: int | Sequence[Node] = 2,
    *,
    state_dir: Path | None = None,
    tied: bool = True,
    **settings: Any,
) -> Cluster:
    """Start a cluster and return once all its nodes are idle.

    nodes: how many, all on 127.0.0.1 and free ports; or each ``Node`` with its own place.
    state_dir: a folder that is empty or does not exist; default a new one among the temporary files.
    tied: the cluster ends with this process, however that ends. Otherwise it stays until ``down(state_dir)``.
    settings: further fields of ``ClusterConfig`` (``cpus_per_node``, ``max_array_size``, ...).

    Raises DevClusterError where a program is missing, the folder is in use, or the cluster does not come up.
    """
    programs = _programs()
    if isinstance(nodes, int):
        nodes = [Node(f"node-{i}", port) for i, port in enumerate(_free_ports(nodes))]
    if not nodes:
        raise DevClusterError("a cluster has at least 1 node")
    layout = _new_layout(state_dir, tuple(nodes))
    config = ClusterConfig(
        nodes=tuple(nodes),
        controller_port=_free_ports(1)[0],
        hostname=socket.gethostname().partition(".")[0],
        user=pwd.getpwuid(os.geteuid()).pw_name,
        memory_mib=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20,
        **settings,
    )
    _write(config, layout, programs)
    command = [sys.executable, "-m", "slurm.devcluster.keeper", str(layout.state_dir)]
    with (layout.log_dir / "keeper.out").open("wb") as out:
        popen = subprocess.Popen(
            command + ["--tied"] * tied,
            cwd=CHECKOUT,
            env=_without_slurm(os.environ),
            stdin=subprocess.PIPE if tied else subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    env = {"SLURM_CONF": str(layout.slurm_conf)}
    names = tuple(node.name for node in config.nodes)
    cluster = Cluster(layout.state_dir, env, names, Process.of(popen.pid), popen)
    with ExitStack() as undo:
        undo.callback(cluster.down)  # when it fails, and when it is interrupted
        _wait_until_idle(cluster, layout, programs["sinfo"])
        undo.pop_all()
    return cluster


def down(state_dir: Path) -> None:
    """Stop the cluster of ``state_dir`` and remove the folder; nothing happens where there is no such folder.

    Raises DevClusterError where the folder is not a cluster's, or its processes do not end.
    """
    layout = Layout.of(state_dir.resolve())
    if not layout.state_dir.exists():
        return
    _require_ours(layout)
    record = _read_json(layout.daemons_json)
    if record is not None:
        keeper = Process(**record["keeper"])
        keeper.signal(signal.SIGTERM)
        if not keeper.wait_s(STOP_TIMEOUT_S):
            raise DevClusterError(
                f"the cluster's keeper (pid {keeper.pid}) does not end; see {layout.log_dir}"
            )
        # Only where the keeper itself was killed is there anything left to do.
        for process in (Process(**entry) for entry in record["started"].values()):
            process.stop()
    if layout.state_dir.exists():
        shutil.rmtree(layout.state_dir)


def status(state_dir: Path) -> dict[str, str]:
    """Slurm's word on each node (``idle``, ``allocated``, ``down``, ...); empty where no cluster is up."""
    layout = Layout.of(state_dir.resolve())
    record = _read_json(layout.daemons_json) if layout.cluster_json.exists() else None
    if record is None or not Process(**record["keeper"]).alive():
        return {}
    plan = _read_json(layout.cluster_json)
    names = [node["name"] for node in plan["config"]["nodes"]] if plan is not None else []
    return _node_states(layout, _programs()["sinfo"]) or dict.fromkeys(names, "unknown")


@contextmanager
def cluster(nodes: int | Sequence[Node] = 2, **settings: Any) -> Iterator[Cluster]:
    """``with cluster(nodes=2) as slurm:`` a cluster for the block's time. Arguments as ``up``."""
    handle = up(nodes, **settings)
    try:
        yield handle
    finally:
        handle.down()


def _programs() -> dict[str, str]:
    path = os.pathsep.join([os.environ.get("PATH", ""), *SBIN])
    found = {name: shutil.which(name, path=path) for name in PROGRAMS}
    missing = sorted(name for name, where in found.items() if where is None)
    if missing:
        raise DevClusterError(
            f"{', '.join(missing)} not found: install Slurm and munge (`sudo make system`, "
            "or `apt-get install slurm-wlm munge`)"
        )
    return {name: where for name, where in found.items() if where is not None}


def _new_layout(state_dir: Path | None, nodes: tuple[Node, ...]) -> Layout:
    """An empty state folder. munge insists that everybody may enter it and nobody else may write in it."""
    if state_dir is None:
        state_dir = Path(tempfile.gettempdir()) / f"bandwise-slurm-{secrets.token_hex(4)}"
    layout = Layout.of(state_dir.resolve())
    layout.check(nodes)
    layout.state_dir.mkdir(parents=True, exist_ok=True)
    if layout.state_dir.stat().st_uid != os.geteuid():
        raise DevClusterError(f"{layout.state_dir} belongs to another user; choose another folder")
    if any(layout.state_dir.iterdir()):
        raise DevClusterError(
            f"{layout.state_dir} is not empty: a cluster is up there (`down` ends it), or it is not for this"
        )
    layout.state_dir.chmod(0o755)
    for folder in (layout.munge_dir, layout.log_dir, layout.spool_dir, layout.save_dir):
        folder.mkdir(mode=0o755)
    return layout


def _write(config: ClusterConfig, layout: Layout, programs: dict[str, str]) -> None:
    layout.munge_key.touch(mode=0o600)
    layout.munge_key.write_bytes(secrets.token_bytes(128))
    for node in config.nodes:
        (layout.spool_dir / node.name).mkdir(mode=0o755)
    layout.slurm_conf.write_text(slurm_conf(config, layout), encoding="utf-8")
    plan = {
        "marker": MARKER,
        "config": asdict(config),
        "daemons": [asdict(daemon) for daemon in daemons(config, layout, programs)],
    }
    layout.cluster_json.write_text(json.dumps(plan, indent=1), encoding="utf-8")


def _wait_until_idle(cluster: Cluster, layout: Layout, sinfo: str) -> None:
    deadline = time.monotonic() + UP_TIMEOUT_S
    states: dict[str, str] = {}
    while time.monotonic() < deadline:
        record = _read_json(layout.daemons_json)
        ended = sorted(record["exited"]) if record is not None else []
        if not cluster.keeper.alive():
            ended.append("keeper")
        if ended:
            raise DevClusterError(f"{', '.join(ended)} ended at once.\n{_tails(layout)}")
        if record is not None and set(cluster.nodes) <= set(record["started"]):
            states = _node_states(layout, sinfo)
            if set(cluster.nodes) <= states.keys() and set(states.values()) == {"idle"}:
                return
        time.sleep(0.1)
    raise DevClusterError(
        f"not all nodes idle after {UP_TIMEOUT_S:.0f} s (states: {states}).\n{_tails(layout)}"
    )


def _node_states(layout: Layout, sinfo: str) -> dict[str, str]:
    """State of every node, or nothing while the controller does not answer."""
    environment = {**_without_slurm(os.environ), "SLURM_CONF": str(layout.slurm_conf)}
    answer = subprocess.run(
        [sinfo, "--noheader", "--Node", "--format=%N %T"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=UP_TIMEOUT_S,
    )
    if answer.returncode != 0:
        return {}
    return dict(line.split(maxsplit=1) for line in answer.stdout.splitlines())


def _tails(layout: Layout) -> str:
    """The last lines of every log: all that is left to read once the folder is gone."""
    parts = []
    for log in sorted(layout.log_dir.glob("*")):
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-LOG_TAIL_LINES:]
        parts += [f"--- {log.name}", *lines]
    return "\n".join(parts)


def _require_ours(layout: Layout) -> None:
    plan = _read_json(layout.cluster_json)
    owned = layout.state_dir.stat().st_uid == os.geteuid()
    if not owned or plan is None or plan.get("marker") != MARKER:
        raise DevClusterError(f"{layout.state_dir} holds no cluster of ours: nothing was stopped or removed")


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None


def _without_slurm(environ: Mapping[str, str]) -> dict[str, str]:
    """Without the variables of an enclosing Slurm job, which clients would take for options."""
    prefixes = ("SLURM", "SBATCH", "SRUN", "SALLOC", "SQUEUE", "SINFO", "SCANCEL", "SACCT")
    return {key: value for key, value in environ.items() if not key.startswith(prefixes)}


def _free_ports(count: int) -> list[int]:
    """Distinct TCP ports free on every address now (another program may still take one before Slurm does)."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()
