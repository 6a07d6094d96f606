"""The parent of an emulated cluster, and the state folder by which it and `suite.links.cluster` know of each other.

Two small JSON files lie in the folder, each with one writer, both replaced whole. ``link.json`` is written by whoever
brings the cluster up or changes its link: what to build. ``state.json`` is written by the keeper: what stands, and which
processes are ours.

The keeper makes namespaces and wires, and takes everything along when it ends. It moves into a network namespace of its
own, which holds the switch, and starts one *holder* a worker, a process that does nothing but keep the worker's namespace
alive. No namespace has a name, so that the kernel removes them, and every wire in them, once these processes have ended.
Holders die with the keeper, even when that is killed.

`suite.links.cluster.up` runs it as ``python -m suite.links.keeper STATE_DIR [--tied]``; it ends on SIGTERM or SIGINT, and
with ``--tied`` also when its standard input closes, that is with the process that started it. Standard library only.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from suite.links import topology
from suite.links.link import Link, LinkError
from suite.links.process import (
    CommandError,
    Process,
    Signals,
    become_subreaper,
    ended_children,
    kill_descendants,
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
    def log(self) -> Path:
        """What the keeper says."""
        return self.state_dir / "keeper.log"


@dataclass(frozen=True)
class Plan:
    """The link as it is to be. delays: they can be set, even where the link has none now. generation: how many times the link was
    set."""

    link: Link
    delays: bool
    generation: int = 1

    def write(self, layout: Layout) -> None:
        """Replace ``link.json``."""
        values = {"link": self.link.as_dict(), "delays": self.delays, "generation": self.generation}
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
        return cls(
            **{
                **values,
                "keeper": Process(**values["keeper"]),
                "holders": [Process(**holder) for holder in values["holders"]],
            }
        )


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
        if self.plan.delays:
            require_netem()
            state.delay = "netem"
        for _ in range(link.workers):
            state.holders.append(Process.of(hold_network()))
            state.write(self.layout)
        holders = [holder.pid for holder in state.holders]
        entries = [entry(holder, user_namespace=False) for holder in holders]  # we are in the user namespace
        carry_out(topology.build(link, state.delay, holders), (), entries)
        carry_out(topology.shape(link, state.delay, self.plan.generation), (), entries)
        state.ready = True

    def _fail(self, kind: str, error: Exception) -> None:
        self.state.error = {"kind": kind, "message": str(error)}

    def reap(self) -> None:
        """Collect children that have ended; those that should run go on record with their exit code."""
        names = {holder.pid: f"worker {rank}" for rank, holder in enumerate(self.state.holders)}
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


def require_netem() -> None:
    """Raise LinkError where the kernel cannot delay packets, tried on the loopback interface of this (new) namespace."""
    try:
        run_program(["tc", "qdisc", "add", "dev", "lo", "root", "netem", "delay", "1ms"])
    except CommandError as error:
        raise LinkError(
            f"no delay can be had here, since the kernel has no netem ({error}): `sudo modprobe sch_netem` where it has the "
            "module; otherwise leave the delay out"
        ) from None
    run_program(["tc", "qdisc", "del", "dev", "lo", "root"])


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
