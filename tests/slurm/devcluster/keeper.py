"""The parent of a development cluster's daemons: starts them, and takes everything along when it ends.

Slurm's job steps detach themselves from ``slurmd``, so a list of daemon pids does not hold them all. The
keeper is the subreaper of what it starts: Linux hands it every descendant whose own parent ends. To stop, it kills whatever
descends from it and removes the state folder.

Run by ``up`` as ``python -m tests.slurm.devcluster.keeper STATE_DIR [--tied] [--links FD]``; ends on SIGTERM
or SIGINT, and with ``--tied`` also when its standard input closes, that is with the process that started it. FD is
the tie of the links (`suite.links.cluster.Cluster.tie`), which end with the keeper, however it ends. SIGUSR1 tells it
to look into the folder of requests.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import select
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.slurm.devcluster.config import Daemon, Layout, Record
from tests.suite.links.tour import Process, children

READY_TIMEOUT_S = 60.0
"""Longest that a daemon may take until it can be used; a new database takes some seconds."""

NOT_STARTED = 127
"""The shell's exit code for a command that does not exist."""

NOT_READY = 124
"""In place of an exit code, as of `timeout`: the daemon runs and cannot be used."""


PR_SET_CHILD_SUBREAPER = 36


def become_subreaper() -> None:
    """Make this process the parent of descendants whose parent ends. Raises OSError where the kernel refuses."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "no subreaper")


def kill_descendants() -> None:
    """Kill whatever descends from this process, and collect it."""
    while True:
        for pid in children(os.getpid()):
            os.kill(pid, signal.SIGKILL)  # not reaped yet, hence still this process
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def ended_children() -> list[tuple[int, int]]:
    """Collect children that have ended: pid and exit code (minus the signal's number where one killed it)."""
    ended: list[tuple[int, int]] = []
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended.append((pid, os.waitstatus_to_exitcode(status)))


class Signals:
    """SIGTERM, SIGINT, SIGCHLD and ``further`` signals of this process, from its making on, to be waited for with
    `wait_for_stop`."""

    def __init__(self, *further: int) -> None:
        self._woken, self._wake = socket.socketpair()
        self._wake.setblocking(False)
        signal.set_wakeup_fd(self._wake.fileno())
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, *further):
            signal.signal(number, _carried_by_the_wakeup_descriptor)

    def wait_for_stop(self, attend: Callable[[], None], tied: bool) -> None:
        """Wait for SIGTERM or SIGINT; ``tied``: or for standard input to close. Calls ``attend`` at any other signal."""
        watched = [self._woken, *([sys.stdin] if tied else [])]
        while True:
            readable, _, _ = select.select(watched, [], [])
            if self._woken in readable:
                numbers = self._woken.recv(4096)
                if signal.SIGTERM in numbers or signal.SIGINT in numbers:
                    return
                attend()
            if sys.stdin in readable and not os.read(sys.stdin.fileno(), 4096):
                return


def _carried_by_the_wakeup_descriptor(number: int, frame: object) -> None:
    """A handler must exist for the number to be written to the descriptor; it has nothing else to do."""


@dataclass
class Keeper:
    """What a keeper keeps: the daemons that the plan names, and the record of those it started."""

    layout: Layout
    daemons: Mapping[str, Daemon]
    record: Record

    def start_all(self) -> None:
        """Start the daemons in their order, up to the first that cannot be used; whoever waits for the cluster says so."""
        for daemon in self.daemons.values():
            if not self.start(daemon):
                return

    def start(self, daemon: Daemon) -> bool:
        """Start one daemon in its own session, its output in ``log/<name>.out``; wait until it is ready.

        False where it cannot be started, ended, or was not ready in time.
        """
        out = str(self.layout.log_dir / f"{daemon.name}.out")
        output = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, out, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ]
        self.record.exited.pop(daemon.name, None)
        try:
            pid = os.posix_spawnp(daemon.argv[0], daemon.argv, os.environ, file_actions=output, setsid=True)
        except OSError as error:
            sys.stderr.write(f"{daemon.name}: cannot start {daemon.argv[0]}: {error.strerror}\n")
            self.record.exited[daemon.name] = NOT_STARTED
            self.record.write(self.layout)
            return False
        self.record.started[daemon.name] = Process.of(pid)
        self.record.write(self.layout)
        deadline = time.monotonic() + READY_TIMEOUT_S
        while not self.is_ready(daemon):
            if time.monotonic() > deadline:
                self.record.exited[daemon.name] = NOT_READY
                self.record.write(self.layout)
            if daemon.name in self.record.exited:
                return False
            time.sleep(0.02)
            self.reap()
        return True

    def is_ready(self, daemon: Daemon) -> bool:
        """Whether what needs the daemon can be started."""
        if daemon.once:
            return daemon.name not in self.record.started and daemon.name not in self.record.exited
        return not daemon.ready or Path(daemon.ready).exists()

    def reap(self) -> None:
        """Collect children that have ended; daemons among them go on record, unless they have done their work."""
        names = {process.pid: name for name, process in self.record.started.items()}
        for pid, code in ended_children():
            name = names.get(pid)
            if name is None:
                continue
            if self.daemons[name].once and code == 0:
                del self.record.started[name]
            else:
                self.record.exited[name] = code
            self.record.write(self.layout)

    def attend(self) -> None:
        """What there is to do at a signal: collect what has ended, start again what is asked for."""
        self.reap()
        for name, daemon in self.daemons.items():
            request = self.layout.requests_dir / name
            if request.exists():
                self.start(daemon)
                request.unlink()

    def stop(self) -> None:
        """Kill what descends from this process, whatever it is, then remove the state folder."""
        kill_descendants()
        shutil.rmtree(self.layout.state_dir)


def run(layout: Layout, tied: bool) -> None:
    """Start the daemons named in ``cluster.json`` and keep them until told to stop."""
    plan = layout.plan()
    if plan is None:
        raise ValueError(f"{layout.cluster_json} was not written by this program")
    entries = [Daemon(**{**entry, "argv": tuple(entry["argv"])}) for entry in plan["daemons"]]
    become_subreaper()
    signals = Signals(signal.SIGUSR1)
    keeper = Keeper(layout, {daemon.name: daemon for daemon in entries}, Record(Process.of(os.getpid())))
    try:
        keeper.start_all()
        signals.wait_for_stop(keeper.attend, tied)
    finally:
        keeper.stop()


def main() -> None:
    """Read the arguments, keep the cluster."""
    parser = argparse.ArgumentParser()
    parser.add_argument("state_dir", type=Path)
    parser.add_argument("--tied", action="store_true")
    parser.add_argument("--links", type=int)
    args = parser.parse_args()
    if args.links is not None:
        os.set_inheritable(args.links, False)  # or the links would wait for daemons that outlive the keeper
    run(Layout(args.state_dir), args.tied)


if __name__ == "__main__":
    main()
