"""One side of a comparison: the tables of a results folder, of a study published under a label, or of git at a commit.

Of a results folder each set is what any reader finds: made there where it is whole, else published (`published.source`).

Tables are read by the columns that a comparison needs, so tables of older versions compare as well.
"""

from __future__ import annotations

import csv
import io
import json
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from reference_impls.errors import nearest
from suite.analysis.columns import RUNS, Table
from suite.analysis.published import (
    FACTS,
    FOLDER,
    SESSION,
    STUDY_FACTS,
    labels,
    published_root,
    sessions_held,
    source,
    studies_of,
)
from suite.analysis.speed_columns import ARMS
from suite.analysis.tables import TABLES, Row, cell_value

CHECKOUT: Final = Path(__file__).resolve().parents[2]
COMMITTED: Final = (f"results/{FOLDER}/{TABLES}/", "results/tables/v1/")
"""Where commits have tables: now, and before published data were parted from local ones."""
RUN_COLUMNS: Final = (
    "workload", "sharding", "world_size", "arm", "seed", "run_id", "status", "reason", "metric", "value",
    "wire_bytes_per_step",
)  # fmt: skip
SPEED_COLUMNS: Final = (
    "link",
    "sharding",
    "arm",
    "kind",
    "n_pairs",
    "speedup",
    "speedup_low",
    "speedup_high",
)


class SideError(ValueError):
    """A side cannot be read; the message says what it could be."""


@dataclass(frozen=True)
class StudySide:
    """The runs of one sweep on one side, and the facts of the study (units, directions, provenance)."""

    runs: Sequence[Row]
    facts: Mapping[str, Any]

    def judged(self, workload: str) -> tuple[str, str]:
        """Unit and direction ("higher", "lower" is better) of a workload. Raises `SideError`."""
        for entry in self.facts["workloads"]:
            if entry["workload"] == workload:
                return str(entry["unit"]), str(entry["direction"])
        raise SideError(f"the facts of study {self.facts['sweep']} do not say how {workload} is judged")


@dataclass(frozen=True)
class SessionSide:
    """The arms of one timing session on one side, and its facts."""

    arms: Sequence[Row]
    facts: Mapping[str, Any]


@dataclass(frozen=True)
class Side:
    """Everything of a side: studies by the sweep's name, sessions by theirs; `label` says what it is."""

    label: str
    studies: Mapping[str, StudySide]
    sessions: Mapping[str, SessionSide]


def read_side(name: str, results_root: Path, checkout: Path = CHECKOUT) -> Side:
    """A side by the path of a results folder, the label of a published study, or a commit. Raises `SideError`."""
    for path in (Path(name), published_root(results_root) / name):
        if path.is_dir():
            return _folder(path)
    files = _committed(name, checkout)
    if files is None:
        raise SideError(
            f"{name!r} is no folder, no label of a published study and no commit{nearest(name, labels(results_root))}"
        )
    return _side(f"commit {name}", files)


def _folder(path: Path) -> Side:
    """The tables of a results folder; what is published under a label is one by itself."""
    sets = dict.fromkeys(studies_of(path), ("-runs.csv", STUDY_FACTS))
    sets |= {f"{SESSION}{name}": ("-arms.csv", FACTS) for name in sessions_held(path)}
    files = {
        f"{name}{end}": _text(file)
        for name, ends in sets.items()
        for end in ends
        if (file := source(path, name).root / TABLES / f"{name}{end}").is_file()
    }
    return _side(str(path), files)


def _text(path: Path) -> str:
    return path.read_bytes().decode("utf-8")


def _committed(commit: str, checkout: Path) -> dict[str, str] | None:
    """The tables that git has at a commit, by their path below the tables' folder; None for no commit."""
    name = subprocess.run(
        ["git", "-C", str(checkout), "rev-parse", "--verify", "--quiet", "--end-of-options", f"{commit}^{{commit}}"],
        capture_output=True, text=True, check=False,
    ).stdout.strip()  # fmt: skip
    if not name:
        return None
    for place in COMMITTED:
        packed = subprocess.run(
            ["git", "-C", str(checkout), "archive", "--format=tar", name, place],
            capture_output=True,
            check=False,
        )
        if packed.returncode == 0:
            with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
                opened = ((member.name, archive.extractfile(member)) for member in archive if member.isfile())
                return {
                    path.removeprefix(place): file.read().decode("utf-8") for path, file in opened if file
                }
    return {}


def _side(label: str, files: Mapping[str, str]) -> Side:
    studies = {
        sweep: StudySide(_rows(text, RUNS, RUN_COLUMNS, name), _facts(files, f"{sweep}-study.json", label))
        for name, text in files.items()
        if name.endswith("-runs.csv") and (sweep := name.removesuffix("-runs.csv"))
    }
    sessions = {
        session: SessionSide(
            _rows(text, ARMS, SPEED_COLUMNS, name), _facts(files, f"session-{session}-facts.json", label)
        )
        for name, text in files.items()
        if name.startswith("session-")
        and name.endswith("-arms.csv")
        and (session := name.removeprefix("session-").removesuffix("-arms.csv"))
    }
    if not studies and not sessions:
        raise SideError(f"{label} has no tables of runs or sessions: `bandwise report SWEEP` makes them")
    return Side(label, studies, sessions)


def _facts(files: Mapping[str, str], name: str, label: str) -> Mapping[str, Any]:
    if name not in files:
        raise SideError(f"{label} lacks {name}, which stands beside the table: make the tables again")
    found: Mapping[str, Any] = json.loads(files[name])
    return found


def _rows(text: str, table: Table, names: Sequence[str], source: str) -> list[Row]:
    lines = list(csv.DictReader(io.StringIO(text, newline="")))
    columns = [column for column in table.columns if column.name in names]
    if lines and (lacking := [name for name in names if name not in lines[0]]):
        raise SideError(f"{source} lacks the columns {', '.join(lacking)}: it is too old to be compared")
    return [{column.name: cell_value(line[column.name], column) for column in columns} for line in lines]
