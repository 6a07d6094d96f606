"""What lies in a cluster's state folder: two small JSON files, each with one writer.

``link.json`` is written by whoever brings the cluster up or changes its link: what to build. ``state.json`` is written
by the keeper: what stands, and which processes are ours. Both are replaced whole.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from suite.links.link import Link
from suite.links.process import Process
from suite.links.topology import Delay

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
