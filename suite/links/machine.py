"""What there is to know about the machine at hand, asked in one place so that it can be asked of a made-up one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from suite.links import trial
from suite.links.system import environ, find

CHECKOUT = Path(__file__).resolve().parents[2]
TRIAL_TIMEOUT_S = 60.0

Trial = dict[str, str | None]
"""Step of `suite.links.trial` -> None where it worked, else what the system said; missing where not reached."""


def run_trial() -> Trial:
    """Try out namespaces and shaping. Starts one process; nothing of it is left."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", trial.__name__],
            cwd=CHECKOUT,
            env=environ(),
            capture_output=True,
            text=True,
            timeout=TRIAL_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {trial.NAMESPACES: f"the trial did not end within {TRIAL_TIMEOUT_S:g} s"}
    if done.returncode != 0:
        return {trial.NAMESPACES: f"the trial failed: {(done.stderr.strip() or 'no word').splitlines()[-1]}"}
    found: Trial = json.loads(done.stdout)
    return found


@dataclass(frozen=True)
class Machine:
    """A machine to examine.

    root: below it lie ``proc``, ``sys`` and marker files. uid: of who asks. cores: that may be used. find: absolute path of
    a program or None. trial: runs `suite.links.trial`. python_header: whether Python's C header is there.
    """

    root: Path
    uid: int
    cores: int
    find: Callable[[str], str | None]
    trial: Callable[[], Trial]
    python_header: bool

    @classmethod
    def here(cls) -> Machine:
        """This machine, for this process."""
        return cls(
            root=Path("/"),
            uid=os.geteuid(),
            cores=len(os.sched_getaffinity(0)),
            find=find,
            trial=run_trial,
            python_header=Path(sysconfig.get_path("include"), "Python.h").is_file(),
        )

    def read(self, path: str) -> str | None:
        """Text of a file below `root`, or None where it cannot be read."""
        try:
            return (self.root / path).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return None

    def number(self, path: str) -> int | None:
        """The number that a file of the kernel holds, or None."""
        text = (self.read(path) or "").strip()
        return int(text) if text.lstrip("-").isdigit() else None

    def status(self, key: str) -> str | None:
        """A field of ``/proc/self/status``, such as ``CapEff``."""
        for line in (self.read("proc/self/status") or "").splitlines():
            name, _, value = line.partition(":")
            if name == key:
                return value.strip()
        return None

    def has_capability(self, number: int) -> bool:
        """Whether this process holds a capability of <linux/capability.h>; True where the kernel does not tell."""
        held = self.status("CapEff")
        return held is None or bool(int(held, 16) >> number & 1)

    def in_container(self) -> bool:
        """Whether this looks like the inside of a container."""
        if (self.root / ".dockerenv").exists() or (self.root / "run/.containerenv").exists():
            return True
        control_groups = self.read("proc/1/cgroup") or ""
        return any(word in control_groups for word in ("docker", "kubepods", "containerd", "lxc"))
