"""The parent of an emulated cluster: makes its namespaces and wires, and takes everything along when it ends.

The keeper moves into a network namespace of its own, which holds the switch, and starts one *holder* a worker, a
process that does nothing but keep the worker's namespace alive. No namespace has a name, so that the kernel removes
them, and every wire in them, once these processes have ended. Holders and the delay line die with the keeper, even
when that is killed; what it started stands in ``state.json``.

Run by `suite.links.cluster.up` as ``python -m suite.links.keeper STATE_DIR [--tied]``; ends on SIGTERM or SIGINT, and
with ``--tied`` also when its standard input closes, that is with the process that started it. Standard library only.
"""

from __future__ import annotations

import os
import select
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

from suite.links import delay_line, topology
from suite.links.link import Link, LinkError, rate_words
from suite.links.namespaces import NamespaceError, enter_new_network, entry, hold_network
from suite.links.process import Process
from suite.links.state import Layout, Plan, State, write_json
from suite.links.subreaper import (
    Signals,
    become_subreaper,
    die_with_parent,
    ended_children,
    kill_descendants,
)
from suite.links.system import CommandError, environ, run

CHECKOUT = Path(__file__).resolve().parents[2]
READY_TIMEOUT_S = 10.0
WORKERS_OF_THE_LIMIT = 4
"""`delay_line.MAX_RATE_BPS` holds for so many workers."""


class Keeper:
    """What one keeper has started."""

    def __init__(self, layout: Layout) -> None:
        plan = Plan.read(layout)
        if plan is None:
            raise ValueError(f"{layout.link_json} was not written by this program")
        self.layout = layout
        self.plan = plan
        self.state = State(Process.of(os.getpid()))

    def build(self) -> None:
        """Make namespaces, switch and wires. What keeps it from that goes on record."""
        try:
            self._build()
        except NamespaceError as error:
            self._fail("namespaces", error)
        except LinkError as error:
            self._fail("link", error)
        except CommandError as error:
            refused = "Operation not permitted" in str(error)
            self._fail("namespaces" if refused else "other", error)
        self.state.write(self.layout)

    def _build(self) -> None:
        link, state = self.plan.link, self.state
        state.write(self.layout)
        state.user_namespace = enter_new_network()
        if self.plan.delay_line:
            state.delay = "netem" if has_netem() else "line"
            if state.delay == "line":
                check_delay_line(link)
        for _ in range(link.workers):
            state.holders.append(Process.of(hold_network()))
            state.write(self.layout)
        holders = [holder.pid for holder in state.holders]
        entries = [entry(holder, user_namespace=False) for holder in holders]  # we are in the user namespace
        carry_out(topology.build(link, state.delay, holders), (), entries)
        carry_out(topology.shape(link, state.delay, self.plan.generation), (), entries)
        if state.delay == "line":
            self._start_delay_line()
        state.ready = True

    def _start_delay_line(self) -> None:
        link = self.plan.link
        write_json(self.layout.delays_json, topology.delay_line_delays(link))
        argv = [sys.executable, "-m", "suite.links.delay_line", "--delays", str(self.layout.delays_json)]
        line = subprocess.Popen(
            [*argv, *topology.delay_line_routes(link)],
            cwd=CHECKOUT,
            env=environ(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            preexec_fn=partial(die_with_parent, os.getpid()),
        )
        self.state.delay_line = Process.of(line.pid)
        self.state.write(self.layout)
        assert line.stdout is not None
        readable, _, _ = select.select([line.stdout], [], [], READY_TIMEOUT_S)
        if not readable or line.stdout.readline() != b"ready\n":
            raise CommandError("the delay line does not start")

    def _fail(self, kind: str, error: Exception) -> None:
        self.state.error = {"kind": kind, "message": str(error)}

    def reap(self) -> None:
        """Collect children that have ended; those that should run go on record with their exit code."""
        names = {holder.pid: f"worker {rank}" for rank, holder in enumerate(self.state.holders)}
        if self.state.delay_line is not None:
            names[self.state.delay_line.pid] = "delay line"
        for pid, code in ended_children():
            if pid in names:
                self.state.exited[names[pid]] = code
                self.state.write(self.layout)

    def stop(self) -> None:
        """Kill what descends from this process, then remove the state folder."""
        kill_descendants()
        shutil.rmtree(self.layout.state_dir)


def carry_out(
    commands: list[topology.Command], to_hub: tuple[str, ...], to_workers: list[tuple[str, ...]]
) -> None:
    """Run commands in their namespaces, each behind what leads there. Raises CommandError."""
    for command in commands:
        prefix = to_hub if command.rank is None else to_workers[command.rank]
        run([*prefix, *command.argv])


def has_netem() -> bool:
    """Whether the kernel can delay packets, tried on the loopback interface of this (new) namespace."""
    try:
        run(["tc", "qdisc", "add", "dev", "lo", "root", "netem", "delay", "1ms"])
    except CommandError:
        return False
    run(["tc", "qdisc", "del", "dev", "lo", "root"])
    return True


def check_delay_line(link: Link) -> None:
    """Raise LinkError where the delay line would not keep up with the link."""
    limit_bps = delay_line.MAX_RATE_BPS * min(1.0, WORKERS_OF_THE_LIMIT / link.workers)
    fastest_bps = max(link.rate_bps, link.down_bps or 0.0)
    if fastest_bps > limit_bps:
        raise LinkError(
            f"{rate_words(fastest_bps)} with a delay: this kernel has no netem, and the delay line in user space "
            f"carries {link.workers} workers at up to {rate_words(limit_bps)}; choose a lower rate or no delay"
        )


def main(state_dir: Path, tied: bool) -> None:
    """Build the cluster that ``link.json`` describes, and keep it until told to stop."""
    keeper = Keeper(Layout(state_dir))
    become_subreaper()
    signals = Signals()
    try:
        keeper.build()
        signals.until_told(keeper.reap, tied)
    finally:
        keeper.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), tied="--tied" in sys.argv[2:])
