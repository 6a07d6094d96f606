"""The document of file formats lists every column as the code describes it, and every field of a result."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jsonschema
import pytest

from docs.make import KINDS, SCHEMAS, made
from suite.analysis.bounds import BOUNDS
from suite.analysis.claim_columns import CLAIM_TABLES
from suite.analysis.columns import SINCE_CURVES, TABLES
from suite.analysis.ladder_columns import ISO_SECONDS, LADDER_TABLES
from suite.analysis.session_tables import derive
from suite.analysis.speed_columns import SPEED_TABLES
from suite.analysis.stages import STAGES
from suite.claims.columns import VERDICT_TABLES
from suite.costs.document import COST_TABLES
from suite.runs.result import CIRCUMSTANCE, LIVE, SETTLED
from suite.runs.store import Store
from tests.suite.analysis import made_up_session

DOCS = Path(__file__).resolve().parents[3] / "docs"
TEXT = (DOCS / "file-formats.md").read_text(encoding="utf-8")
COSTS = (DOCS / "cost-formats.md").read_text(encoding="utf-8")
CLAIMS = (DOCS / "claim-formats.md").read_text(encoding="utf-8")
TARGETS = (DOCS / "target-formats.md").read_text(encoding="utf-8")
SESSIONS = (DOCS / "session-formats.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("table", "text"),
    [
        *((table, TEXT) for table in (*TABLES, *LADDER_TABLES) if table not in SINCE_CURVES),
        *((table, TARGETS) for table in SINCE_CURVES),
        *((table, SESSIONS) for table in (*SPEED_TABLES, BOUNDS, STAGES, ISO_SECONDS)),
        *((table, COSTS) for table in COST_TABLES),
        *((table, CLAIMS) for table in (*VERDICT_TABLES, *CLAIM_TABLES)),
    ],
    ids=lambda value: getattr(value, "suffix", ""),
)
def test_columns(table, text):
    section = text.partition(f"### `{table.suffix}`\n")[2].partition("\n#")[0]
    listed = re.findall(r"^\| `(\w+)` \| (\w+) \| (.*) \|$", section, re.M)
    assert listed == [(column.name, column.kind, column.meaning) for column in table.columns]
    key = re.search(r"Key:\s+(.*?)\.\n", section, re.S).group(1)
    assert re.findall(r"`(\w+)`", key) == list(table.names[: table.keys])


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
