"""Which runs a job holds: one file a submission, written by the submitter after each array that Slurm took.

``sweeps/<sweep>/slurm-<n>/`` below the results root is submitit's folder (scripts, pickles, logs). ``jobs.json`` there::

    {"called": name or path of the sweep, "created_s": ..., "profile": {...}, "jobs": {"17_0": [run id, ...], ...}}

A submitter that is killed before it could write leaves runs that count as missing; submitting them once more does no harm,
since whichever job comes second finds them taken or done.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from suite.runs.files import dump, parsed, read, write_atomic

FILE: Final = "jobs.json"


@dataclass(frozen=True)
class Record:
    """A submission. called: how commands name its sweep. jobs: run ids of each job that Slurm took."""

    folder: Path
    called: str
    created_s: float
    profile: Mapping[str, Any]
    jobs: Mapping[str, list[str]]

    def save(self) -> None:
        """Write it whole. Raises `StoreError`."""
        facts = {key: value for key, value in asdict(self).items() if key != "folder"}
        write_atomic(self.folder / FILE, dump(facts) + "\n")


def records(results_root: Path, sweep: str | None = None) -> list[Record]:
    """All submissions under a results root, oldest first.

    Args:
        results_root: The results root.
        sweep: Of this sweep alone; None: of all.

    Returns:
        The submissions.

    Raises:
        StoreError: A file is damaged.
    """
    paths = (results_root / "sweeps").glob(f"{sweep or '**'}/slurm-*/{FILE}")
    found = [Record(folder=path.parent, **dict(parsed(read(path) or "", path))) for path in paths]
    return sorted(found, key=lambda record: record.created_s)


def new_folder(parent: Path, *, dry_run: bool = False) -> Path:
    """A folder ``slurm-<n>`` of its own below `parent`; in a dry run it is only named."""
    number = 1 + max((int(path.name.partition("-")[2]) for path in parent.glob("slurm-*")), default=0)
    while not dry_run:
        try:
            (parent / f"slurm-{number}").mkdir(parents=True)
        except FileExistsError:
            number += 1
        else:
            break
    return parent / f"slurm-{number}"
