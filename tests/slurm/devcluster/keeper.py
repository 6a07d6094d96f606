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
import os
import select
import shutil
import signal
import sys
import time
from pathlib import Path

from tests.processes import Process
from tests.slurm.devcluster.config import Daemon, Layout, Record
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


def start(daemon: Daemon, record: Record, layout: Layout) -> bool:
    """Start one daemon in its own session, its output in ``log/<name>.out``; whether it can be used in time."""
    out = str(layout.log_dir / f"{daemon.name}.out")
    output = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, out, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]
    try:
        pid = os.posix_spawnp(
            daemon.argv[0], daemon.argv, os.environ, file_actions=output, setsid=True, setsigmask=()
        )
    except OSError as error:
        sys.stderr.write(f"{daemon.name}: cannot start {daemon.argv[0]}: {error.strerror}\n")
        record.exited[daemon.name] = NOT_STARTED
        record.write(layout)
        return False
    record.started[daemon.name] = Process.of(pid)
    record.write(layout)
    deadline = time.monotonic() + READY_TIMEOUT_S
    while daemon.ready and not Path(daemon.ready).exists():
        if time.monotonic() > deadline:
            record.exited[daemon.name] = NOT_READY
            record.write(layout)
        if daemon.name in record.exited:
            return False
        time.sleep(0.02)
        reap(record, layout)
    return True


def reap(record: Record, layout: Layout) -> None:
    """Collect children that have ended; daemons among them go on record (minus the signal's number where one killed it)."""
    names = {process.pid: name for name, process in record.started.items()}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        if pid in names:
            record.exited[names[pid]] = os.waitstatus_to_exitcode(status)
            record.write(layout)


def wait_for_stop(record: Record, layout: Layout, tied: bool) -> None:
    """Wait for SIGTERM or SIGINT; ``tied``: or for standard input to close."""
    while signal.sigtimedwait(STOP, LOOK_S) is None:
        reap(record, layout)
        if tied and select.select([sys.stdin], [], [], 0)[0] and not os.read(sys.stdin.fileno(), 4096):
            return


def main() -> None:
    """Start the daemons named in ``cluster.json`` and keep them until told to stop."""
    parser = argparse.ArgumentParser()
    parser.add_argument("state_dir", type=Path)
    parser.add_argument("--tied", action="store_true")
    parser.add_argument("--links", type=int)
    args = parser.parse_args()
    if args.links is not None:
        os.set_inheritable(args.links, False)  # or the links would wait for daemons that outlive the keeper
    layout = Layout(args.state_dir)
    plan = layout.plan()
    if plan is None:
        parser.error(f"{layout.cluster_json} was not written by this program")
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP)
    become_subreaper()
    record = Record(Process.of(os.getpid()))
    try:
        # up to the first that cannot be used; whoever waits for the cluster says so
        all(start(Daemon(**{**one, "argv": tuple(one["argv"])}), record, layout) for one in plan["daemons"])
        wait_for_stop(record, layout, args.tied)
    finally:
        kill_descendants()
        shutil.rmtree(layout.state_dir)


if __name__ == "__main__":
    main()
