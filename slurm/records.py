"""What was submitted: a file a submission, written by the submitter alone, read by everybody who asks how jobs stand.

``sweeps/<sweep>/submission-<n>.json`` below the results root::

    {"schema_version": 2, "sweep": ..., "called": ..., "number": n, "created": ..., "submitter": {"host", "pid", "started_ticks"},
     "command": ..., "profile": {...}, "code": {"path", "commit", "changes"}, "environment": path,
     "members": [[[run id, ...], ...], ...], "before": {run id: attempt},
     "arrays": [{"first": 0, "members": 1001, "tasks": 1, "name": ..., "job_id": "17", "refused": ""}, ...]}

A member is a list of groups of runs. An array is noted *before* it is sent, with the name that its job will have
and no id; so a submitter that is killed leaves behind what to ask Slurm for. ``before`` says how often runs that had failed
were tried before this submission. What the members read, ``work-<k>.json``, lies with scripts and logs in ``slurm-<n>``.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from suite.links.process import Process
from suite.runs.files import dump, parsed, read, write_atomic

SCHEMA: Final = 2
SENDING_S: Final = 120.0
"""How long an array noted by another machine's submitter may be on its way."""


@dataclass(frozen=True)
class ArrayJob:
    """One array: members ``first`` to ``first + members - 1`` of the submission, each of so many tasks.

    name: of the job, unlike any other's. job_id: "" until Slurm has answered. refused: what it answered instead.
    """

    first: int
    members: int
    tasks: int = 1
    name: str = ""
    job_id: str = ""
    refused: str = ""

    def member_id(self, index: int, job_id: str = "") -> str:
        """Id of the job of a member, as Slurm's commands show it; a single member is no array."""
        number = job_id or self.job_id
        return number if self.members == 1 else f"{number}_{index}"


@dataclass(frozen=True)
class Record:
    """A submission as its file has it."""

    path: Path
    facts: Mapping[str, Any]
    arrays: tuple[ArrayJob, ...]

    @property
    def sweep(self) -> str:
        """Name of the sweep."""
        return str(self.facts["sweep"])

    @property
    def called(self) -> str:
        """How commands name the sweep."""
        return str(self.facts["called"])

    @property
    def logs(self) -> Path:
        """Folder of the batch scripts, the members' work and their logs."""
        return self.path.with_name(f"slurm-{self.facts['number']}")

    @property
    def since(self) -> str:
        """When it was made, in local time, as sacct takes it."""
        return datetime.fromisoformat(self.facts["created"]).astimezone().strftime("%Y-%m-%dT%H:%M:%S")

    def runs(self, member: int) -> list[str]:
        """Run ids of a member in order."""
        return [run_id for group in self.facts["members"][member] for run_id in group]

    def noted(self, array: ArrayJob) -> Record:
        """With this array in its place, known by its name, or as the last one."""
        kept = [array if old.name == array.name else old for old in self.arrays]
        return replace(self, arrays=tuple(kept if array in kept else [*kept, array]))

    def save(self) -> None:
        """Write it whole."""
        arrays = [asdict(array) for array in self.arrays]
        write_atomic(self.path, dump({**self.facts, "arrays": arrays}, indent=1) + "\n")

    def sending(self) -> bool:
        """Whether its submitter may still be at work."""
        who = self.facts["submitter"]
        if who["host"] == socket.gethostname():
            return Process(who["pid"], who["started_ticks"]).alive()
        return time.time() - datetime.fromisoformat(self.facts["created"]).timestamp() < SENDING_S


def load_record(path: Path) -> Record:
    """Read a submission's file.

    Args:
        path: The file.

    Returns:
        The submission.

    Raises:
        StoreError: The file is damaged.
    """
    facts = dict(parsed(read(path) or "", path))
    arrays = tuple(ArrayJob(**array) for array in facts.pop("arrays", ()))
    return Record(path, facts, arrays)


def records(results_root: Path, sweep: str | None = None) -> list[Record]:
    """All submissions under a results root, oldest first; those of older schemas are left out.

    Args:
        results_root: The results root.
        sweep: Of this sweep alone; None: of all.

    Returns:
        The submissions.

    Raises:
        StoreError: A file is damaged.
    """
    folder = results_root / "sweeps"
    pattern = f"{sweep}/submission-*.json" if sweep else "**/submission-*.json"
    loaded = [load_record(path) for path in folder.glob(pattern)]
    kept = [record for record in loaded if record.facts["schema_version"] == SCHEMA]
    return sorted(kept, key=lambda record: (record.facts["created"], record.facts["number"]))


def next_number(folder: Path, claim: bool, stem: str = "slurm") -> int:
    """Number of the next submission (or study) of a sweep.

    Args:
        folder: The sweep's folder.
        claim: Make the number's folder, so that no other can have it.
        stem: What the folders' names begin with.

    Returns:
        The number, from 1.
    """
    number = 1 + max((int(path.name.partition("-")[2]) for path in folder.glob(f"{stem}-*")), default=0)
    while claim:
        try:
            (folder / f"{stem}-{number}").mkdir(parents=True)
        except FileExistsError:
            number += 1
        else:
            break
    return number
