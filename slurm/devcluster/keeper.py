"""The parent of a development cluster's daemons: starts them, and takes everything along when it ends.

Slurm's job steps detach themselves from ``slurmd``, so a list of daemon pids does not hold them all. The
keeper is the subreaper of what it starts (`suite.links.subreaper`): to stop, it kills whatever descends from
it. Then it removes the state folder.

Run by ``slurm.devcluster.up`` as ``python -m slurm.devcluster.keeper STATE_DIR [--tied]``; ends on SIGTERM or
SIGINT, and with ``--tied`` also when its standard input closes, that is with the process that started it.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

from slurm.devcluster.config import MARKER, Daemon, Layout
from suite.links.process import Process
from suite.links.subreaper import Signals, become_subreaper, ended_children, kill_descendants

READY_TIMEOUT_S = 10.0
NOT_STARTED = 127
"""The shell's exit code for a command that does not exist."""


@dataclass
class Keeper:
    """The state of a keeper: what it started, and how what has ended ended."""

    layout: Layout
    started: dict[str, Process] = field(default_factory=dict)
    exited: dict[str, int] = field(default_factory=dict)

    def start(self, daemon: Daemon) -> bool:
        """Start one daemon in its own session, its output in ``log/<name>.out``; wait until it is ready.

        False where it cannot be started, ended, or was not ready in time; whoever waits for the cluster says so.
        """
        out = str(self.layout.log_dir / f"{daemon.name}.out")
        output = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, out, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ]
        try:
            pid = os.posix_spawnp(daemon.argv[0], daemon.argv, os.environ, file_actions=output, setsid=True)
        except OSError as error:
            sys.stderr.write(f"{daemon.name}: cannot start {daemon.argv[0]}: {error.strerror}\n")
            self.exited[daemon.name] = NOT_STARTED
            self.record()
            return False
        self.started[daemon.name] = Process.of(pid)
        self.record()
        deadline = time.monotonic() + READY_TIMEOUT_S
        while daemon.ready and not Path(daemon.ready).exists():
            if daemon.name in self.exited or time.monotonic() > deadline:
                return False
            time.sleep(0.02)
            self.reap()
        return True

    def record(self) -> None:
        """Write who runs to ``daemons.json`` (whole or not at all)."""
        record = {
            "keeper": asdict(Process.of(os.getpid())),
            "started": {name: asdict(process) for name, process in self.started.items()},
            "exited": self.exited,
        }
        temporary = self.layout.daemons_json.with_suffix(".tmp")
        temporary.write_text(json.dumps(record, indent=1), encoding="utf-8")
        temporary.replace(self.layout.daemons_json)

    def reap(self) -> None:
        """Collect children that have ended; daemons among them go on record with their exit code."""
        names = {process.pid: name for name, process in self.started.items()}
        for pid, code in ended_children():
            if pid in names:
                self.exited[names[pid]] = code
                self.record()

    def stop(self) -> None:
        """Kill what descends from this process, whatever it is, then remove the state folder."""
        kill_descendants()
        shutil.rmtree(self.layout.state_dir)


def run(layout: Layout, tied: bool) -> None:
    """Start the daemons named in ``cluster.json`` and keep them until told to stop."""
    plan = json.loads(layout.cluster_json.read_text(encoding="utf-8"))
    if plan["marker"] != MARKER:
        raise ValueError(f"{layout.cluster_json} was not written by this program")
    become_subreaper()
    signals = Signals()
    keeper = Keeper(layout)
    try:
        for entry in plan["daemons"]:
            if not keeper.start(Daemon(entry["name"], tuple(entry["argv"]), entry["ready"])):
                break
        signals.until_told(keeper.reap, tied)
    finally:
        keeper.stop()


if __name__ == "__main__":
    run(Layout.of(Path(sys.argv[1])), tied="--tied" in sys.argv[2:])
