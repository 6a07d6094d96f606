"""The parent of an emulated cluster, and the state folder by which it and `suite.links.cluster` know of each other.

Two small JSON files lie in the folder, each with one writer, both replaced whole. ``link.json`` is written by whoever
brings the cluster up or changes its link: what to build. ``state.json`` is written by the keeper: what stands, and which
processes are ours.

The keeper makes namespaces and wires, and takes everything along when it ends. It moves into a network namespace of its
own, which holds the switch, and starts one *holder* a worker, a process that does nothing but keep the worker's namespace
alive. No namespace has a name, so that the kernel removes them, and every wire in them, once these processes have ended.
Holders and the delay line die with the keeper, even when that is killed.

`suite.links.cluster.up` runs it as ``python -m suite.links.keeper STATE_DIR [--tied]``; it ends on SIGTERM or SIGINT, and
with ``--tied`` also when its standard input closes, that is with the process that started it. Standard library only.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from suite.links import delay_line, topology
from suite.links.link import Link, LinkError, rate_words
from suite.links.process import (
    CommandError,
    Process,
    Signals,
    become_subreaper,
    die_with_parent,
    ended_children,
    kill_descendants,
    program_environment,
    run_program,
)
from suite.links.topology import Delay, NamespaceError, enter_new_network, entry, hold_network

MARKER = "bandwise-cluster-1"
"""Stands in ``link.json``: a folder without it is never removed, and no process in it is signalled."""


@dataclass(frozen=True)
class Layout:
    """Where things lie below the state folder."""

    state_dir: Path

    @property
    def link_json(self) -> Path:
        """The `Plan`."""
        return self.state_dir / "link.json"

    @property
    def state_json(self) -> Path:
        """The `State`."""
        return self.state_dir / "state.json"

    @property
    def delays_json(self) -> Path:
        """What the delay line reads when it is told that the link has changed."""
        return self.state_dir / "delays.json"

    @property
    def log(self) -> Path:
        """What the keeper and the delay line say."""
        return self.state_dir / "keeper.log"


@dataclass(frozen=True)
class Plan:
    """The link as it is to be. delay_line: delays can be set, even where the link has none now. generation: how many
    times the link was set."""

    link: Link
    delay_line: bool
    generation: int = 1

    def write(self, layout: Layout) -> None:
        """Replace ``link.json``."""
        values = {"link": self.link.as_dict(), "delay_line": self.delay_line, "generation": self.generation}
        write_json(layout.link_json, {"marker": MARKER, **values})

    @classmethod
    def read(cls, layout: Layout) -> Plan | None:
        """The plan in the folder; None where the folder is none of ours."""
        values = read_json(layout.link_json)
        if values is None or values.pop("marker", None) != MARKER:
            return None
        return cls(**{**values, "link": Link.from_dict(values["link"])})


@dataclass
class State:
    """What stands. holders: the process in each worker's namespace, by rank. exited: name -> exit code of what should
    run and does not. error: what kept the keeper from building the cluster, as ``{"kind", "message"}``; kinds are
    ``namespaces``, ``link`` and ``other``."""

    keeper: Process
    ready: bool = False
    user_namespace: bool = False
    delay: Delay = "none"
    holders: list[Process] = field(default_factory=list)
    delay_line: Process | None = None
    exited: dict[str, int] = field(default_factory=dict)
    error: dict[str, str] | None = None

    def write(self, layout: Layout) -> None:
        """Replace ``state.json``."""
        write_json(layout.state_json, asdict(self))

    @classmethod
    def read(cls, layout: Layout) -> State | None:
        """The state in the folder; None where no keeper has written any yet."""
        values = read_json(layout.state_json)
        if values is None:
            return None
        line = values["delay_line"]
        return cls(
            **{
                **values,
                "keeper": Process(**values["keeper"]),
                "holders": [Process(**holder) for holder in values["holders"]],
                "delay_line": None if line is None else Process(**line),
            }
        )

    def processes(self) -> list[Process]:
        """Everything that the keeper started and recorded."""
        return [*([] if self.delay_line is None else [self.delay_line]), *self.holders]


def read_json(path: Path) -> dict[str, Any] | None:
    """What a file holds, None where it holds no JSON object or does not exist."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, json.JSONDecodeError):
        return None
    return values if isinstance(values, dict) else None


def write_json(path: Path, values: dict[str, Any]) -> None:
    """Replace a file whole."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    temporary.write_text(json.dumps(values, indent=1), encoding="utf-8")
    temporary.replace(path)


# The keeper


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
            env=program_environment(),
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
        run_program([*prefix, *command.argv])


def has_netem() -> bool:
    """Whether the kernel can delay packets, tried on the loopback interface of this (new) namespace."""
    try:
        run_program(["tc", "qdisc", "add", "dev", "lo", "root", "netem", "delay", "1ms"])
    except CommandError:
        return False
    run_program(["tc", "qdisc", "del", "dev", "lo", "root"])
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
        signals.wait_for_stop(keeper.reap, tied)
    finally:
        keeper.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), tied="--tied" in sys.argv[2:])
