"""Small helpers of the tests of emulated clusters."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from suite.links.keeper import Layout, State
from suite.links.link import Link
from tests.support import skip_or_fail

ROOT = Path(__file__).resolve().parents[3]
NOBODY = 65534
TWO = Link.parse(2, "100mbit")


def recorded(state_dir: Path) -> State:
    state = State.read(Layout(state_dir))
    assert state is not None
    return state


def fake_programs(folder: Path, programs: dict[str, str]) -> None:
    for name, script in programs.items():
        path = folder / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)


def said_by_nobody(copy: Path, paths: tuple[str, ...], module: str, *arguments: str) -> str:
    """What a module says that is run by a user without any privilege, from a copy of these files that they can read."""
    for name in paths:
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        make = shutil.copytree if (ROOT / name).is_dir() else shutil.copyfile
        make(ROOT / name, copy / name)
    for path in [copy, *copy.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    command = [*as_user(NOBODY), interpreter_for(NOBODY), "-B", "-m", module, *arguments]
    done = subprocess.run(command, cwd=copy, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr
    return done.stdout


def interpreter_for(user: int) -> str:
    """A Python that this user can run: ours may lie in somebody's home."""
    check = 'exec "$0" -c "import sys; sys.exit(sys.version_info < (3, 11))"'
    for python in (sys.executable, "/usr/bin/python3", "/usr/local/bin/python3"):
        # by way of a shell, since setpriv itself still has the privileges that it gives away
        done = subprocess.run(
            [*as_user(user), "sh", "-c", check, python], capture_output=True, check=False, cwd="/"
        )
        if done.returncode == 0:
            return python
    return skip_or_fail(f"user {user} can run no Python of 3.11 or newer: install python3 for everybody")


def as_user(user: int) -> list[str]:
    return ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"]
