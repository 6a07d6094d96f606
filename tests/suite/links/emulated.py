"""Small helpers of the tests of emulated clusters."""

from __future__ import annotations

from pathlib import Path

from suite.links.link import Link
from suite.links.state import Layout, State

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
