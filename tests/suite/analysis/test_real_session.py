"""From a real session over loopback to its tables: the record has the documented fields, and all arms are joined.

Its seconds say nothing, so no test looks at them.
"""

from __future__ import annotations

import pytest

from suite.analysis.published import load_facts
from suite.analysis.session_tables import collect_session
from suite.analysis.tables import ARMS, CASES, DIRECT, read_table, session_table_path
from suite.timing.session import Session
from tests.suite.timing.fakes import Loopback, session_spec

SESSION = """\
minutes: 1
sweep: small.yaml
links: [{rate: 1gbit}]
units: 1
phase_units: 1
warmup: 1
rounds_h: [1, 16]
reference: {buckets_mb: [25], screen_units: 1, screen_blocks: 1}
direct: {arms: [plain, local], repeats: 6}
disturbed: {foreign_share: 0.999, steal_share: 0.999, retries: 0}
"""


@pytest.mark.gloo
@pytest.mark.full
def test_from_ranks_to_tables(tmp_path, monkeypatch):
    spec = session_spec(tmp_path, text=SESSION)
    record = Session(spec, tmp_path, place=Loopback).run()
    assert (record["status"], record["reason"]) == ("done", "")
    monkeypatch.chdir(tmp_path)  # where the sweep lies
    collect_session(tmp_path, "tiny")
    cases, arms, direct = (
        read_table(session_table_path(tmp_path, table, "tiny"), table) for table in (CASES, ARMS, DIRECT)
    )
    assert {row["arm"]: (row["composition"], row["steps_by_kind"]) for row in arms} == {
        "plain": ("one kind", '{"step":12}'),
        "local": ("rounds interpolated", '{"round-4":3}'),
    }
    for row in arms:
        assert row["check"]
        assert not row["stale"]
        assert row["refused"] == (row["check"] == "contradicted") == (row["n_pairs"] is None)
    assert {row["arm"]: (row["n"], row["steps"]) for row in direct} == {"plain": (6, 12), "local": (6, 12)}
    assert all(row["value"] > 0 for row in direct)
    for row in cases:
        assert row["n"] == 6
        assert (row["communication_s"] is None) == (row["role"] == "ddp")
        assert row["wire_bytes_per_step"] > 0
    (facts,) = load_facts(tmp_path, "tiny")["links"]
    assert facts["rho"]["value"] > 0
