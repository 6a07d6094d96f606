"""Frozen results for git: the tables and figures of a study on one day, with a manifest that can be checked.

    <directory>/<day the last run finished>-<sweep>/
        manifest.json   what was run and by which command, commit and environment; findings; sha256 of every file
        study.json      the facts beside the tables
        session-*.json  the facts of the timing sessions that the page shows
        tables/*.csv    as under results/tables/v1
        figures/*.svg   tradeoff.svg (all panels), then tradeoff and seeds by panel; speedup.svg (all links and
                        panels), and by session and link phases-*.svg, and forest-*.svg where nothing is trained

A snapshot is never changed: writing the same again is fine, writing something else under its name is refused.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from report.drawing.svg import svg_file
from report.errors import ReportError
from report.rendering import slug
from report.study.build import all_tables, update_tables
from report.study.data import StudyData, load
from report.study.figures import tradeoff
from report.study.headline import headline
from report.study.seeds import seeds
from report.study.speed_page import speed_figures
from suite.analysis.collect import facts_path
from suite.analysis.speed_columns import session_facts_path
from suite.analysis.tables import to_csv
from suite.runs.store import dump, write_atomic

MANIFEST_SCHEMA = 1
MANIFEST = "manifest.json"


class SnapshotError(ReportError):
    """A snapshot cannot be written or does not hold what its manifest says."""


def freeze(results_root: Path | str, sweep: str, directory: Path | str | None = None) -> Path:
    """Bring the sweep's tables up to date and freeze them; returns the snapshot's folder.

    `directory` is where snapshots lie, by default <root>/snapshots. Raises SnapshotError when the study has
    no finished run or another snapshot has its name, and what `build_report` raises.
    """
    return freeze_tables(results_root, update_tables(results_root, sweep), directory)


def freeze_tables(results_root: Path | str, name: str, directory: Path | str | None = None) -> Path:
    """Freeze the tables of a sweep as they are."""
    study = load(results_root, name)
    finished = study.facts["last_finished"]
    if finished is None:
        raise SnapshotError(f"sweep {name} has no finished run; there is nothing to freeze")
    parent = Path(directory) if directory is not None else Path(results_root) / "snapshots"
    folder = parent / f"{str(finished)[:10]}-{slug(name)}"
    files = frozen_files(study, Path(results_root))
    manifest = dump(manifest_of(study, files), indent=1) + "\n"
    old = folder / MANIFEST
    if old.exists() and old.read_text(encoding="utf-8") != manifest:
        raise SnapshotError(
            f"{folder} holds other results of that day; snapshots are frozen, so move it or use --snapshot DIR"
        )
    for path, text in files.items():
        write_atomic(folder / path, text)
    write_atomic(old, manifest)
    return folder


def frozen_files(study: StudyData, root: Path) -> dict[str, str]:
    """Tables, facts and figures of a study: path in a snapshot -> text."""
    files = {"study.json": facts_path(root, study.sweep).read_text(encoding="utf-8")}
    files |= {
        path.name: path.read_text(encoding="utf-8")
        for path in (session_facts_path(root, session.name) for session in study.sessions)
    }
    files |= {f"tables/{name}.csv": to_csv(table, rows) for name, (table, rows) in all_tables(study).items()}
    for workload, workers in dict.fromkeys((p.workload, p.world_size) for p in study.panels):
        panels = [p for p in study.panels if (p.workload, p.world_size) == (workload, workers)]
        several = len(panels) < len(study.panels)
        suffix = f"-{panels[0].slug}" if several else ""
        files[f"figures/tradeoff{suffix}.svg"] = svg_file(tradeoff(panels))
    for panel in study.panels:
        files[f"figures/seeds-{panel.slug}.svg"] = svg_file(seeds(panel))
    return files | {f"figures/{name}.svg": svg_file(figure) for name, figure in speed_figures(study).items()}


def sha256(text: str) -> str:
    """Of the text as UTF-8, in hex."""
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def manifest_of(study: StudyData, files: Mapping[str, str]) -> dict[str, Any]:
    """What a snapshot says of itself, with the hash of each of its files."""
    facts = study.facts
    return {
        "schema_version": MANIFEST_SCHEMA,
        "sweep": study.sweep,
        "about": facts["about"],
        "command": facts["command"],
        "first_finished": facts["first_finished"],
        "last_finished": facts["last_finished"],
        "statuses": facts["statuses"],
        "commit": facts["provenance"]["commit"],
        "dirty": facts["provenance"]["dirty"],
        "environment_hash": facts["provenance"]["environment_hash"],
        "headline": headline(study),
        "sessions": [
            {key: session.facts[key] for key in ("name", "session_id", "status", "reason", "provenance")}
            for session in study.sessions
        ],
        "files": {name: sha256(text) for name, text in sorted(files.items())},
    }


def verify(folder: Path | str, beside: frozenset[str] = frozenset({MANIFEST})) -> list[str]:
    """What is wrong with a snapshot: files that are missing, changed, or not in the manifest. Empty: nothing.

    `beside`: files that are not for the manifest to know. Raises SnapshotError when there is no readable manifest.
    """
    top = Path(folder)
    try:
        manifest = json.loads((top / MANIFEST).read_text(encoding="utf-8"))
    except (FileNotFoundError, json.JSONDecodeError) as error:
        raise SnapshotError(f"{top} has no readable {MANIFEST} ({error}); it is not a snapshot") from None
    listed: dict[str, str] = manifest["files"]
    present = {str(path.relative_to(top)) for path in top.rglob("*") if path.is_file()} - beside
    wrong = [f"{name} is missing" for name in sorted(listed.keys() - present)]
    wrong += [f"{name} is not in the manifest" for name in sorted(present - listed.keys())]
    for name in sorted(listed.keys() & present):
        if hashlib.sha256((top / name).read_bytes()).hexdigest() != listed[name]:
            wrong.append(f"{name} has changed")
    return wrong
