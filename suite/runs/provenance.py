"""Where a result comes from: commit, environment, machine, and how the code that ran differs from its commit.

*Provenance* is an allow-list: nothing is recorded that is not named here. Host names are hashed, environment variables are
left out but for the few that change numbers or speed.

*Changes* are kept so that a run of a changed checkout can be had again, as a document that ``git apply`` takes:

    changes to <commit>
    new file <sha256> <path>      a line for each file of the packages that git does not know; its content is not kept
    diff --git ...                what tracked files, results left out, differ in

Results refer to it by its SHA-256. It is kept once, as ``<results>/patches/<sha256>.diff``, if it is UTF-8 and not
larger than `CHANGES_LIMIT_BYTES`; of a larger one the hash alone is on record. Paths are relative to the checkout. A run is
carried out by the code of another commit in a git worktree that lasts as long as the run.

*Not known* is code outside of git, and of a checkout that git refuses or cannot read: commit or `dirty` is null, which
`bandwise publish` refuses, and `--check` finds before. No failing call of git counts as "no changes".

*Runs that are compared* should share code and machine; what differs is a finding.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from suite.runs.files import ID_DIGITS, RefusedError, read, write_atomic
from suite.runs.spec import RunSpec

VARIABLES: Final = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "MKL_CBWR",
    "MALLOC_ARENA_MAX",
    "MALLOC_MMAP_THRESHOLD_",
    "GLOO_SOCKET_IFNAME",
    "CUDA_VISIBLE_DEVICES",
    "TORCHDYNAMO_DISABLE",
)
THREAD_VARIABLES: Final = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
"""Which set how many threads a process computes with; they are read when torch is imported."""
OWN_DISTRIBUTION: Final = "bandwise"
CPUINFO: Final = Path("/proc/cpuinfo")
SNAPSHOT_FILE: Final = "snapshot.json"
"""Lies at the top of a copy of the code that was made for a job: ``{"commit": ..., "dirty": ...}``."""


def provenance() -> dict[str, Any]:
    """What is recorded beside a result: plain JSON values, gathered once a process except for the thread count."""
    import torch

    return {**_constant(), "torch": torch.__version__, "threads": torch.get_num_threads()}


@lru_cache(maxsize=1)
def _constant() -> dict[str, Any]:
    commit, dirty = git_state()
    found = current_changes()
    changes = changes_in_result(found or b"")
    return {
        "commit": commit,
        "dirty": None if found is None else dirty,
        **({"changes": changes} if changes else {}),
        "environment_hash": environment_hash(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": cpu_model(),
        **({"cpu_signature": signature} if (signature := cpu_signature()) else {}),
        "cores": len(os.sched_getaffinity(0)),
        "host_hash": hashlib.sha256(socket.gethostname().encode()).hexdigest()[:ID_DIGITS],
        "variables": {name: os.environ[name] for name in VARIABLES if name in os.environ},
    }


def git_state() -> tuple[str | None, bool | None]:
    """Commit of this checkout and whether tracked files differ from it; (None, None) where git does not tell.

    A copy of the code for a job is no checkout, and may lie inside of another one: it says itself what it is of.
    """
    top = Path(__file__).resolve().parents[2]
    if (top / SNAPSHOT_FILE).exists():
        noted = json.loads((top / SNAPSHOT_FILE).read_text(encoding="utf-8"))
        return noted["commit"], noted["dirty"]
    if not (top / ".git").exists():  # what lies inside of another checkout is not of its commit
        return None, None
    try:
        commit = _git(top, "rev-parse", "HEAD").decode().strip()
        changed = _git(top, "status", "--porcelain", "--untracked-files=no", "--", ".", ":!results").strip()
    except (OSError, subprocess.SubprocessError):
        return None, None
    return commit, bool(changed)


def installed() -> list[str]:
    """Sorted ``name==version`` of all installed distributions but our own, names in lower case.

    Looked up where packages are installed, not along sys.path: importing a compiler's helpers may lengthen that.
    """
    folders = sorted({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})
    found = {
        f"{dist.metadata['Name'].lower()}=={dist.version}"
        for dist in importlib.metadata.distributions(path=folders)
        if dist.metadata["Name"] and dist.metadata["Name"].lower() != OWN_DISTRIBUTION
    }
    return sorted(found)


def environment_hash() -> str:
    """First 16 hex digits of the SHA-256 of `installed`, one a line."""
    return hashlib.sha256("\n".join(installed()).encode()).hexdigest()[:ID_DIGITS]


def cpu_model() -> str:
    """The processor's own name for itself, or the architecture where the system does not tell."""
    return _cpuinfo().get("model name") or platform.machine()


