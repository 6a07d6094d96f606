"""A delay line in user space: frames read from one interface leave by another, a fixed time later.

For kernels without the netem queueing discipline. Both ends of a route are interfaces of the namespace in which the
process runs, up and promiscuous, without addresses of their own. Frames are read and written by packet sockets, offload
headers included (`suite.links.packet_socket`). A route without a delay is handed to the kernel, where that has what it
takes (`suite.links.shortcut`).

**Differences** from netem: a frame leaves when this process is scheduled, early or late by tens of microseconds, later
on a machine without a free core (`mean_late_s` in the statistics says by how much), and its time counts from when it was
read, up to 0.2 ms after it came; there is no jitter, loss or reordering, a later frame of a route never overtakes an
earlier one, even where its delay was shortened.

    python -m suite.links.delay_line [--delays FILE] [--no-shortcuts] IN:OUT:SECONDS ...

prints ``ready`` when all sockets are bound. SIGUSR1: read new delays from FILE, ``{"IN": seconds}``, routes that are
not named keep theirs. SIGTERM or SIGINT: one line of JSON with the statistics of `Forwarder.statistics`, and the end.
It also ends with the process that started it. Needs CAP_NET_RAW in the namespace, and CAP_NET_ADMIN for shortcuts.
Standard library only.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from suite.links.forwarder import Forwarder, Route
from suite.links.packet_socket import PacketSocketError
from suite.links.shortcut import Shortcuts

MAX_RATE_BPS = 1e9
"""Bit/s a link, up to which one forwarder carries four workers' links.

Measured on two cores with other work on them, without shortcuts, four gloo ranks in an all-reduce of 50 to 100 MB: links of
2 Gbit/s reached 1.15 Gbit/s, which is what one forwarder can carry, a fifth above what a link of 1 Gbit/s can hold (0.95).
Links of 1 Gbit/s reached 0.95 with no delay and 0.91 with 5 ms; the forwarder then took three quarters of a core.
"""

# <linux/prctl.h>
PR_SET_PDEATHSIG, PR_SET_TIMERSLACK = 1, 29
LAST_IN_QUEUE = 10  # priority among real-time processes; any is above all ordinary ones


def go_first() -> str:
    """Be scheduled before ordinary processes, with exact timers, and end with the parent.

    Answers which scheduling was granted: ``real-time``, ``nice`` or ``ordinary``.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    libc.prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0)
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(LAST_IN_QUEUE))
    except OSError:
        pass
    else:
        return "real-time"
    try:
        os.setpriority(os.PRIO_PROCESS, 0, -10)
    except OSError:
        return "ordinary"
    return "nice"


def run(routes: Sequence[Route], delays: Path | None, shortcuts: bool = True) -> dict[str, Any]:
    """Carry frames until SIGTERM or SIGINT; answers the statistics. Says ``ready`` on standard output."""
    woken, wake = socket.socketpair()
    woken.setblocking(False)
    wake.setblocking(False)
    forwarder = Forwarder(routes, Shortcuts() if shortcuts else None)
    forwarder.settle()
    forwarder.watch(woken)
    signal.set_wakeup_fd(wake.fileno())
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        signal.signal(number, lambda *_: None)  # the wake-up descriptor carries the number
    scheduling = go_first()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while True:
        if not forwarder.turn():
            continue
        numbers = woken.recv(4096)
        if signal.SIGTERM in numbers or signal.SIGINT in numbers:
            found = {**forwarder.statistics(), "scheduling": scheduling}
            forwarder.close()
            return found
        reread(forwarder, delays)


def reread(forwarder: Forwarder, delays: Path | None) -> None:
    """Set the delays that the file holds now; a file that cannot be used is reported, and the old delays stay."""
    if delays is None:
        sys.stderr.write("no new delays: started without --delays FILE\n")
        return
    try:
        found = json.loads(delays.read_text(encoding="utf-8"))
        if not isinstance(found, dict):
            raise ValueError('write {"interface": seconds, ...}')
        forwarder.set_delays(found)
        forwarder.settle()
    except (OSError, ValueError) as error:
        sys.stderr.write(f"{delays}: the delays stay as they were: {error}\n")
        sys.stderr.flush()


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code: 0 well, 1 cannot be set up, 2 wrong arguments."""
    parser = argparse.ArgumentParser(
        prog="python -m suite.links.delay_line",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("routes", metavar="IN:OUT:SECONDS", nargs="+")
    parser.add_argument("--delays", metavar="FILE", type=Path, help="read again on SIGUSR1")
    parser.add_argument("--no-shortcuts", action="store_true", help="carry also what needs no delay")
    args = parser.parse_args(arguments)
    try:
        found = run([Route.parse(text) for text in args.routes], args.delays, not args.no_shortcuts)
    except (PacketSocketError, ValueError) as error:
        sys.stderr.write(f"delay line: {error}\n")
        return 1 if isinstance(error, PacketSocketError) else 2
    try:
        sys.stdout.write(json.dumps(found) + "\n")
        sys.stdout.flush()
    except BrokenPipeError:  # nobody listens any more
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


if __name__ == "__main__":
    sys.exit(main())
