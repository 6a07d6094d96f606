"""Where a result comes from: commit, environment, machine, and how the code that ran differs from its commit.

*Provenance* is an allow-list: nothing is recorded that is not named here. Host names are hashed, environment variables are
left out but for the few that change numbers or speed.

*Changes* of a checkout are on record as the SHA-256 and size of a document: the commit, a line for each new file of the packages
with its hash, and what tracked files, results left out, differ in. The document itself is kept nowhere.

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
import socket
import subprocess
import sysconfig
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from suite.runs.files import ID_DIGITS

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
"""Lies at the top of a copy of the code that was made for a job: ``{"commit": ..., "dirty": ..., "changes": ...}``."""


def provenance() -> dict[str, Any]:
    """What is recorded beside a result: plain JSON values, gathered once a process except for the thread count."""
    import torch

    return {**_constant(), "torch": torch.__version__, "threads": torch.get_num_threads()}


@lru_cache(maxsize=1)
def _constant() -> dict[str, Any]:
    return {
        **code_state(),
        "environment_hash": environment_hash(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": cpu_model(),
        **({"cpu_signature": signature} if (signature := cpu_signature()) else {}),
        "cores": len(os.sched_getaffinity(0)),
        "host_hash": hashlib.sha256(socket.gethostname().encode()).hexdigest()[:ID_DIGITS],
        "variables": {name: os.environ[name] for name in VARIABLES if name in os.environ},
    }


def code_state() -> dict[str, Any]:
    """The `commit` of the code that runs, whether tracked files are `dirty`, and any `changes`; None where git does not tell.

    A copy of the code for a job is no checkout, and may lie inside of another one: it says itself what it is of.
    """
    top = Path(__file__).resolve().parents[2]
    if (top / SNAPSHOT_FILE).exists():
        return dict(json.loads((top / SNAPSHOT_FILE).read_text(encoding="utf-8")))
    if not (top / ".git").exists():  # what lies inside of another checkout is not of its commit
        return {"commit": None, "dirty": None}
    try:
        commit = _git(top, "rev-parse", "HEAD").decode().strip()
        changed = _git(top, "status", "--porcelain", "--untracked-files=no", "--", ".", ":!results").strip()
        changes = changes_of(top)
    except (OSError, subprocess.SubprocessError):
        return {"commit": None, "dirty": None}
    return {"commit": commit, "dirty": bool(changed), **({"changes": changes} if changes else {})}


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


PACKAGES: Final = ("bandwise", "reference_impls", "report", "slurm", "suite")
TIMEOUT_S: Final = 60


def changes_of(checkout: Path) -> dict[str, Any] | None:
    """How a checkout differs from its commit: `sha256` and `bytes` of the document of it (above); None where it does not.

    Raises OSError and subprocess.SubprocessError without git.
    """
    commit = _git(checkout, "rev-parse", "HEAD").decode().strip()
    patch = _git(
        checkout, "diff", "--binary", "--full-index", "--no-color", "--no-ext-diff", "--relative", "HEAD", "--",
        ".", ":!results",
    )  # fmt: skip
    unknown = _git(checkout, "ls-files", "-z", "--others", "--exclude-standard", "--", *PACKAGES)
    names = sorted(name for name in unknown.split(b"\0") if name and not name.endswith(b"/"))
    new = [b"new file %s %s\n" % (_hash(_git_content(checkout / os.fsdecode(n))).encode(), n) for n in names]
    if not patch and not new:
        return None
    document = b"changes to %s\n%s%s" % (commit.encode(), b"".join(new), patch)
    return {"sha256": _hash(document), "bytes": len(document)}


def _git_content(path: Path) -> bytes:
    """What git would keep of a path: of a link, to a folder too, where it leads."""
    return os.readlink(os.fsencode(path)) if path.is_symlink() else path.read_bytes()


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _git(checkout: Path, *arguments: str) -> bytes:
    command = ["git", "--no-optional-locks", "-C", str(checkout), *arguments]
    return subprocess.run(command, capture_output=True, check=True, timeout=TIMEOUT_S).stdout


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
    """What of code and machine differs between the runs of a panel; `found`: provenances, each with how many runs it is of."""
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
    for key in HARDWARE:
        yield from _mixed(
            "hardware", panel, found, key,
            "bits may differ between kinds of machine: run what is compared on one of them",
        )  # fmt: skip


def _mixed(rule: str, panel: str, found: Sequence[Counted], key: str, fix: str) -> Iterator[Finding]:
    values: Counter[str] = Counter()
    for provenance, runs in found:
        values[str(provenance.get(key))] += runs
    if len(values) > 1:
        told = ", ".join(f"{value} ({count} runs)" for value, count in sorted(values.items()))
        yield Finding(rule, WARNING, panel, f"its runs differ in {key}: {told}", fix)
