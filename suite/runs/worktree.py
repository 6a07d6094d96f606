"""A run carried out by the code of another commit: a git worktree that lasts as long as the run."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from suite.runs.changes import apply
from suite.runs.spec import RunSpec

CHECKOUT = Path(__file__).resolve().parents[2]
LAST_LINES = 3


class WorktreeError(RuntimeError):
    """The code of the commit cannot be had, or did not carry the run out; the message says why."""


@contextmanager
def worktree(commit: str, checkout: Path = CHECKOUT) -> Iterator[Path]:
    """A folder with the files of `commit`, gone afterwards. Raises `WorktreeError` where git has no such commit."""
    with tempfile.TemporaryDirectory(prefix="bandwise-") as temporary:
        folder = Path(temporary) / "code"
        found = _git(checkout, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{commit}^{{commit}}")
        if found.returncode:
            raise WorktreeError(
                f"this checkout has no commit {commit}: `git fetch --unshallow`, or fetch it from where the run was made"
            )
        added = _git(checkout, "worktree", "add", "--quiet", "--detach", str(folder), found.stdout.strip())
        if added.returncode:
            raise WorktreeError(f"git makes no worktree of {commit}: {_last(added.stderr)}")
        try:
            yield folder
        finally:
            _git(checkout, "worktree", "remove", "--force", str(folder))


def run_at(commit: str, spec: RunSpec, root: Path, checkout: Path = CHECKOUT, changes: str = "") -> list[str]:
    """Carry the run out by the code of `commit`, in a process of its own, into the results folder `root`.

    changes: a document of `changes` that is made in that code first; what came of it is returned in sentences. A run that
    ends badly is an outcome like any other. Raises `WorktreeError` where no result could come of it.
    """
    with worktree(commit, checkout) as folder:
        try:
            said = apply(changes, folder, checkout) if changes else []
        except ValueError as error:
            raise WorktreeError(f"the changes on record do not apply to {commit}: {error}") from None
        file = folder.parent / "spec.json"
        file.write_text(spec.to_json(), encoding="utf-8")
        command = [
            sys.executable,
            "-m",
            "bandwise",
            "run",
            str(file),
            "--results",
            str(root.resolve()),
            "--json",
        ]
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode not in {0, 3}:
            raise WorktreeError(f"the code of {commit} did not carry the run out: {_last(done.stderr)}")
        return said


def _git(checkout: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["git", "-C", str(checkout), *arguments], capture_output=True, text=True, check=False
    )


def _last(text: str) -> str:
    return " ".join(text.strip().splitlines()[-LAST_LINES:]) or "it did not say why"
