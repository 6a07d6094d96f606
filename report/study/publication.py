"""A study for others to cite: a snapshot with its page, complete or not there at all, never written over, checkable.

    <directory>/<day the last run finished>-<name>/
        page.html       the study's page, as on that day
        manifest.json, study.json, session-*.json, tables/, figures/   as in a snapshot
        SHA256SUMS      the hash of every other file, for `sha256sum --check SHA256SUMS`

The *fingerprint* is the hash of SHA256SUMS: whoever quotes it has named every byte.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from report.rendering import slug
from report.study.build import render, update_tables
from report.study.data import load
from report.study.headline import headline
from report.study.snapshot import MANIFEST, SnapshotError, frozen_files, manifest_of, sha256, verify
from suite.runs.store import TEMPORARY, dump, write_atomic

PAGE = "page.html"
SUMS = "SHA256SUMS"


@dataclass(frozen=True)
class Publication:
    """A published folder, its fingerprint, and what is wrong with it: nothing where it was just made."""

    folder: Path
    fingerprint: str
    wrong: tuple[str, ...] = ()


def publish(
    results_root: Path | str, sweep: str, directory: Path | str | None = None, name: str | None = None
) -> Publication:
    """Bring the sweep's tables up to date and publish them, with the page; `directory` is <root>/published unless given.

    name: in place of the sweep's. Raises SnapshotError where the folder is there already or no run has finished, and
    what `build_report` raises.
    """
    return publish_tables(results_root, update_tables(results_root, sweep), directory, name)


def publish_tables(
    results_root: Path | str, sweep: str, directory: Path | str | None = None, name: str | None = None
) -> Publication:
    """Publish the tables of a sweep as they are."""
    root = Path(results_root)
    study = load(root, sweep)
    finished = study.facts["last_finished"]
    if finished is None:
        raise SnapshotError(f"sweep {sweep} has no finished run; there is nothing to publish")
    parent = Path(directory) if directory is not None else root / "published"
    folder = parent / f"{str(finished)[:10]}-{slug(name or sweep)}"
    if folder.exists():
        raise SnapshotError(
            f"{folder} is published; what is published stays: check it with --verify, or give another --as NAME"
        )
    files = frozen_files(study, root) | {PAGE: render(study, headline(study))}
    files[MANIFEST] = dump(manifest_of(study, files), indent=1) + "\n"
    files[SUMS] = "".join(f"{sha256(text)}  {path}\n" for path, text in sorted(files.items()))
    _appear(folder, files)
    return Publication(folder, sha256(files[SUMS]))


def _appear(folder: Path, files: dict[str, str]) -> None:
    """Write the folder under another name first; it gets its own once everything has reached the disk."""
    growing = folder.with_name(f".{folder.name}.{os.getpid()}{TEMPORARY}")
    try:
        for path, text in files.items():
            write_atomic(growing / path, text)
        growing.rename(folder)
    except OSError as error:
        raise SnapshotError(
            f"cannot make {folder}: {error.strerror}; name another place with --out"
        ) from error
    finally:
        shutil.rmtree(growing, ignore_errors=True)


def examine(folder: Path | str) -> Publication:
    """Check what was published, or a snapshot. Raises SnapshotError for a folder that is neither."""
    top = Path(folder)
    wrong = verify(top, frozenset({MANIFEST, SUMS}))
    try:
        text = (top / SUMS).read_text(encoding="utf-8")
    except FileNotFoundError:
        return Publication(top, "", tuple(wrong))
    listed = {path: digest for digest, _, path in (line.partition("  ") for line in text.splitlines())}
    present = {path.relative_to(top).as_posix() for path in top.rglob("*") if path.is_file()} - {SUMS}
    for path in sorted(listed.keys() ^ present):
        wrong.append(f"{path} is missing" if path in listed else f"{path} is not in {SUMS}")
    for path in sorted(listed.keys() & present):
        if hashlib.sha256((top / path).read_bytes()).hexdigest() != listed[path]:
            wrong.append(f"{path} has changed")
    return Publication(top, sha256(text), tuple(dict.fromkeys(wrong)))
