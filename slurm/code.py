"""The code of a submission, kept so that jobs run what was submitted and not what the checkout holds by then.

``<results>/code/<commit>`` holds the packages as they are, ``<commit>-<hash of the changes>`` where they differ from the commit;
``changes.patch`` says how. ``snapshot.json`` is what provenance reads there instead of git (`suite.runs.provenance`), so that a
run records the commit and the changes of the code that computed it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

from suite.runs.files import ID_DIGITS, StoreError, dump
from suite.runs.provenance import CHANGES_FILE, PACKAGES, SNAPSHOT_FILE, changes_of

CHECKOUT: Final = Path(__file__).resolve().parents[1]
GIT_TIMEOUT_S: Final = 60


class SnapshotError(RuntimeError):
    """The code cannot be kept; the message says why."""


def code_folder(results_root: Path, checkout: Path = CHECKOUT, *, dry_run: bool = False) -> Path:
    """Keep the packages of a checkout, unless they are kept already.

    Args:
        results_root: Where they are kept, below ``code/``.
        checkout: A git clone.
        dry_run: Only say where they would be.

    Returns:
        The folder.

    Raises:
        SnapshotError: The checkout is not one of git.
        StoreError: The folder cannot be written.
    """
    try:
        commit, changes = _git(checkout, "rev-parse", "HEAD").strip(), changes_of(checkout)
        listed = _git(
            checkout, "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *PACKAGES
        )
    except (OSError, subprocess.SubprocessError) as error:
        said = (getattr(error, "stderr", b"") or str(error).encode()).decode(errors="replace").strip()
        raise SnapshotError(
            f"submit from a git clone, so that runs can say which code computed them: {said}"
        ) from None
    different = f"-{hashlib.sha256(changes).hexdigest()[:ID_DIGITS]}" if changes else ""
    folder = results_root.resolve() / "code" / f"{commit}{different}"
    if dry_run or folder.exists():
        return folder
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    try:
        for name in filter(None, listed.split("\0")):
            if (checkout / name).is_file():
                (temporary / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(checkout / name, temporary / name)
        if changes:
            (temporary / CHANGES_FILE).write_bytes(changes)
        facts = {"commit": commit, "dirty": bool(changes)}
        (temporary / SNAPSHOT_FILE).write_text(dump(facts) + "\n", encoding="utf-8")
        temporary.rename(folder)
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        if not folder.exists():  # else another submission was faster, with the same files
            raise StoreError(
                f"cannot keep the code in {folder}: {error.strerror}; free some space, check rights, or use "
                "another results folder (--results)"
            ) from error
    return folder


def _git(checkout: Path, *arguments: str) -> str:
    command = ["git", "--no-optional-locks", "-C", str(checkout), *arguments]
    return subprocess.run(command, capture_output=True, check=True, timeout=GIT_TIMEOUT_S).stdout.decode()
