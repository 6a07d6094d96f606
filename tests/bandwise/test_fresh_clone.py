"""The README's commands in a fresh clone, in their order: git sees no change, and what ships is judged by what ships."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
SHIPPED = ("tests/report/test_publication.py::test_what_ships_is_as_it_was_published",)


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that git would have of this checkout as it is now, in a repository of their own."""
    if not (CHECKOUT / ".git").exists():
        pytest.skip("this is no git checkout")
    folder = tmp_path_factory.mktemp("fresh") / "clone"
    listed = subprocess.run(
        ["git", "-C", str(CHECKOUT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        capture_output=True, check=True,
    ).stdout.decode()  # fmt: skip
    for name in filter(None, listed.split("\0")):
        if (CHECKOUT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(CHECKOUT / name, folder / name)
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "as it is"]):
        subprocess.run(
            ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b", *command], check=True
        )
    return folder


def python(clone: Path, *arguments: str) -> str:
    """Run a module of the clone; returns what it said."""
    environment = {**os.environ, "PYTHONPATH": str(clone), "BANDWISE_COMPILE": "0"}
    done = subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=clone,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def changed(clone: Path) -> str:
    """What git sees."""
    command = ["git", "-C", str(clone), "status", "--porcelain"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.full
@pytest.mark.timeout(1200)  # pages of many studies, on a machine that may be busy
def test_what_is_made_here_displaces_nothing_that_is_published(clone: Path) -> None:
    python(clone, "bandwise", "sweep", "smoke", "--jobs", "1")
    assert "smoke: made here" in python(clone, "bandwise", "report", "smoke")
    python(clone, "bandwise", "sweep", "digits", "--only", "allreduce-sgd", "--jobs", "1")
    # a session that was held here, on a machine of another speed
    tables = clone / "results" / "tables"
    for path in (clone / "results" / "published" / "tables").glob("session-quick-digits-*"):
        shutil.copy(path, tables / path.name)
    cases = tables / "session-quick-digits-cases.csv"
    cases.write_text(cases.read_text().replace(",0.0", ",0.1"))
    shown = python(clone, "bandwise", "report", "digits")
    assert "digits: published" in shown
    assert "`bandwise report digits --local` shows it" in shown
    assert "session-quick-digits: made here" in shown
    assert "digits: made here" in python(clone, "bandwise", "report", "digits", "--local")
    site = python(clone, "bandwise", "report")
    assert "Made here and not shown, since it is not whole: " in site
    assert re.search(r"digits \(\d+ of 552 runs have not finished: \d+ missing\)", site)
    assert changed(clone) == ""
    assert "every file is as published" in python(clone, "bandwise", "publish", "--verify")
    python(clone, "pytest", "-q", "-p", "no:cacheprovider", *SHIPPED)
    assert changed(clone) == ""
