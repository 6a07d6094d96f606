"""What is published: whole or refused, never replaced in silence, every change to it is found."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from bandwise.cli import main
from report.publication import publish
from suite.analysis import published
from suite.analysis.published import PublishedError, facts_path, read_manifest, source, verify
from suite.analysis.tables import CLAIMS, PARTS, SUMMARY, read_table, table_path, write_table
from suite.runs.files import StoreError
from tests.bandwise.said import refusal
from tests.report.conftest import Built
from tests.suite.analysis import made_up_session
from tests.support import ROOT, Capsys, Patch

DAY = "2027-02-01"
RESULTS = ROOT / "results"


def whole(root: Path, name: str) -> None:
    """Let the facts of a made-up study say that all of it was run from one commit."""
    path = facts_path(root, name)
    facts = json.loads(path.read_text())
    facts["statuses"] = {"done": sum(facts["statuses"].values())}
    facts["origins"] = [{**origin, "dirty": False, "changes": None} for origin in facts.get("origins", ())]
    path.write_text(json.dumps(facts))


@pytest.fixture
def root(built: Built, tmp_path: Path, no_pictures: None) -> Path:
    """The made-up tables alone, as if all of it had been run."""
    shutil.copytree(built.root / "tables", tmp_path / "tables")
    whole(tmp_path, "made-up")
    return tmp_path


def test_a_study_is_published_with_hashes_and_read_from_there(root: Path) -> None:
    (found,) = publish(root, "made-up", day=DAY)
    files = read_manifest(root / "published")["sets"]["made-up"]["files"]
    assert {
        "tables/made-up-runs.csv",
        "tables/made-up-study.json",
        "figures/made-up/seeds-digits-mlp-iid-n4.svg",
    } <= set(files)
    assert found == publish(root, "made-up", day="2027-03-01")[0], "the same again changes nothing"
    assert verify(root) == []
    assert source(root, "made-up").words == "made here"
    shutil.rmtree(root / "tables")
    assert source(root, "made-up").words == f"published {DAY}"
    path = published.find_table(root, SUMMARY, "made-up")
    assert path.is_relative_to(root / "published")
    assert read_table(path, SUMMARY)


DIRTY = {"commit": "f" * 40, "dirty": True, "runs": 216}


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (
            {"statuses": {"done": 214, "missing": 2}},
            r"2 of 216 runs have not finished: 2 missing; `bandwise status made-up`",
        ),
        ({"origins": [{**DIRTY, "changes": "ab" * 32}]}, "made by changed code: commit, and run it again"),
        ({"origins": [{**DIRTY, "commit": None, "dirty": False}]}, "not known of which commit"),
        ({"origins": [{"commit": "f" * 40, "dirty": None}]}, "not known of which commit"),
    ],
)
def test_what_is_not_whole_or_known_is_refused(changed: dict[str, object], words: str, root: Path) -> None:
    facts = facts_path(root, "made-up")
    facts.write_text(json.dumps({**json.loads(facts.read_text()), **changed}))
    with pytest.raises(PublishedError, match=words):
        publish(root, "made-up")
    assert not (root / "published").exists()


def test_nothing_different_is_replaced_in_silence(root: Path) -> None:
    before = publish(root, "made-up", day=DAY)[0]
    path = table_path(root, SUMMARY, "made-up")
    path.write_text(path.read_text().replace("undecided", "yes", 1))
    with pytest.raises(PublishedError, match=f"made-up is published, {DAY}, and differs .* --replace"):
        publish(root, "made-up")
    assert verify(root) == []
    after = publish(root, "made-up", replace=True, day="2027-03-01")[0]
    assert after.fingerprint != before.fingerprint
    assert (root / "published" / "tables" / path.name).read_bytes() == path.read_bytes()
    assert verify(root) == []


def test_a_session_needs_every_link(root: Path) -> None:
    made_up_session.write_both(root)
    name = "code-gpt"
    for path in (root / "tables").glob("session-timed-*"):
        path.rename(path.with_name(path.name.replace("timed", name)))
    assert publish(root, name)[0].name == f"session-{name}"
    facts = root / "tables" / f"session-{name}-facts.json"
    facts.write_text(facts.read_text().replace('"status": "done"', '"status": "disturbed"'))
    with pytest.raises(PublishedError, match=f"{name} is not whole"):
        publish(root, name, replace=True)
    assert source(root, f"session-{name}").local is False, "what is published stands in"


def test_claims_are_published_and_nothing_is_said_so(root: Path, capsys: Capsys) -> None:
    assert "no verdict was made here" in refusal(capsys, "publish", "claims", "--results", str(root))
    for table in (CLAIMS, PARTS):
        write_table(table_path(root, table), table, [])
    assert [(one.name, one.files) for one in publish(root, "claims")] == [("claims", 2)]
    assert "nothing was made here of no-such" in refusal(capsys, "publish", "no-such", "--results", str(root))


def test_what_cannot_be_finished_is_noticed_and_completed(root: Path, monkeypatch: Patch) -> None:
    moves = []

    def full(source: Path, target: Path) -> None:
        moves.append(target)
        if len(moves) == 3:
            raise OSError(28, "No space left on device")
        shutil.move(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        with pytest.raises(StoreError, match="no space left"):
            publish(root, "made-up")
    assert [line.split(" is ")[1] for line in verify(root)] == ["in no set of the manifest"] * 2
    publish(root, "made-up")
    assert verify(root) == []


def test_every_change_is_found_by_the_verb_and_by_check(root: Path, capsys: Capsys) -> None:
    publish(root, "made-up")
    arguments = ["publish", "--verify", "--results", str(root)]
    assert main(arguments) == 0
    assert "every file is as published" in capsys.readouterr().out
    folder = root / "published"
    (folder / "tables" / "made-up-runs.csv").write_text("better numbers")
    (folder / "tables" / "made-up-tuning.csv").unlink()
    (folder / "more.txt").write_text("more")
    assert main([*arguments, "--json"]) == 3
    assert json.loads(capsys.readouterr().out)["wrong"] == [
        "tables/made-up-tuning.csv is missing",
        "more.txt is in no set of the manifest",
        "tables/made-up-runs.csv has changed",
    ]
    assert main(["publish", "--check", "--results", str(root)]) == 3
    assert "error: published: published: tables/made-up-runs.csv: has changed" in capsys.readouterr().out
    assert main(["publish", "--results", str(root)]) == 2


def test_what_ships_is_as_it_was_published() -> None:
    """After an edit by hand: take the file from git again, or publish."""
    assert verify(RESULTS) == []


def test_sessions_of_another_machine_are_not_lost(tmp_path: Path) -> None:
    for folder in ("published/tables", "tables"):
        (tmp_path / folder).mkdir(parents=True)
        for path in (RESULTS / "published" / "tables").glob("session-quick-*"):
            shutil.copy(path, tmp_path / folder)
    shutil.copy(RESULTS / "published" / "manifest.json", tmp_path / "published")
    path = tmp_path / "tables" / "session-quick-facts.json"
    facts = json.loads(path.read_text())
    elsewhere = {**facts["provenance"], "cpu": "Another Processor"}
    path.write_text(json.dumps({**facts, "session_id": "20270201T000000Z-0", "provenance": elsewhere}))
    with pytest.raises(
        PublishedError, match=r"published sessions of quick would be lost.*these on Another Processor"
    ):
        publish(tmp_path, "quick", replace=True)
    kept = tmp_path / "published" / "tables" / path.name
    assert json.loads(kept.read_text()) == facts
