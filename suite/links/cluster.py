"""An emulated cluster in one machine: a network namespace a worker, one switch, and wires of known rate and delay.

::

    with up(Link.parse(4, "100mbit", delay="5ms")) as cluster:
        subprocess.Popen([*cluster.enter(0), sys.executable, "-m", "..."])   # worker 0, at cluster.addresses[0]
        cluster.shape(Link.parse(4, "1gbit"))                                # another link, while it runs

It needs ``ip``, ``tc`` and ``nsenter``, and root's privileges or leave to make user namespaces. Nothing of the
machine's own network is touched. Processes are kept by ``keeper.py``; nothing stays when it ends.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any

from suite.links import topology
from suite.links.keeper import CHECKOUT, Layout, Plan, State, carry_out
from suite.links.link import Link, LinkError
from suite.links.process import CommandError, Process, find_program, program_environment
from suite.links.topology import Counters, entry

UP_TIMEOUT_S = 30.0
UP_TIMEOUT_PER_WORKER_S = 0.5
STOP_TIMEOUT_S = 20.0
LOG_TAIL_LINES = 8
PROGRAMS = ("ip", "tc", "nsenter")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


class ClusterError(RuntimeError):
    """The cluster cannot be brought up, used or taken down; the message says why and what to do."""


@dataclass
class Cluster:
    """A running cluster. ``link``: as it is now; ``addresses``: of every rank."""

    state_dir: Path
    _popen: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def link(self) -> Link:
        """The link as it is now."""
        return self._plan().link

    @property
    def addresses(self) -> tuple[str, ...]:
        """IPv4 address of every rank, each on its worker's ``eth0``."""
        return topology.addresses(self.link.workers)

    @property
    def delay(self) -> topology.Delay:
        """What delays packets: ``none`` (no delay can be set) or ``netem``."""
        return self._state().delay

    def enter(self, rank: int, *, as_self: bool = False) -> tuple[str, ...]:
        """What stands before a command to run it on worker ``rank``; ``as_self``: see `suite.links.topology.entry`."""
        return entry(self.holder(rank).pid, self._state().user_namespace, as_self)

    def enter_switch(self, *, as_self: bool = False) -> tuple[str, ...]:
        """What stands before a command to run it where the switch is, at `topology.SWITCH_ADDRESS`."""
        state = self._state()
        return entry(state.keeper.pid, state.user_namespace, as_self)

    def holder(self, rank: int) -> Process:
        """The process that keeps the namespace of worker ``rank``."""
        holder = self._state().holders[self._rank(rank)]
        if not holder.alive():
            raise ClusterError(f"worker {rank} has ended: take the cluster down and bring it up again")
        return holder

    def tie(self) -> int:
        """The descriptor to which a tied cluster is tied: handed to another process, it lasts as long as that."""
        if self._popen is None or self._popen.stdin is None:
            raise ClusterError("this cluster is not tied to this process")
        return self._popen.stdin.fileno()

    def shape(self, link: Link) -> None:
        """Change rates, stragglers and delay of the running cluster; what is under way on a wire is lost.

        The number of workers stays. A delay can be set where the cluster was brought up with one, or with ``delays=True``.

        Args:
            link: The link as it is to be.

        Raises:
            LinkError: The link cannot be had here.
            ClusterError: It was not changed, or in part only.
        """
        plan, state = self._plan(), self._state()
        if link.workers != plan.link.workers:
            raise LinkError(
                f"{link.workers} workers: this cluster has {plan.link.workers}; bring another one up"
            )
        if link.delay_s and state.delay == "none":
            raise LinkError("this cluster cannot delay: bring it up with a delay, or with delays=True")
        # A number of 16 bits that differs from the last one, and is not 0, which stands for "none".
        generation = plan.generation % 0xFFF0 + 1
        commands = topology.shape(link, state.delay, generation)
        try:
            carry_out(commands, self.enter_switch(), [self.enter(rank) for rank in range(link.workers)])
        except CommandError as error:
            raise ClusterError(f"the link was not changed, or in part only: {error}") from error
        replace(plan, link=link, generation=generation).write(Layout(self.state_dir))

    def counters(self, rank: int) -> Counters:
        """What worker ``rank`` has sent and received since it stands. Raises ClusterError."""
        try:
            counters = topology.read_counters(self.enter(rank))
        except CommandError as error:
            raise ClusterError(str(error)) from error
        if counters is None:
            raise ClusterError(f"worker {rank} has no {topology.INTERFACE}: the cluster is going down")
        return counters

    def down(self) -> None:
        """Stop every process of the cluster and remove its folder. Harmless when it is down already."""
        down(self.state_dir)
        if self._popen is not None:
            self._popen.terminate()  # it ended, or never got so far as to write a state
            self._popen.wait(STOP_TIMEOUT_S)
            if self._popen.stdin is not None:
                self._popen.stdin.close()
        if self.state_dir.exists():
            shutil.rmtree(self.state_dir)

    def __enter__(self) -> Cluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.down()

    def _rank(self, rank: int) -> int:
        workers = self.link.workers
        if not 0 <= rank < workers:
            raise ClusterError(f"no worker {rank}: there are 0 to {workers - 1}")
        return rank

    def _plan(self) -> Plan:
        return _require_ours(Layout(self.state_dir))

    def _state(self) -> State:
        state = State.read(Layout(self.state_dir))
        if state is None or not state.ready or not state.keeper.alive():
            raise ClusterError(f"no cluster is up in {self.state_dir}")
        return state


