"""The parent of a development cluster's daemons: starts them, and takes everything along when it ends.

Slurm's job steps detach themselves from ``slurmd``, so a list of daemon pids does not hold them all. The
keeper is the subreaper of what it starts: Linux hands it every descendant whose own parent ends. To stop, it kills whatever
descends from it and removes the state folder.

Run by ``up`` as ``python -m tests.slurm.devcluster.keeper STATE_DIR [--tied] [--links FD]``; ends on SIGTERM
or SIGINT, and with ``--tied`` also when its standard input closes, that is with the process that started it. FD is
the tie of the links (`suite.links.cluster.Cluster.tie`), which end with the keeper, however it ends.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import select
import shutil
import signal
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.processes import Process
from tests.suite.links.tour import children

READY_TIMEOUT_S = 60.0
"""Longest that a daemon may take until it can be used."""
NOT_STARTED = 127
"""The shell's exit code for a command that does not exist."""
NOT_READY = 124
"""In place of an exit code, as of `timeout`: the daemon runs and cannot be used."""
LOOK_S = 0.2
PR_SET_CHILD_SUBREAPER = 36
STOP = (signal.SIGTERM, signal.SIGINT)


class Keeper:
    """Who runs: names of daemons by pid, whether all were started, and exit codes of those that have ended, of which a negative
    one is minus the signal's number.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.started = folder, False
        self.names, self.ended = dict[int, str](), dict[str, int]()
        self.write()

    def write(self) -> None:
        """Replace ``keeper.json`` whole."""
        told = {"keeper": asdict(Process.of(os.getpid())), "started": self.started, "ended": self.ended}
        temporary = self.folder / "keeper.json.tmp"
        temporary.write_text(json.dumps(told), encoding="utf-8")
        temporary.replace(self.folder / "keeper.json")

    def start(self, daemon: dict[str, Any]) -> bool:
        """Start one in a session of its own, its output in ``log/<name>.out``; whether it can be used in time."""
        name, argv, ready = daemon["name"], daemon["argv"], daemon.get("ready")
        output = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, self.folder / "log" / f"{name}.out", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ]  # fmt: skip
        try:
            pid = os.posix_spawnp(argv[0], argv, os.environ, file_actions=output, setsid=True, setsigmask=())
        except OSError as error:
            sys.stderr.write(f"{name}: cannot start {argv[0]}: {error.strerror}\n")
            self.ended[name] = NOT_STARTED
            self.write()
            return False
        self.names[pid] = name
        deadline = time.monotonic() + READY_TIMEOUT_S
        while ready and not Path(ready).exists() and name not in self.ended:
            time.sleep(0.02)
            self.reap()
            if time.monotonic() > deadline:
                self.ended[name] = NOT_READY
                self.write()
        return name not in self.ended

    def reap(self) -> None:
        """Collect children that have ended; daemons among them go on record."""
        try:
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                pid, status = found
                if pid in self.names:
                    self.ended[self.names[pid]] = os.waitstatus_to_exitcode(status)
                    self.write()
        except ChildProcessError:
            return

    def wait_for_stop(self, tied: bool) -> None:
        """Wait for SIGTERM or SIGINT; ``tied``: or for standard input to close."""
        while signal.sigtimedwait(STOP, LOOK_S) is None:
            self.reap()
            if tied and select.select([sys.stdin], [], [], 0)[0] and not os.read(sys.stdin.fileno(), 4096):
                return


def kill_descendants() -> None:
    """Kill whatever descends from this process, and collect it."""
    while True:
        for pid in children(os.getpid()):
            os.kill(pid, signal.SIGKILL)  # not reaped yet, hence still this process
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def main() -> None:
    """Start the daemons named in ``cluster.json`` and keep them until told to stop."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tied", action="store_true")
    parser.add_argument("--links", type=int)
    args = parser.parse_args()
    if args.links is not None:
        os.set_inheritable(args.links, False)  # or the links would wait for daemons that outlive the keeper
    plan = json.loads((args.folder / "cluster.json").read_text(encoding="utf-8"))
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP)
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "no subreaper")
    keeper = Keeper(args.folder)
    try:
        # up to the first that cannot be used; whoever waits for all says so
        keeper.started = all(map(keeper.start, plan["daemons"]))
        keeper.write()
        keeper.wait_for_stop(args.tied)
    finally:
        kill_descendants()
        shutil.rmtree(args.folder)


if __name__ == "__main__":
    main()
