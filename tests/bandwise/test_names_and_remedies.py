"""Every verb that takes a study takes its name or the path of its file, and every command that is printed as a remedy works."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest

from bandwise.cli import main
from suite.runs.store import Store
from tests.bandwise.said import refusal
from tests.support import ROOT, Capsys, Patch

COMMAND = re.compile(r"`bandwise ([^`]+)`")
VERBS = ("sweep --dry-run", "status", "sweep --jobs 1", "export", "publish --check")


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: Patch) -> None:
    """The current folder is not that of the project."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")


def call(verb: str, name: str) -> list[str]:
    """A command of the verb that is over soon."""
    word, *more = verb.split()
    return [word, name, *more]


def test_a_verb_takes_a_path_from_anywhere_and_in_its_folder_the_name(
    project: Path, monkeypatch: Patch, capsys: Capsys
) -> None:
    path = str(project / "small.yaml")
    assert main(["export", path]) == 0
    for name in (path, "small", "small.yaml"):
        if name != path:
            monkeypatch.chdir(project)
        for verb in VERBS:
            assert main(call(verb, name)) == 0, (verb, name, capsys.readouterr().err)


def test_a_name_that_is_nowhere_says_how_to_give_one(project: Path, capsys: Capsys) -> None:
    for verb in ("report", "publish --check", "export"):
        assert main(call(verb, "smal")) in (2, 3)
        assert "named by the path of its file, or in its folder by its name" in capsys.readouterr().err


def test_a_session_is_no_sweep_and_a_sweep_no_session(capsys: Capsys) -> None:
    session, sweep = (str(ROOT / "suite" / kind / "quick.yaml") for kind in ("sessions", "sweeps"))
    said = refusal(capsys, "status", session)
    assert "is a timing session, not a sweep: `bandwise session quick`" in said
    said = refusal(capsys, "report", "code-gpt")
    assert "code-gpt is a timing session; it stands on the page that `bandwise report` makes" in said
    assert "is a sweep, not a timing session" in refusal(capsys, "session", sweep, "--dry-run")


@pytest.mark.parametrize(
    "state", ["an error", *(pytest.param(state, marks=pytest.mark.full) for state in ("tables", "no runs"))]
)
def test_every_printed_remedy_works(state: str, project: Path, capsys: Capsys, no_pictures: None) -> None:
    """Of a project without tables, with a run that failed beside one that is gone, and without any run."""
    store, path = Store(project / "results"), str(project / "small.yaml")
    if state == "no runs":
        shutil.rmtree(project / "results")
    elif state == "an error":
        first, second, *_ = store.run_ids()
        result = store.folder(first) / "result.json"
        text = result.read_text().replace('"status":"done"', '"status":"error"')
        result.write_text(text.replace('"reason":""', '"reason":"x"'))
        shutil.rmtree(store.folder(second))
    printed = ""
    for verb in ("publish --check", "export", "report", "publish", "sweep --dry-run", "status"):
        main(call(verb, path))
        said = capsys.readouterr()
        printed += said.out + said.err
    remedies = {words for words in COMMAND.findall(printed) if "SWEEP" not in words and "NAME" not in words}
    assert remedies, "something is said of each of these states"
    turns = ["sweep", "report"]  # runs before tables before the rest, as the messages say
    for words in sorted(
        remedies, key=lambda words: (words.split()[0] not in turns, "report" in words, words)
    ):
        code = main(shlex.split(words))
        said = capsys.readouterr()
        assert code in (0, 3), f"bandwise {words}: {said.err}"
        assert "no sweep" not in said.err
