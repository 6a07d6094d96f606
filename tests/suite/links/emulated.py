"""Small helpers of the tests of emulated clusters."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from suite.links.link import Link
from suite.links.state import Layout, State

TWO = Link.parse(2, "100mbit")


def eventually(condition: Callable[[], bool], timeout_s: float = 20.0) -> bool:
    """Whether the condition comes true within the time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def recorded(state_dir: Path) -> State:
    state = State.read(Layout(state_dir))
    assert state is not None
    return state


def fake_programs(folder: Path, programs: dict[str, str]) -> None:
    for name, script in programs.items():
        path = folder / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
