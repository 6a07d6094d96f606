"""Verbs that only look answer without torch, whose import takes seconds, and within the time that a look may take."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.suite.runs.project import SWEEP, write_sweep
from tests.support import ROOT

HEAVY = ("torch", "numpy", "pandas", "seaborn", "submitit")
CODE = f"""
import json, sys, time
from bandwise.cli import main
for command in json.loads(sys.argv[1]):
    code = main(command)
    heavy = [name for name in {HEAVY!r} if name in sys.modules]
    done = {{"code": code, "heavy": heavy, "seconds": time.process_time()}}
    print(json.dumps(done), file=sys.stderr)
"""


def sweep_of(folder: Path, arms: int, seeds: int) -> str:
    """A sweep of so many arms, with pinned rates."""
    head = SWEEP.partition("arms:")[0].replace("seeds: 3", f"seeds: {seeds}")
    lines = [
        f"  a{i}: {{algorithm: local-sgd, options: {{period: {i + 2}}}, lr: 0.01}}\n" for i in range(arms)
    ]
    return write_sweep(folder, head + "arms:\n" + "".join(lines))


def look(results: Path, *commands: Sequence[str]) -> tuple[str, list[dict[str, Any]]]:
    """What commands in a process of their own print, and what that process had done after each."""
    results.mkdir(exist_ok=True)  # status refuses a folder that is not there
    whole = [[*command, "--json", "--results", str(results)] for command in commands]
    process = [sys.executable, "-c", CODE, json.dumps(whole)]
    done = subprocess.run(process, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    spent = [json.loads(line) for line in done.stderr.splitlines() if line.startswith('{"code"')]
    assert len(spent) == len(commands), done.stderr
    return done.stdout, spent


def test_a_second_look_needs_no_torch(tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path, 2, 2)
    _, (first,) = look(tmp_path / "r", ("sweep", sweep, "--dry-run"))
    assert first["code"] == 0
    verbs = (("sweep", sweep, "--dry-run"), ("status", sweep))
    for verb, second in zip(verbs, look(tmp_path / "r", *verbs)[1], strict=True):
        assert second["heavy"] == [], verb


@pytest.mark.full
def test_three_thousand_runs_are_looked_at_in_two_seconds_of_processor_time(tmp_path: Path) -> None:
    """The whole command, Python's own start included. No plan of it was made before: the plan is the slow look."""
    sweep = sweep_of(tmp_path, 30, 100)
    planned, (first,) = look(tmp_path / "r", ("sweep", sweep, "--dry-run"))
    assert json.loads(planned)["runs"] == 3000
    assert first["code"] == 0
    for verb in (("sweep", sweep, "--dry-run"), ("status", sweep)):
        found, (spent,) = look(tmp_path / "r", verb)
        assert json.loads(found)["runs"] == 3000
        assert spent["heavy"] == []
        assert spent["seconds"] < 2.0, verb
