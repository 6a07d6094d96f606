"""Where a development cluster's files lie, and what stands in the two that describe it.

``cluster.json`` is written once, by who brings the cluster up: its configuration and what to start. ``daemons.json``
is written by the keeper: who runs, and how what has ended ended. Both are replaced whole.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from suite.links.keeper import read_json, write_json
from suite.links.process import Process

MARKER = "bandwise-devcluster-1"
"""Stands in ``cluster.json``: a folder without it is never removed."""

SOCKET_PATH_MAX_BYTES = 107
"""Longest path of a Unix socket on Linux; munge and every job step listen on one below the state folder."""


class SettingsError(ValueError):
    """Settings that do not go together, or a folder that is none for a cluster; the message says what to choose."""


@dataclass(frozen=True)
class Layout:
    """Where things lie below the state folder, whether it exists or not."""

    state_dir: Path

    @property
    def munge_dir(self) -> Path:
        """munged's own files."""
        return self.state_dir / "munge"

    @property
    def munge_key(self) -> Path:
        """The secret by which daemons and clients know each other."""
        return self.munge_dir / "key"

    @property
    def munge_socket(self) -> Path:
        """Where munged listens."""
        return self.munge_dir / "socket"

    @property
    def log_dir(self) -> Path:
        """Logs of all daemons, and what they print."""
        return self.state_dir / "log"

    @property
    def spool_dir(self) -> Path:
        """A folder a node, for ``slurmd`` and its steps."""
        return self.state_dir / "spool"

    @property
    def save_dir(self) -> Path:
        """What ``slurmctld`` would need after a restart."""
        return self.state_dir / "save"

    @property
    def database_dir(self) -> Path:
        """MariaDB's data; only with accounting."""
        return self.state_dir / "database"

    @property
    def database_socket(self) -> Path:
        """Where MariaDB listens, and nowhere else."""
        return self.state_dir / "database.sock"

    @property
    def links_dir(self) -> Path:
        """The emulated cluster (`suite.links.cluster`) whose workers are the nodes; only with links."""
        return self.state_dir / "links"

    @property
    def clients_dir(self) -> Path:
        """Slurm's clients as they are to be called from outside the links; only with links."""
        return self.state_dir / "bin"

    @property
    def requests_dir(self) -> Path:
        """An empty file by a daemon's name asks the keeper to start it again."""
        return self.state_dir / "requests"

    @property
    def slurm_conf(self) -> Path:
        """What SLURM_CONF names."""
        return self.state_dir / "slurm.conf"

    @property
    def slurmdbd_conf(self) -> Path:
        """Slurm looks for it beside slurm.conf."""
        return self.state_dir / "slurmdbd.conf"

    @property
    def cluster_json(self) -> Path:
        """Configuration and daemons, as values."""
        return self.state_dir / "cluster.json"

    @property
    def daemons_json(self) -> Path:
        """The `Record`."""
        return self.state_dir / "daemons.json"

    def check(self, names: Iterable[str]) -> None:
        """Raises SettingsError where the folder lies too deep for the sockets of job steps on nodes of these names."""
        name = max(names, key=len)
        longest = self.spool_dir / name / f"{name}_4294967295.4294967295"
        if len(str(longest).encode()) > SOCKET_PATH_MAX_BYTES:
            raise SettingsError(
                f"{self.state_dir}: too long for Unix sockets below it "
                f"({SOCKET_PATH_MAX_BYTES} bytes at most); choose a shorter folder, such as one in /tmp"
            )

    def plan(self) -> dict[str, Any] | None:
        """What ``cluster.json`` says; None where the folder is none of ours."""
        plan = read_json(self.cluster_json)
        return plan if plan is not None and plan.get("marker") == MARKER else None


@dataclass
class Record:
    """Who runs: the keeper, what it started by name, exit codes of what has ended (negative: the signal's number)."""

    keeper: Process
    started: dict[str, Process] = field(default_factory=dict)
    exited: dict[str, int] = field(default_factory=dict)

    def write(self, layout: Layout) -> None:
        """Replace ``daemons.json``."""
        write_json(layout.daemons_json, asdict(self))

    @classmethod
    def read(cls, layout: Layout) -> Record | None:
        """The record in the folder; None where no keeper has written any."""
        values = read_json(layout.daemons_json)
        if values is None:
            return None
        started = {name: Process(**process) for name, process in values["started"].items()}
        return cls(Process(**values["keeper"]), started, values["exited"])
