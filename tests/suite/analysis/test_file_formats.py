"""The document of file formats lists every column as the code describes it, and every field of a result."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import jsonschema

from docs.make import KINDS, SCHEMAS, made
from docs.make import TABLES as DECLARED
from suite.analysis.session_tables import derive
from suite.runs.result import CIRCUMSTANCE, LIVE, SETTLED
from suite.runs.store import Store
from tests.suite.analysis import made_up_session

DOCS = Path(__file__).resolve().parents[3] / "docs"
TEXT = (DOCS / "file-formats.md").read_text(encoding="utf-8")
SESSIONS = (DOCS / "session-formats.md").read_text(encoding="utf-8")


def test_every_table_is_listed_once() -> None:
    listed = Counter(
        name
        for page in DOCS.glob("*-formats.md")
        for name in re.findall(r"<!-- table: columns (\S+) -->", page.read_text())
    )
    assert listed == Counter(table.suffix for table in DECLARED)


def test_states():
    section = TEXT.partition("States are")[2].partition("\n\n")[0]
    assert set(re.findall(r"`(\w+)`", section)) == SETTLED | CIRCUMSTANCE | LIVE


def test_keys_and_schemas_are_those_of_the_declarations():
    texts = dict(made())
    assert {path.name for path in texts if path.suffix == ".json"} == {
        path.name for path in SCHEMAS.iterdir()
    }
    for path, text in texts.items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name}: run `make docs`"
        if path.suffix == ".json":
            jsonschema.Draft202012Validator.check_schema(json.loads(text))
    shown = "".join(path.read_text(encoding="utf-8") for path in texts if path.suffix == ".md")
    assert all(f"<!-- table: keys {kind} -->" in shown for kind in KINDS)


def test_fields_of_a_session(tmp_path):
    sweep = made_up_session.write_sweep(tmp_path)
    record = made_up_session.record(sweep)
    record["links"][0]["direct"] = made_up_session.direct(sweep, "sgd", lambda number: 1.0, rounds=1)
    link, facts = record["links"][0], derive(record, Store(tmp_path))[1]
    written = {
        "The record": [
            record,
            record["cases"][0],
            link,
            link["blocks"][0],
            link["direct"][0],
            link["probe"][0],
        ],
        "Tables": [facts, facts["join"], facts["links"][0], facts["links"][0]["rho"]],
    }
    for heading, values in written.items():
        section = SESSIONS.partition(f"## {heading}\n")[2].partition("\n## ")[0]
        listed = set(re.findall(r"`(\w+)`", section))
        assert {key for value in values for key in value} - listed <= {"schema_version"}, heading
