"""Readers take what was made here where it is whole and what is published otherwise, and never mix the two."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from suite.analysis.published import (
    PublishedError,
    files_of,
    find_table,
    load_facts,
    of_study,
    put,
    read_facts,
    read_manifest,
    refused_rows,
    sessions_held,
    source,
    studies_of,
    unfinished,
)
from suite.analysis.tables import RUNS, TableError, read_table, table_path, write_table
from suite.runs.store import Store
from tests.suite.runs.project import one_spec

SHIPPED = Path(__file__).resolve().parents[3] / "results" / "published"


def study(root: Path, name: str, **statuses: int) -> None:
    """Facts and one table of a study."""
    write_table(table_path(root, RUNS, name), RUNS, [])
    (root / "tables" / f"{name}-study.json").write_text(json.dumps({"statuses": statuses}))


def session(root: Path, name: str, status: str = "done", **links: str) -> None:
    """Facts of a session; links: their status by label."""
    path = root / "tables" / f"session-{name}-facts.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    listed = [{"label": label, "status": word} for label, word in links.items()]
    path.write_text(
        json.dumps({"schema_version": 1, "status": status, "reason": "no cluster", "links": listed})
    )


def test_tables_that_lack_origins_say_what_their_rows_and_facts_do() -> None:
    path = SHIPPED / "tables" / "claims" / "qsr-study.json"
    facts, runs = read_facts(path), read_table(table_path(SHIPPED, RUNS, "claims/qsr"), RUNS)
    assert facts is not None
    assert "origins" not in facts
    found = of_study(facts, runs)
    assert sum(origin["runs"] for origin in found) == len(runs)
    assert [origin["commit"] for origin in found] == facts["provenance"]["commit"]


@pytest.mark.parametrize(
    ("statuses", "words"),
    [
        ({"done": 5, "diverged": 1}, "made here"),
        ({"done": 2, "missing": 550}, "published"),
        ({"done": 5, "error": 1}, "published"),
    ],
)
def test_a_study_is_read_here_where_every_run_has_ended(
    statuses: dict[str, int], words: str, tmp_path: Path
) -> None:
    study(tmp_path / "published", "digits", done=6)
    assert source(tmp_path, "digits").words == "published"
    study(tmp_path, "digits", **statuses)
    found = source(tmp_path, "digits")
    assert found.words == words
    assert bool(found.aside) == (words != "made here")
    assert find_table(tmp_path, RUNS, "digits").is_relative_to(found.root / "tables")
    assert source(tmp_path, "digits", "local").local
    assert not source(tmp_path, "digits", "published").local
    assert studies_of(tmp_path) == ["digits"]


def test_what_is_published_nowhere_is_read_here_whole_or_not(tmp_path: Path) -> None:
    study(tmp_path, "own", missing=3)
    assert source(tmp_path, "own").local
    assert source(tmp_path, "own").aside == ""


def test_tables_of_older_files_are_not_mixed_in(tmp_path: Path) -> None:
    """A study here that lacks a table which is published of it is not whole."""
    study(tmp_path / "published", "digits", done=6)
    study(tmp_path, "digits", done=6)
    table_path(tmp_path, RUNS, "digits").unlink()
    assert source(tmp_path, "digits").aside == "digits-runs.csv of it was not made here"


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"digits-runs.csv": ""}, "digits-runs.csv has changed since .*: take it from git again"),
        ({"digits-rho.csv": None}, "digits-rho.csv is missing: take it"),
        ({"digits-rho.csv": None, "digits-runs.csv": None, "digits-study.json": None}, "is missing"),
        ({}, ""),
    ],
)
@pytest.mark.parametrize("below", ["", "published"])
def test_what_is_published_is_held_to_its_hashes(
    changed: dict[str, str | None], words: str, below: str, tmp_path: Path
) -> None:
    """Also where the folder of what is published is read as one of results."""
    files = {f"tables/digits-{end}": b"whole" for end in ("runs.csv", "rho.csv", "study.json")}
    put(tmp_path, "digits", files, {"day": "2027-02-01"})
    for file, text in changed.items():
        path = tmp_path / "published" / "tables" / file
        path.unlink() if text is None else path.write_text(text)
    if words:
        with pytest.raises(PublishedError, match=words):
            find_table(tmp_path / below, RUNS, "digits")
    else:
        assert find_table(tmp_path / below, RUNS, "digits").read_bytes() == b"whole"


@pytest.mark.parametrize("text", ["{", "[1]"])
def test_damaged_facts_and_manifests_are_told(text: str, tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(PublishedError, match=r"manifest\.json is damaged"):
        read_manifest(tmp_path)
    (tmp_path / "x-study.json").write_text(text)
    with pytest.raises(TableError, match=r"x-study\.json is damaged"):
        read_facts(tmp_path / "x-study.json")


def test_a_session_is_read_here_where_all_its_links_gave_numbers(tmp_path: Path) -> None:
    session(tmp_path / "published", "quick", fast="done", slow="done")
    for status, links, aside in (
        ("unavailable", {}, "the session is unavailable: no cluster"),
        ("done", {"fast": "done"}, "it was not held over slow"),
        ("done", {"fast": "done", "slow": "disturbed"}, "slow is disturbed"),
        ("done", {"fast": "done", "slow": "done"}, ""),
    ):
        session(tmp_path, "quick", status, **links)
        found = source(tmp_path, "session-quick")
        assert (found.aside, found.local) == (aside, not aside)
        assert len((load_facts(tmp_path, "quick") or {})["links"]) == 2
    assert sessions_held(tmp_path) == ["quick"]


def test_all_that_ships_is_whole() -> None:
    sets = [*studies_of(SHIPPED), *(f"session-{name}" for name in sessions_held(SHIPPED))]
    assert {name: unfinished(SHIPPED, name) for name in sets if unfinished(SHIPPED, name)} == {}
    assert files_of(SHIPPED, "claims") == ["claims-parts.csv", "claims.csv"]


# ---- what lies there and is not read

HOSTILE = "<script>alert(1)</script>"


@pytest.fixture
def refused(tmp_path: Path) -> Path:
    """A good run, a damaged spec, a folder that is no run's, a damaged and a foreign record of a session."""
    store = Store(tmp_path)
    store.put_spec(one_spec("allreduce-sgd", {}, steps=4))
    damaged = tmp_path / "runs" / "aa" / "aa00000000000000"
    damaged.mkdir(parents=True)
    (damaged / "spec.json").write_text("{")
    (tmp_path / "runs" / "zz" / "notes").mkdir(parents=True)
    for number, text in enumerate(["{", json.dumps({"schema_version": HOSTILE})]):
        record = tmp_path / "sessions" / "quick" / f"20270101T00000{number}Z-00000000"
        record.mkdir(parents=True)
        (record / "session.json").write_text(text)
    return tmp_path


def test_each_is_named_with_its_reason_and_no_path_of_the_machine(refused: Path) -> None:
    os.makedirs(os.fsencode(refused) + b"/runs/zz/caf\xe9")  # no text: named all the same
    rows = sorted(refused_rows(refused), key=lambda row: (row["kind"], row["name"], row["record"]))
    assert [(r["kind"], r["name"], r["record"]) for r in rows] == [
        ("run", "runs/aa/aa00000000000000", ""),
        ("run", "runs/zz/caf?", ""),
        ("run", "runs/zz/notes", ""),
        ("session", "quick", "20270101T000000Z-00000000"),
        ("session", "quick", "20270101T000001Z-00000000"),
    ]
    assert "is damaged" in rows[0]["reason"]
    assert "says no schema_version that ever was" in rows[4]["reason"]
    assert str(refused) not in str(rows)
