"""Samples are what the tables in git hold, and recipes send what the ledgers of real ranks counted in those sessions."""

from __future__ import annotations

from pathlib import Path

import pytest

from suite.analysis.speed_columns import CASES, session_table_path
from suite.analysis.tables import number, read_table
from suite.costs.samples import recipe_for, samples_of, shapes_of
from suite.costs.step import FORMS, OF_PROBE, measured_as

RESULTS = Path(__file__).resolve().parents[3] / "results" / "published"
SESSIONS = ("costs-digits", "performance-compressed")
FIRST_RANK = 0.1
"""Ranks may send different numbers of bytes (a tree, pieces of other lengths): the table has the mean, a recipe rank 0."""


@pytest.mark.parametrize("session", SESSIONS)
def test_recipes_send_what_real_ranks_sent(session: str) -> None:
    counted = {
        str(row["case_id"]): number(row, "wire_bytes_per_step")
        for row in read_table(session_table_path(RESULTS, CASES, session), CASES)
        if row["wire_bytes_per_step"] is not None
    }
    samples = {sample.case.case_id: sample for sample in samples_of(RESULTS, session)}
    assert len(samples) >= 6
    for case_id, sample in samples.items():
        setting = sample.setting
        recipe = recipe_for(sample.case, setting.workload, setting.world_size, setting.bucket_bytes)
        sent = sum(
            FORMS[OF_PROBE[measured_as(request)]].sent(request.ranks) * request.nbytes
            for step in recipe.steps
            for request in step.requests()
        )
        assert sent / sample.case.unit_steps == pytest.approx(counted[case_id], rel=FIRST_RANK), (
            sample.case.label
        )


def test_a_sample_has_its_setting_its_interval_and_its_parts() -> None:
    for sample in samples_of(RESULTS, "performance-compressed"):
        assert (sample.setting.workload, sample.setting.world_size) == ("code-gpt[size=3.3m]", 4)
        assert sample.setting.link.rate_bps == 100e6
        assert sample.low_s <= sample.step_s <= sample.high_s
        assert sample.local is not None
        assert sample.local.total_s == pytest.approx(sample.null_s)


def test_a_session_that_was_not_held_has_no_samples(tmp_path: Path) -> None:
    assert samples_of(tmp_path, "performance-compressed") == []


def test_shapes_are_those_of_the_workload() -> None:
    assert shapes_of("digits-mlp") == ((512, 64), (512,), (512, 512), (512,), (10, 512), (10,))
