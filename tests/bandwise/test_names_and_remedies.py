"""Every verb that takes a study takes its name or the path of its file, and every command that is printed as a remedy works."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest

from bandwise.cli import main
from suite.runs.store import Store
from tests.suite.runs.project import SWEEP, train_here, write_sweep

COMMAND = re.compile(r"`bandwise ([^`]+)`")
VERBS = (
    "sweep --dry-run", "status", "sweep --jobs 1", "export", "publish --check", "report", "publish", "sweep --retry error"
)  # fmt: skip


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder, with a blank in its name, with a sweep file and the results of all its runs."""
    folder = tmp_path_factory.mktemp("a project") / "of mine"
    folder.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BANDWISE_COMPILE", "0")
        train_here(write_sweep(folder, SWEEP), folder / "results")
    return folder


@pytest.fixture
def project(swept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it whose results are the default; the current folder is another one."""
    folder, elsewhere = tmp_path / "my project", tmp_path / "elsewhere"
    shutil.copytree(swept, folder)
    elsewhere.mkdir()
    monkeypatch.setenv("BANDWISE_RESULTS", str(folder / "results"))
    monkeypatch.setenv("BANDWISE_COMPILE", "0")
    monkeypatch.chdir(elsewhere)
    clean(folder)
    return folder


def clean(folder: Path) -> None:
    """Let results say that they are from one commit without changes, whatever checkout the tests run in."""
    for path in folder.rglob("result.json"):
        text = re.sub(r'"changes":\s*\{[^}]*\},?', "", path.read_text())
        path.write_text(re.sub(r'"dirty":\s*true', '"dirty":false', text))


def call(verb: str, name: str) -> list[str]:
    """A command of the verb that is over soon."""
    word, *more = verb.split()
    return [word, name, *more]


@pytest.mark.parametrize(
    "verb", [*VERBS[:5], *(pytest.param(verb, marks=pytest.mark.full) for verb in VERBS[5:])]
)
def test_a_verb_takes_a_path_from_anywhere_and_in_its_folder_the_name(
    verb: str, project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(project / "small.yaml")
    assert main(["export", path]) == 0
    for name in (path, "small", "small.yaml"):
        if name != path:
            monkeypatch.chdir(project)
        assert main(call(verb, name)) == 0, (name, capsys.readouterr().err)


def test_a_name_that_is_nowhere_says_how_to_give_one(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for verb in ("report", "publish --check", "export"):
        assert main(call(verb, "smal")) in (2, 3)
        assert "named by the path of its file, or in its folder by its name" in capsys.readouterr().err


def test_a_session_is_no_sweep_and_a_sweep_no_session(capsys: pytest.CaptureFixture[str]) -> None:
    folder = Path(__file__).resolve().parents[2] / "suite"
    assert main(["status", str(folder / "sessions" / "quick.yaml")]) == 2
    assert "is a timing session, not a sweep: `bandwise session quick`" in capsys.readouterr().err
    assert main(["report", "code-gpt"]) == 2
    assert (
        "code-gpt is a timing session; it stands on the page that `bandwise report` makes"
        in capsys.readouterr().err
    )
    assert main(["session", str(folder / "sweeps" / "quick.yaml"), "--dry-run"]) == 2
    assert "is a sweep, not a timing session" in capsys.readouterr().err


def order(words: str) -> int:
    """Rates before runs before tables before the rest, as the messages say."""
    verb = words.split()[0]
    return 0 if "--tune" in words else {"sweep": 1, "report": 2}.get(verb, 3)


def lose(project: Path, what: str) -> None:
    """Bring the project into a state of which a verb has something to say."""
    store = Store(project / "results")
    runs = store.run_ids()
    if what == "tables":
        return
    if what == "all runs":
        shutil.rmtree(project / "results")
    elif what == "two runs":
        for run_id in runs[:2]:
            shutil.rmtree(store.folder(run_id))
    elif what == "an error":
        path = store.folder(runs[0]) / "result.json"
        path.write_text(
            path.read_text()
            .replace('"status":"done"', '"status":"error"')
            .replace('"reason":""', '"reason":"x"')
        )
    elif what == "rates":
        text = (project / "small.yaml").read_text()
        tuning = "tuning: {points: 3, factor: 3.0, extensions: 0, seeds: 1, centres: {plain: 0.1}}\n"
        (project / "small.yaml").write_text(re.sub(r", lr: [0-9.e-]+", "", text) + tuning)


@pytest.mark.parametrize(
    "state",
    [
        "tables",
        pytest.param("all runs", marks=pytest.mark.full),
        pytest.param("two runs", marks=pytest.mark.full),
        "an error",
        pytest.param("rates", marks=pytest.mark.full),
    ],
)
def test_every_remedy_that_is_printed_is_accepted(
    state: str, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lose(project, state)
    path = str(project / "small.yaml")
    printed = ""
    for verb in ("publish --check", "export", "report", "publish", "sweep --dry-run", "status"):
        main(call(verb, path))
        said = capsys.readouterr()
        printed += said.out + said.err
    remedies = {words for words in COMMAND.findall(printed) if "SWEEP" not in words and "NAME" not in words}
    assert remedies, "something is said of each of these states"
    for words in sorted(remedies, key=lambda words: (order(words), words)):
        code = main(shlex.split(words))
        said = capsys.readouterr()
        assert code in (0, 3), f"bandwise {words}: {said.err}"
        assert "no sweep" not in said.err
