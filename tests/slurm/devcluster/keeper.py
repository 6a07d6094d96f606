"""The parent of a development cluster's daemons: starts them, and takes everything along when it ends.

Slurm's job steps detach themselves from ``slurmd``, so a list of daemon pids does not hold them all. The
keeper is the subreaper of what it starts (`suite.links.process`): to stop, it kills whatever descends from
it, takes the links down where there are any, and removes the state folder.

Run by ``up`` as ``python -m tests.slurm.devcluster.keeper STATE_DIR [--tied] [--links FD]``; ends on SIGTERM
or SIGINT, and with ``--tied`` also when its standard input closes, that is with the process that started it. FD is
the tie of the links (`suite.links.cluster.Cluster.tie`), which end with the keeper, however it ends. SIGUSR1 tells it
to look into the folder of requests.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from suite.links import cluster as links_cluster
from suite.links.process import Process, Signals, become_subreaper, ended_children, kill_descendants
from tests.slurm.devcluster.config import Daemon, Layout, Record

READY_TIMEOUT_S = 60.0
"""Longest that a daemon may take until it can be used; a new database takes some seconds."""

NOT_STARTED = 127
"""The shell's exit code for a command that does not exist."""

NOT_READY = 124
"""In place of an exit code, as of `timeout`: the daemon runs and cannot be used."""


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
        """Kill what descends from this process, whatever it is, then remove links and state folder."""
        kill_descendants()
        links_cluster.down(self.layout.links_dir)
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
