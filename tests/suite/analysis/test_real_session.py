"""From a real session over loopback to its tables: the record has the documented fields, and all arms are joined.

Its seconds say nothing, so no test looks at them.
"""

from __future__ import annotations

import pytest

from suite.analysis.columns import ARMS, CASES, DIRECT
from suite.analysis.published import load_facts
from suite.analysis.session_tables import collect_session
from suite.analysis.tables import read_table, session_table_path
from suite.runs.sweep import load_sweep
from suite.timing.session import Session
from suite.timing.spec import load_session
from tests.suite.timing.fakes import Loopback

SWEEP = """
title: tiny
workloads: [digits-mlp]
shardings: [iid]
world_size: 2
steps: 10
batch_size: 4
seeds: 1
lr: {schedule: constant, warmup: 0, min_ratio: 1.0}
arms:
  sgd: {algorithm: allreduce-sgd, options: {momentum: 0.9}, lr: 0.1}
  local: {algorithm: local-sgd, options: {momentum: 0.9, period: 3}, baseline: sgd, lr: 0.1}
"""
SESSION = """
title: tiny
minutes: 1
sweep: tiny-sweep.yaml
links: [{rate: 1gbit}]
units: 1
phase_units: 1
warmup: 1
rounds_h: [1, 4]
reference: {buckets_mb: [25], precisions: [fp32, bf16], screen_units: 1, screen_blocks: 1}
direct: {arms: [sgd, local], repeats: 6}
disturbed: {foreign_share: 0.999, steal_share: 0.999, retries: 0}
"""


@pytest.mark.gloo
@pytest.mark.full
def test_from_ranks_to_tables(tmp_path):
    (tmp_path / "tiny-sweep.yaml").write_text(SWEEP)
    (tmp_path / "tiny.yaml").write_text(SESSION)
    record = Session(load_session(str(tmp_path / "tiny.yaml")), tmp_path, place=Loopback).run()
    assert (record["status"], record["reason"]) == ("done", "")

    collect_session(tmp_path, "tiny", load_sweep(str(tmp_path / "tiny-sweep.yaml")))
    tables = {
        table.suffix: read_table(session_table_path(tmp_path, table, "tiny"), table)
        for table in (CASES, ARMS, DIRECT)
    }
    arms = {row["arm"]: row for row in tables["arms"]}
    assert {arm: row["composition"] for arm, row in arms.items()} == {
        "sgd": "one kind",
        "local": "rounds interpolated",
    }
    assert arms["local"]["steps_by_kind"] == '{"round-1":1,"round-3":3}'
    for row in arms.values():
        assert row["check"]
        assert not row["stale"]
        assert row["refused"] == (row["check"] == "contradicted")
        assert (row["n_pairs"] is None) == row["refused"]
    assert {row["arm"]: (row["n"], row["steps"]) for row in tables["direct"]} == {
        "sgd": (6, 10),
        "local": (6, 10),
    }
    assert all(row["value"] > 0 for row in tables["direct"])
    for row in tables["cases"]:
        assert row["n"] == 6
        assert (row["communication_s"] is None) == (row["role"] == "ddp")
        assert row["wire_bytes_per_step"] > 0
    (facts,) = load_facts(tmp_path, "tiny")["links"]
    assert facts["rho"]["value"] > 0
