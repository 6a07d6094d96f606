"""Where a result comes from: commit, environment, machine. An allow-list: nothing is recorded that is not named here.

Host names are hashed, environment variables are left out but for the few that change numbers or speed.
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
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from suite.runs import code_state as changes
from suite.runs.canonical import ID_DIGITS

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
SNAPSHOT_FILE: Final = "snapshot.json"
"""Lies at the top of a copy of the code that was made for a job: ``{"commit": ..., "dirty": ...}``."""


def provenance() -> dict[str, Any]:
    """What is recorded beside a result: plain JSON values, gathered once a process except for the thread count."""
    import torch

    return {**_constant(), "torch": torch.__version__, "threads": torch.get_num_threads()}


@lru_cache(maxsize=1)
def _constant() -> dict[str, Any]:
    commit, dirty = git_state()
    changed = changes.described(changes.current())
    return {
        "commit": commit,
        "dirty": dirty,
        **({"changes": changed} if changed else {}),
        "environment_hash": environment_hash(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "host_hash": hashlib.sha256(socket.gethostname().encode()).hexdigest()[:ID_DIGITS],
        "variables": {name: os.environ[name] for name in VARIABLES if name in os.environ},
    }


def git_state() -> tuple[str | None, bool | None]:
    """Commit of this checkout and whether tracked files differ from it; (None, None) outside of git.

    A copy of the code for a job is no checkout, and may lie inside of another one: it says itself what it is of.
    """
    top = Path(__file__).resolve().parents[2]
    if (top / SNAPSHOT_FILE).exists():
        noted = json.loads((top / SNAPSHOT_FILE).read_text(encoding="utf-8"))
        return noted["commit"], noted["dirty"]
    try:
        commit = _git(top, "rev-parse", "HEAD")
        changed = _git(top, "status", "--porcelain", "--untracked-files=no", "--", ".", ":!results")
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
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def _git(top: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "--no-optional-locks", "-C", str(top), *arguments],
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    return done.stdout.strip()
