"""The code of a submission, kept so that jobs run what was submitted and not what the checkout holds by then.

``<results>/code/<commit>`` is the commit's tree without results; where the checkout differs from it,
``<commit>-<hash of the changes>`` holds the files as they are, and ``changes.patch`` says how they differ
(`suite.runs.provenance`).
Beside them ``environment-<hash>.txt`` lists the installed packages, and ``plugin-<hash>/`` holds a plugin file of methods
(`reference_impls.load_plugin`). All are made once, under another
name, and appear by rename. ``snapshot.json`` in a snapshot is what provenance reads there instead of git.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from reference_impls import list_algorithms
from reference_impls.registry import registry
from suite.runs.files import ID_DIGITS, StoreError, dump, write_atomic
from suite.runs.provenance import (
    CHANGES_FILE,
    PACKAGES,
    SNAPSHOT_FILE,
    changes_of,
    environment_hash,
    installed,
)

CHECKOUT: Final = Path(__file__).resolve().parents[1]
GIT_TIMEOUT_S: Final = 60


class SnapshotError(RuntimeError):
    """The code cannot be kept; the message says why."""


@dataclass(frozen=True)
class Snapshot:
    """Where the code of a submission lies. commit: None outside of git. changes: hash of what differs from it, or ""."""

    path: Path
    commit: str | None
    changes: str

    def as_dict(self) -> dict[str, Any]:
        """Plain data for the record of a submission."""
        return {**asdict(self), "path": str(self.path)}


def planned(results_root: Path, checkout: Path = CHECKOUT) -> Snapshot:
    """The snapshot that `take` would make or find; nothing is written. Raises `SnapshotError`."""
    return _content(results_root, checkout)[0]


def take(results_root: Path, checkout: Path = CHECKOUT) -> Snapshot:
    """Keep the code of `checkout` under `results_root`, unless it is there already.

    Raises `SnapshotError`, or `StoreError` where it cannot be written.
    """
    snapshot, files = _content(results_root, checkout)
    for path, copy in plugins(snapshot.path.parent).items():
        for name, other in {path.name: path, **beside(path)}.items():
            if not (copy.parent / name).exists():
                write_atomic(copy.parent / name, other.read_text(encoding="utf-8"))
    if snapshot.path.exists():
        return snapshot
    temporary = snapshot.path.with_name(f".{snapshot.path.name}.{os.getpid()}.tmp")
    try:
        for name in files:
            target = temporary / name
            target.parent.mkdir(parents=True, exist_ok=True)
            _copy(checkout, name, target)
        if snapshot.commit and (changed := changes_of(checkout)):
            (temporary / CHANGES_FILE).write_bytes(changed)
        facts = {"commit": snapshot.commit, "dirty": bool(snapshot.changes)}
        (temporary / SNAPSHOT_FILE).write_text(dump(facts) + "\n", encoding="utf-8")
        temporary.rename(snapshot.path)
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        if not snapshot.path.exists():  # else another submission was faster, with the same files
            raise StoreError(
                f"cannot keep the code in {snapshot.path}: {error.strerror}; free some space, check rights, or use "
                "another results folder (--results)"
            ) from error
    return snapshot


def plugins(folder: Path) -> dict[Path, Path]:
    """The plugin files of methods that were loaded here, and where in `folder` the copies for jobs lie, each with what it
    imports from beside it."""
    list_algorithms()  # loads those that the environment names
    found = {path: [path, *beside(path).values()] for path in sorted(registry.plugins)}
    return {path: folder / f"plugin-{_hash(b'', files)}" / path.name for path, files in found.items()}


def beside(plugin: Path) -> dict[str, Path]:
    """What a plugin file imports from its own folder, by name there (`suite.workloads.registry.imported_beside`)."""
    from suite.workloads.registry import imported_beside  # here, since it needs torch

    return imported_beside(plugin)


def keep_environment(results_root: Path) -> Path:
    """Write the list of installed packages, ``name==version`` a line, under the name of its hash."""
    path = results_root / "code" / f"environment-{environment_hash()}.txt"
    if not path.exists():
        write_atomic(path, "\n".join(installed()) + "\n")
    return path


def _content(results_root: Path, checkout: Path) -> tuple[Snapshot, list[str]]:
    """The snapshot and the files it holds (relative)."""
    folder = results_root.resolve() / "code"
    if not (checkout / ".git").exists():
        files = [
            str(path.relative_to(checkout))
            for package in PACKAGES
            for path in sorted((checkout / package).rglob("*"))
            if _is_file(path) and "__pycache__" not in path.parts
        ]
        digest = _hash(b"", [checkout / name for name in files])
        return Snapshot(folder / f"copy-{digest}", None, digest), files
    here = ["--", ".", ":!results"]
    if folder.is_relative_to(checkout.resolve()):  # a results folder of another name inside of the checkout
        here.append(f":!{folder.parent.relative_to(checkout.resolve())}")
    commit = _git(checkout, "rev-parse", "HEAD").decode().strip()
    patch = _git(checkout, "diff", "--binary", "HEAD", *here)
    listed = _git(checkout, "ls-files", "-z", "--cached", *here)
    unknown = _git(checkout, "ls-files", "-z", "--others", "--exclude-standard", *here)
    # a repository inside of the checkout is listed as a folder, and is not part of it
    new = sorted(name for name in unknown.decode().split("\0") if name and not name.endswith("/"))
    changes = _hash(patch, [checkout / name for name in new]) if patch or new else ""
    names = [name for name in listed.decode().split("\0") if name]
    files = [name for name in dict.fromkeys([*names, *new]) if _is_file(checkout / name)]
    path = folder / (f"{commit}-{changes}" if changes else commit)
    return Snapshot(path, commit, changes), files


def _is_file(path: Path) -> bool:
    """Whether it is a file or a link, to a folder or to nothing too."""
    return path.is_symlink() or path.is_file()


def _copy(checkout: Path, name: str, target: Path) -> None:
    """Copy a file; a link stays one, and leads to the same place where that lies outside of the checkout."""
    source = checkout / name
    if source.is_symlink() and not source.resolve().is_relative_to(checkout.resolve()):
        target.symlink_to(source.resolve())
    else:
        shutil.copy2(source, target, follow_symlinks=False)


def _hash(patch: bytes, files: list[Path]) -> str:
    digest = hashlib.sha256(patch)
    for path in files:
        content = b"-> " + os.readlink(os.fsencode(path)) if path.is_symlink() else path.read_bytes()
        digest.update(str(path.name).encode() + b"\0" + content + b"\0")
    return digest.hexdigest()[:ID_DIGITS]


def _git(checkout: Path, *arguments: str) -> bytes:
    command = ["git", "--no-optional-locks", "-C", str(checkout), *arguments]
    try:
        return subprocess.run(command, capture_output=True, check=True, timeout=GIT_TIMEOUT_S).stdout
    except FileNotFoundError:
        raise SnapshotError("git is not on PATH: it is needed to keep the code of a submission") from None
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        said = (error.stderr or b"no answer").decode(errors="replace").strip()
        raise SnapshotError(f"`git {arguments[0]}` failed in {checkout}: {said}") from None
