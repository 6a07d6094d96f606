"""How the code that runs differs from its commit, kept so that a run of a changed checkout can be had again.

A *document* of changes is text that ``git apply`` takes:

    changes to <commit>
    new file <sha256> <path>      a line for each file of the packages that git does not know; its content is not kept
    diff --git ...                what tracked files, results left out, differ in

Results refer to it by its SHA-256. It is kept once, as ``<results>/patches/<sha256>.diff``, if it is UTF-8 and not larger
than `LIMIT_BYTES`; of a larger one the hash alone is on record. Paths are relative to the checkout.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from suite.runs.reading import RefusedError, read
from suite.runs.writing import write_atomic

LIMIT_BYTES: Final = 256 << 10
PACKAGES: Final = ("bandwise", "reference_impls", "report", "slurm", "suite")
KEPT_FILE: Final = "changes.patch"
"""The document, at the top of a copy of the code that was made for a job."""
NEW: Final = re.compile(r"^new file ([0-9a-f]{64}) (.+)$", re.M)
TIMEOUT_S: Final = 60


def document(checkout: Path) -> bytes:
    """The changes of a checkout; empty where there are none. Raises OSError and subprocess.SubprocessError without git."""
    commit = _git(checkout, "rev-parse", "HEAD").decode().strip()
    patch = _git(
        checkout, "diff", "--binary", "--full-index", "--no-color", "--no-ext-diff", "--relative", "HEAD", "--",
        ".", ":!results",
    )  # fmt: skip
    unknown = _git(checkout, "ls-files", "-z", "--others", "--exclude-standard", "--", *PACKAGES)
    names = sorted(name for name in unknown.split(b"\0") if name and not name.endswith(b"/"))
    new = [b"new file %s %s\n" % (_hash(_content(checkout / n.decode())).encode(), n) for n in names]
    if not patch and not new:
        return b""
    return b"changes to %s\n%s%s" % (commit.encode(), b"".join(new), patch)


def _content(path: Path) -> bytes:
    """What git would keep of a path: of a link, to a folder too, where it leads."""
    return os.readlink(os.fsencode(path)) if path.is_symlink() else path.read_bytes()


@lru_cache(maxsize=1)
def current() -> bytes:
    """The changes of the code that runs, looked up once a process; of a copy for a job those that came with it."""
    top = Path(__file__).resolve().parents[2]
    if (top / KEPT_FILE).is_file():
        return (top / KEPT_FILE).read_bytes()
    if not (top / ".git").exists():
        return b""
    try:
        return document(top)
    except (OSError, UnicodeDecodeError, subprocess.SubprocessError):
        return b""


def described(changes: bytes) -> dict[str, Any] | None:
    """What a result says of them: hash and size; None where there are none."""
    return {"sha256": _hash(changes), "bytes": len(changes)} if changes else None


PUBLISHED: Final = "published"
"""The folder, within a results folder, of what is published; it is laid out like one."""


def path_of(root: Path, sha256: str) -> Path:
    """Where the document of that hash is kept."""
    return Path(root) / "patches" / f"{sha256}.diff"


def keep(root: Path, changes: bytes | None = None) -> Path | None:
    """Keep the changes (by default those of the code that runs) in a results folder; None where they are not kept.

    Raises `StoreError` where they cannot be written.
    """
    changes = current() if changes is None else changes
    if not changes or len(changes) > LIMIT_BYTES:
        return None
    try:
        text = changes.decode("utf-8")
    except UnicodeDecodeError:
        return None
    path = path_of(root, _hash(changes))
    if not path.exists():
        write_atomic(path, text)
    return path


def kept(root: Path, sha256: str) -> str | None:
    """The document of that hash, here or published, None where it was not kept.

    Raises `RefusedError` for one that is not what its name says.
    """
    path = path_of(root, sha256)
    if not path.exists():
        path = path_of(Path(root) / PUBLISHED, sha256)
    text = read(path, LIMIT_BYTES)
    if text is not None and _hash(text.encode()) != sha256:
        raise RefusedError(path, "is not what its name says", "fetch it again from where the run was made")
    return text


def apply(changes: str, folder: Path, checkout: Path) -> list[str]:
    """Make the changes in `folder`, a checkout of their commit; new files come from `checkout` if they are there as recorded.

    Returns what was done in sentences. Raises ValueError where git does not apply them.
    """
    said = []
    if files := changes.count("\ndiff --git "):
        done = subprocess.run(
            ["git", "-C", str(folder), "apply", "--whitespace=nowarn", "-"],
            input=changes.encode(), capture_output=True, check=False, timeout=TIMEOUT_S,
        )  # fmt: skip
        if done.returncode:
            raise ValueError(done.stderr.decode(errors="replace").strip() or "git apply failed")
        said.append(f"the changes on record were made in the code: {files} file{'' if files == 1 else 's'}")
    for digest, name in NEW.findall(changes):
        source, parts = checkout / name, Path(name).parts
        if parts[0] not in PACKAGES or ".." in parts or source.is_symlink() or not source.is_file():
            said.append(f"{name} was a new file, and is not here")
        elif _hash(source.read_bytes()) != digest:
            said.append(f"{name} was a new file, and is another one here")
        else:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, folder / name)
            said.append(f"{name}, a new file, was taken from this checkout")
    return said


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _git(checkout: Path, *arguments: str) -> bytes:
    command = ["git", "--no-optional-locks", "-C", str(checkout), *arguments]
    return subprocess.run(command, capture_output=True, check=True, timeout=TIMEOUT_S).stdout