def up(
    link: Link, *, state_dir: Path | None = None, tied: bool = True, delays: bool | None = None
) -> Cluster:
    """Bring a cluster up and return once packets can pass.

    Args:
        link: What to build.
        state_dir: A folder that is empty or does not exist; default a new one among the temporary files.
        tied: Whether the cluster ends with this process, however that ends. Otherwise it stays until ``down(state_dir)``.
        delays: Build what they need even where ``link`` has none now, for `Cluster.shape`; default: if it has one.

    Returns:
        The running cluster.

    Raises:
        ClusterError: A program is missing, the system forbids namespaces, or the folder is in use.
        LinkError: The link cannot be had here.
    """
    missing = [name for name in PROGRAMS if find_program(name) is None]
    if missing:
        raise ClusterError(
            f"{', '.join(missing)} not found: install iproute2 and util-linux "
            "(`sudo apt-get install iproute2 util-linux`)"
        )
    layout = _new_folder(state_dir)
    command = [sys.executable, "-m", "suite.links.keeper", str(layout.state_dir)]
    with ExitStack() as undo:  # when it fails, and when it is interrupted
        undo.callback(shutil.rmtree, layout.state_dir, ignore_errors=True)
        Plan(link, delays=bool(link.delay_s) if delays is None else delays).write(layout)
        with layout.log.open("wb") as out:
            popen = subprocess.Popen(
                command + ["--tied"] * tied,
                cwd=CHECKOUT,
                env=program_environment(),
                stdin=subprocess.PIPE if tied else subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        cluster = Cluster(layout.state_dir, popen)
        undo.callback(cluster.down)
        _wait_until_ready(layout, popen, link.workers)
        undo.pop_all()
    return cluster


def attach(state_dir: Path) -> Cluster:
    """The cluster that is up in a folder.

    Args:
        state_dir: The folder.

    Returns:
        The cluster.

    Raises:
        ClusterError: None is up there.
    """
    cluster = Cluster(state_dir.resolve())
    if not cluster.state_dir.exists():
        raise ClusterError(f"no cluster is up in {cluster.state_dir}")
    cluster._plan()
    cluster._state()
    return cluster


def down(state_dir: Path) -> None:
    """Stop the cluster of a folder and remove the folder; nothing happens where there is no such folder.

    Programs that somebody runs on a worker lose its network and are left alone otherwise.

    Args:
        state_dir: The folder.

    Raises:
        ClusterError: The folder is not a cluster's, or its processes do not end.
    """
    layout = Layout(state_dir.resolve())
    if not layout.state_dir.exists():
        return
    _require_ours(layout)
    state = State.read(layout)
    if state is not None:
        state.keeper.signal(signal.SIGTERM)
        if not state.keeper.wait_s(STOP_TIMEOUT_S):
            raise ClusterError(
                f"the cluster's keeper (pid {state.keeper.pid}) does not end; see {layout.log}"
            )
        # Only where the keeper itself was killed is there anything left to do.
        for holder in state.holders:
            holder.stop()
    if layout.state_dir.exists():
        shutil.rmtree(layout.state_dir)


def status(state_dir: Path) -> dict[str, Any]:
    """How the cluster of ``state_dir`` stands, as plain values.

    ``state``: ``up``; ``down`` (there is none); ``broken`` (something of it has ended: `down` cleans up), with a
    ``reason``. Where it is not down also the link, its label, what delays, and address and pid of every worker.
    """
    layout = Layout(state_dir.resolve())
    plan, state = Plan.read(layout), State.read(layout)
    if plan is None:
        return {"state": "down", "state_dir": str(layout.state_dir)}
    reason = _what_is_broken(state)
    holders = [] if state is None else state.holders
    return {
        "state": "broken" if reason else "up",
        "reason": reason,
        "state_dir": str(layout.state_dir),
        "link": plan.link.as_dict(),
        "label": plan.link.label,
        "delay": "none" if state is None else state.delay,
        "workers": [
            {"rank": rank, "address": address, "pid": holder.pid, "alive": holder.alive()}
            for rank, (holder, address) in enumerate(
                zip(holders, topology.addresses(plan.link.workers), strict=False)
            )
        ],
    }


def default_state_dir(name: str = "default") -> Path:
    """Where this user's cluster of that name lives, among the temporary files. Raises LinkError for a strange name."""
    if not NAME.fullmatch(name):
        raise LinkError(f"cluster name {name!r}: choose letters, digits, dots, - and _")
    return Path(tempfile.gettempdir()) / f"bandwise-cluster-{os.geteuid()}-{name}"


def _new_folder(state_dir: Path | None) -> Layout:
    if state_dir is None:
        state_dir = default_state_dir(secrets.token_hex(4))
    layout = Layout(state_dir.resolve())
    layout.state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    if layout.state_dir.stat().st_uid != os.geteuid():
        raise ClusterError(f"{layout.state_dir} belongs to another user; choose another folder")
    if any(layout.state_dir.iterdir()):
        raise ClusterError(
            f"{layout.state_dir} is not empty: a cluster is up there (`down` ends it), or it is not for this"
        )
    layout.state_dir.chmod(0o700)
    try:
        layout.link_json.touch(exist_ok=False)
    except FileExistsError as error:
        raise ClusterError(f"{layout.state_dir}: another cluster is being brought up there") from error
    return layout


def _wait_until_ready(layout: Layout, popen: subprocess.Popen[bytes], workers: int) -> None:
    timeout_s = UP_TIMEOUT_S + UP_TIMEOUT_PER_WORKER_S * workers
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        ended = popen.poll() is not None
        state = State.read(layout)
        if state is not None and state.error is not None:
            _raise(state.error, layout)
        if state is not None and state.ready and not ended:
            return
        if ended:
            raise ClusterError(f"the keeper ended at once.\n{_tail(layout)}")
        time.sleep(0.01)
    raise ClusterError(f"the cluster is not ready after {timeout_s:.0f} s.\n{_tail(layout)}")


def _raise(error: dict[str, str], layout: Layout) -> None:
    message = error["message"]
    if error["kind"] == "link":
        raise LinkError(message)
    if error["kind"] == "namespaces":
        from suite.links import doctor

        finding = doctor.obstacle()
        why = (
            "`bandwise session --doctor` says more"
            if finding is None
            else f"{finding.detail}. {finding.fix}".strip()
        )
        raise ClusterError(f"no cluster can be made here ({message}): {why}")
    raise ClusterError(f"{message}\n{_tail(layout)}".rstrip())


def _what_is_broken(state: State | None) -> str:
    if state is None or not state.keeper.alive():
        return "its keeper has ended"
    if state.exited:
        return ", ".join(f"{name} ended with code {code}" for name, code in state.exited.items())
    return "" if state.ready else "not ready"


def _require_ours(layout: Layout) -> Plan:
    plan = Plan.read(layout)
    if plan is None or layout.state_dir.stat().st_uid != os.geteuid():
        raise ClusterError(f"{layout.state_dir} holds no cluster of ours: nothing was stopped or removed")
    return plan


def _tail(layout: Layout) -> str:
    """The last lines of the log: all that is left to read once the folder is gone."""
    try:
        text = layout.log.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return ""
    return "\n".join(text.splitlines()[-LOG_TAIL_LINES:])
