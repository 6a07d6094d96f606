"""A small project with all its runs, trained once."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.suite.runs.project import SWEEP, train_here, write_sweep


@pytest.fixture(autouse=True)
def _eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is trained here is not compiled, with the same bits."""
    monkeypatch.setenv("BANDWISE_COMPILE", "0")


@pytest.fixture(scope="session")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a sweep file and the results of all its runs, which are from one commit without changes."""
    folder = tmp_path_factory.mktemp("swept")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BANDWISE_COMPILE", "0")
        train_here(write_sweep(folder, SWEEP), folder / "results")
    for path in folder.rglob("result.json"):
        text = re.sub(r'"changes":\s*\{[^}]*\},?', "", path.read_text())
        path.write_text(re.sub(r'"dirty":\s*true', '"dirty":false', text))
    return folder


@pytest.fixture
def project(swept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it in a folder with a blank in its name, whose results are the default."""
    folder = Path(shutil.copytree(swept, tmp_path / "my project"))
    monkeypatch.setenv("BANDWISE_RESULTS", str(folder / "results"))
    return folder


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The results folder of the test, by the environment; empty."""
    monkeypatch.setenv("BANDWISE_RESULTS", str(tmp_path / "results"))
    return tmp_path / "results"