def cpu_signature() -> str:
    """Family, model and stepping of an x86 processor, 26-2-1; empty where the system does not tell.

    Virtual machines may call processors of several generations by one name.
    """
    told = _cpuinfo()
    keys = ("cpu family", "model", "stepping")
    return "-".join(told[key] for key in keys) if all(map(told.get, keys)) else ""


def _cpuinfo() -> dict[str, str]:
    """What Linux says of the first processor, by name; nothing where it says nothing."""
    try:
        first = CPUINFO.read_text(encoding="utf-8").partition("\n\n")[0]
    except OSError:
        return {}
    pairs = (line.partition(":") for line in first.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


MACHINE: Final = ("cpu", "cores", "torch")
"""Keys of a provenance: seconds that differ in one are not put together."""


def same_machine(*provenances: Mapping[str, Any]) -> bool:
    """Whether seconds that were measured there may be put together: processors of one name, as many cores, one torch.

    Those that tell their `cpu_signature` must have the same; older records do not tell it.
    """
    known = {tuple(found[name] for name in MACHINE) for found in provenances}
    signatures = {found["cpu_signature"] for found in provenances if "cpu_signature" in found}
    return len(known) <= 1 and len(signatures) <= 1


CHANGES_LIMIT_BYTES: Final = 256 << 10
PACKAGES: Final = ("bandwise", "reference_impls", "report", "slurm", "suite")
CHANGES_FILE: Final = "changes.patch"
"""The document, at the top of a copy of the code that was made for a job."""
NEW: Final = re.compile(r"^new file ([0-9a-f]{64}) (.+)$", re.M)
TIMEOUT_S: Final = 60


def changes_of(checkout: Path) -> bytes:
    """The changes of a checkout; empty where there are none. Raises OSError and subprocess.SubprocessError without git."""
    commit = _git(checkout, "rev-parse", "HEAD").decode().strip()
    patch = _git(
        checkout, "diff", "--binary", "--full-index", "--no-color", "--no-ext-diff", "--relative", "HEAD", "--",
        ".", ":!results",
    )  # fmt: skip
    unknown = _git(checkout, "ls-files", "-z", "--others", "--exclude-standard", "--", *PACKAGES)
    names = sorted(name for name in unknown.split(b"\0") if name and not name.endswith(b"/"))
    new = [b"new file %s %s\n" % (_hash(_git_content(checkout / os.fsdecode(n))).encode(), n) for n in names]
    if not patch and not new:
        return b""
    return b"changes to %s\n%s%s" % (commit.encode(), b"".join(new), patch)


def _git_content(path: Path) -> bytes:
    """What git would keep of a path: of a link, to a folder too, where it leads."""
    return os.readlink(os.fsencode(path)) if path.is_symlink() else path.read_bytes()


@lru_cache(maxsize=1)
def current_changes() -> bytes | None:
    """The changes of the code that runs, looked up once a process; of a copy for a job those that came with it.

    Returns:
        The document, empty where there are none; None where git does not tell.
    """
    top = Path(__file__).resolve().parents[2]
    if (top / CHANGES_FILE).is_file():
        return (top / CHANGES_FILE).read_bytes()
    if not (top / ".git").exists():
        return b""
    try:
        return changes_of(top)
    except (OSError, subprocess.SubprocessError):
        return None


def changes_in_result(changes: bytes) -> dict[str, Any] | None:
    """What a result says of them: hash and size; None where there are none."""
    return {"sha256": _hash(changes), "bytes": len(changes)} if changes else None


PUBLISHED: Final = "published"
"""The folder, within a results folder, of what is published; it is laid out like one."""


def changes_path(root: Path, sha256: str) -> Path:
    """Where the document of that hash is kept."""
    return Path(root) / "patches" / f"{sha256}.diff"


def keep_changes(root: Path, changes: bytes | None = None) -> Path | None:
    """Keep the changes (by default those of the code that runs) in a results folder; None where they are not kept.

    Raises `StoreError` where they cannot be written.
    """
    changes = current_changes() if changes is None else changes
    if not changes or len(changes) > CHANGES_LIMIT_BYTES:
        return None
    try:
        text = changes.decode("utf-8")
    except UnicodeDecodeError:
        return None
    path = changes_path(root, _hash(changes))
    if not path.exists():
        write_atomic(path, text)
    return path


def kept_changes(root: Path, sha256: str) -> str | None:
    """The document of that hash, here or published, None where it was not kept.

    Raises `RefusedError` for one that is not what its name says.
    """
    path = changes_path(root, sha256)
    if not path.exists():
        path = changes_path(Path(root) / PUBLISHED, sha256)
    text = read(path, CHANGES_LIMIT_BYTES)
    if text is not None and _hash(text.encode()) != sha256:
        raise RefusedError(path, "is not what its name says", "fetch it again from where the run was made")
    return text


def apply_changes(changes: str, folder: Path, checkout: Path) -> list[str]:
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


CHECKOUT = Path(__file__).resolve().parents[2]
LAST_LINES = 3


class WorktreeError(RuntimeError):
    """The code of the commit cannot be had, or did not carry the run out; the message says why."""


@contextmanager
def worktree(commit: str, checkout: Path = CHECKOUT) -> Iterator[Path]:
    """A folder with the files of `commit`, gone afterwards. Raises `WorktreeError` where git has no such commit."""
    with tempfile.TemporaryDirectory(prefix="bandwise-") as temporary:
        folder = Path(temporary) / "code"
        found = _try_git(
            checkout, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{commit}^{{commit}}"
        )
        if found.stderr.strip():
            raise WorktreeError(f"git does not say whether there is a commit {commit}: {_last(found.stderr)}")
        if found.returncode:
            raise WorktreeError(
                f"this checkout has no commit {commit}: `git fetch --unshallow`, or fetch it from where the run was made"
            )
        added = _try_git(
            checkout, "worktree", "add", "--quiet", "--detach", str(folder), found.stdout.strip()
        )
        if added.returncode:
            raise WorktreeError(f"git makes no worktree of {commit}: {_last(added.stderr)}")
        try:
            yield folder
        finally:
            _try_git(checkout, "worktree", "remove", "--force", str(folder))


def run_at(commit: str, spec: RunSpec, root: Path, checkout: Path = CHECKOUT, changes: str = "") -> list[str]:
    """Carry the run out by the code of `commit`, in a process of its own, into the results folder `root`.

    changes: a document of changes (above) that is made in that code first; what came of it is returned in sentences. A run that
    ends badly is an outcome like any other. Raises `WorktreeError` where no result could come of it.
    """
    with worktree(commit, checkout) as folder:
        try:
            said = apply_changes(changes, folder, checkout) if changes else []
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


def _try_git(checkout: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["git", "-C", str(checkout), *arguments], capture_output=True, text=True, check=False
    )


def _last(text: str) -> str:
    return " ".join(text.strip().splitlines()[-LAST_LINES:]) or "it did not say why"


ERROR: Final = "error"
WARNING: Final = "warning"
HARDWARE: Final = ("system", "cpu", "gpu", "cores", "threads")
CODE: Final = ("commit", "environment_hash")
Counted = tuple[Mapping[str, Any], int]
"""A provenance, and how many runs have it."""


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong: the rule, whether error or warning, of what, what is wrong, what to do."""

    rule: str
    level: str
    subject: str
    what: str
    fix: str

    def as_dict(self) -> dict[str, str]:
        """Plain data."""
        return asdict(self)


def code_known(provenance: Mapping[str, Any]) -> bool:
    """Whether a provenance says which commit the code is of, and whether it was changed."""
    return bool(provenance.get("commit")) and provenance.get("dirty") not in (None, [])


def drift(panel: str, found: Sequence[Counted]) -> Iterator[Finding]:
    """What of the code differs between the runs of a panel; `found`: provenances, each with how many runs it is of."""
    for key in CODE:
        yield from _mixed("drift", panel, found, key, "run the panel again from one checkout")
    if unknown := sum(runs for provenance, runs in found if not code_known(provenance)):
        yield Finding(
            "drift", ERROR, panel, f"{unknown} runs do not say of which commit they are, or whether it was changed",
            "run them again in a checkout that git accepts (`git status` says why it does not)",
        )  # fmt: skip
    if dirty := sum(runs for provenance, runs in found if provenance["dirty"]):
        yield Finding(
            "drift", WARNING, panel, f"{dirty} runs come from a checkout with changes that no commit holds",
            "commit, and run the sweep again before its numbers are published",
        )  # fmt: skip


def hardware(panel: str, found: Sequence[Counted]) -> Iterator[Finding]:
    """What of the machine differs between the runs of a panel; `found` as in `drift`."""
    for key in HARDWARE:
        yield from _mixed(
            "hardware", panel, found, key,
            "bits may differ between kinds of machine: run what is compared on one of them",
        )  # fmt: skip


def _mixed(rule: str, panel: str, found: Sequence[Counted], key: str, fix: str) -> Iterator[Finding]:
    counted: dict[str, int] = defaultdict(int)
    for provenance, runs in found:
        counted[str(provenance.get(key))] += runs
    if len(counted) > 1:
        values = ", ".join(f"{value} ({count} runs)" for value, count in sorted(counted.items()))
        yield Finding(rule, WARNING, panel, f"its runs differ in {key}: {values}", fix)
