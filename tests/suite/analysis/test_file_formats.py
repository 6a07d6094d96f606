"""The document of file formats lists every column as the code describes it, and every field of a result."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from suite.analysis.columns import TABLES
from suite.runs.status import CIRCUMSTANCE, LIVE, SETTLED
from tests.suite.analysis import made_up_study as made

TEXT = (Path(__file__).resolve().parents[3] / "docs" / "file-formats.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.suffix)
def test_columns(table):
    section = TEXT.partition(f"### `{table.suffix}`\n")[2].partition("\n#")[0]
    listed = re.findall(r"^\| `(\w+)` \| (\w+) \| (.*) \|$", section, re.M)
    assert listed == [(column.name, column.kind, column.meaning) for column in table.columns]
    key = re.search(r"Key:\s+(.*?)\.\n", section, re.S).group(1)
    assert re.findall(r"`(\w+)`", key) == list(table.names[: table.keys])


def test_states():
    section = TEXT.partition("States are")[2].partition("\n\n")[0]
    assert set(re.findall(r"`(\w+)`", section)) == SETTLED | CIRCUMSTANCE | LIVE


def test_fields_of_a_result():
    section = TEXT.partition("Fields of `result.json`")[2].partition("\n## ")[0]
    spec = made.spec_of(made.MADE[0], "iid", 0)
    assert set(made.result_of(made.MADE[0], spec)) <= set(re.findall(r"`(\w+)`", section))
