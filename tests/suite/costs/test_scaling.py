"""Scaling: who may stand in one curve, and efficiencies from made-up sessions, by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from suite.analysis.speed_columns import CASES, session_facts_path, session_table_path
from suite.analysis.tables import Row, frame_of, number, rows_of, write_table
from suite.costs.columns import CALIBRATION, PREDICTIONS
from suite.costs.samples import Known, Sample, Setting, parameters_of
from suite.costs.scaling import (
    STRONG,
    WEAK,
    WORKERS,
    Held,
    JoinError,
    alone_s,
    differences,
    foretold_of,
    held_of,
    joined,
    scaling_table,
    series_of,
    speedups_of,
    steps_of,
)
from suite.costs.step import Local
from suite.links.link import Link
from suite.runs.files import dump
from suite.timing.case import Case
from tests.report.made_up_speed import facts, row
from tests.suite.costs import made_up

LINK = Link(4, 1e8)
HELD = Held("four", "a machine", "digits-mlp", 32, 262144, 1, LINK)
PAIR = replace(HELD, session="pair", link=Link(2, 1e8))


@pytest.mark.parametrize(
    ("other", "word"),
    [
        (replace(PAIR, workload="digits-cnn"), "workload digits-mlp and digits-cnn"),
        (replace(PAIR, batch_size=64), "batch a worker 32 and 64"),
        (replace(PAIR, bucket_bytes=1 << 20), "bucket bytes 262144 and 1048576"),
        (replace(PAIR, threads=2), "threads a worker 1 and 2"),
        (replace(PAIR, machine="another"), "machine a machine and another"),
        (replace(PAIR, link=Link(2, 1e9)), "link 100 Mbit/s and 1 Gbit/s"),
        (replace(PAIR, link=Link(2, 1e8, None, 0.005)), "link 100 Mbit/s and 100 Mbit/s, 5 ms"),
    ],
)
def test_unlike_sessions_are_refused_by_what_differs(other: Held, word: str) -> None:
    assert differences(HELD, other) == [word]
    with pytest.raises(JoinError, match=word):
        joined([HELD, other])


def test_sessions_that_differ_in_workers_alone_are_joined() -> None:
    again = replace(HELD, session="again")
    found = joined([HELD, PAIR, again])
    assert [one.session for one in found.members] == ["pair", "again", "four"]
    assert found.sizes == (2, 4)
    with pytest.raises(JoinError, match="4 workers alone"):
        joined([HELD, again])


def test_what_belongs_to_no_series_is_said() -> None:
    found, alone = series_of([HELD, PAIR, replace(HELD, session="far", link=Link(4, 1e9))])
    assert [one.sizes for one in found] == [(2, 4)]
    assert alone == ["far at 1 Gbit/s was held with 4 workers alone: nothing to scale over"]


VOTE = next(case for case in made_up.cases() if case.algorithm == "lion-cub-1bit")
BF16 = replace(made_up.DDP, label="DDP bf16", algorithm="bf16")
STEPS: Mapping[tuple[str, int], float] = {
    ("fp32", 2): 0.10, ("bf16", 2): 0.06, ("lion-cub-1bit", 2): 0.03,
    ("fp32", 4): 0.20, ("bf16", 4): 0.12, ("lion-cub-1bit", 4): 0.05,
}  # fmt: skip
"""Measured seconds a step by method and workers; the interval is 10 % to either side."""
SINGLE = {2: 0.01, 4: 0.018}
"""Seconds without messages; with four ranks on two cores two share one."""


def case_row(case: Case, n: int) -> Row:
    step = STEPS[case.algorithm, n]
    over = STEPS["bf16", n] / step
    return row(
        CASES, link=LINK.label, case=case.label, case_id=case.case_id, role=case.role, algorithm=case.algorithm,
        kind=case.kind, unit_steps=1, n=7, n_pairs=6, step_s=step, step_low=0.9 * step, step_high=1.1 * step,
        speedup=over, speedup_low=0.8 * over, speedup_high=1.25 * over, null_s=SINGLE[n], n_disturbed=0,
    )  # fmt: skip


def hold(root: Path, session: str, n: int, **given: Any) -> list[Sample]:
    """Write a session's tables; returns its samples."""
    cases = (made_up.DDP, BF16, VOTE)
    link = {"label": LINK.label, "status": "done", "link": Link(n, 1e8).as_dict()}
    machine = {"threads_per_rank": 1}
    known = facts(session, None, [link], world_size=n, bucket_bytes=262144, machine=machine, **given)
    path = write_table(
        session_table_path(root, CASES, session), CASES, [case_row(case, n) for case in cases]
    ).with_name(session_facts_path(root, session).name)
    path.write_text(dump(known), encoding="utf-8")
    setting = Setting("digits-mlp", parameters_of("digits-mlp"), n, 8, 262144, Link(n, 1e8))
    return [
        Sample(session, setting, case, STEPS[case.algorithm, n], 0.0, 0.0, SINGLE[n], Local(SINGLE[n]))
        for case in cases
    ]


@pytest.fixture
def found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Known:
    """Two sessions that are alike, and one with another batch."""
    path = tmp_path / "made-up.yaml"
    path.write_text(made_up.SESSION, encoding="utf-8")
    from suite.costs import methods
    from suite.timing.spec import load_session

    monkeypatch.setattr(methods, "load_session", lambda name: load_session(str(path)))
    samples = [
        *hold(tmp_path, "pair", 2),
        *hold(tmp_path, "four", 4),
        *hold(tmp_path, "other", 4, batch_size=8),
    ]
    return Known(tmp_path, frame_of(CALIBRATION, []), {"provenance": {"cores": 2}}, samples, [])


def test_marks_are_what_the_sessions_measured(found: Known) -> None:
    rows = rows_of(scaling_table(found, made_up.MODEL))
    marks = {(str(r["method"]), r["world_size"]): r for r in rows if r["source"] != "predicted"}
    assert {r["source"] for r in marks.values()} == {"pair", "four"}  # not the one with another batch
    for method, algorithm in (
        ("all-reduce fp32", "fp32"),
        ("all-reduce bf16", "bf16"),
        ("lion-cub-1bit",) * 2,
    ):
        for n in (2, 4):
            mark, step = marks[method, n], STEPS[algorithm, n]
            assert number(mark, "efficiency") == pytest.approx(SINGLE[n] / step)
            assert number(mark, "efficiency_low") == pytest.approx(SINGLE[n] / (1.1 * step))
            assert number(mark, "efficiency_high") == pytest.approx(SINGLE[n] / (0.9 * step))
            assert (mark["n"], mark["n_single"]) == (7, 1)


def test_curves_begin_with_one_worker_and_know_whose_cores_they_share(found: Known) -> None:
    curve = {
        (r["scaling"], r["cores"], r["method"], r["world_size"]): r
        for r in rows_of(scaling_table(found, made_up.MODEL))
        if r["source"] == "predicted"
    }
    assert {key[:2] for key in curve} == {(WEAK, 2), (WEAK, None), (STRONG, None)}
    for scaling, cores in ((WEAK, 2), (WEAK, None), (STRONG, None)):
        assert number(curve[scaling, cores, "all-reduce fp32", 1], "efficiency") == 1.0
        falling = [number(curve[scaling, None, "all-reduce fp32", n], "efficiency") for n in (1, *WORKERS)]
        assert falling == sorted(falling, reverse=True)
    assert number(curve[WEAK, 2, "all-reduce fp32", 8], "single_s") == pytest.approx(4 * SINGLE[2])
    assert number(curve[WEAK, None, "all-reduce fp32", 8], "single_s") == pytest.approx(SINGLE[2])
    assert number(curve[STRONG, None, "all-reduce fp32", 1], "single_s") == pytest.approx(4 * SINGLE[2])
    assert number(curve[STRONG, None, "all-reduce fp32", 8], "single_s") == pytest.approx(4 * SINGLE[2] / 8)


def test_one_worker_s_seconds_are_of_the_least_crowded_session(found: Known) -> None:
    assert alone_s(found, held_of(found.results_root)) == pytest.approx(SINGLE[2])


def test_measured_speedups_need_both_precisions_of_the_reference(found: Known) -> None:
    from suite.costs.methods import candidates

    known = candidates(found.samples, 2)
    four = next(one for one in held_of(found.results_root) if one.session == "four")
    measured = speedups_of(found.results_root, four, known)["lion-cub-1bit"]
    assert (measured.value, measured.low, measured.high) == pytest.approx((2.4, 1.92, 3.0))
    assert measured.n == 6
    assert set(steps_of(found.results_root, four, known)) == {
        "all-reduce fp32",
        "all-reduce bf16",
        "lion-cub-1bit",
    }
    path = session_table_path(found.results_root, CASES, "four")
    write_table(path, CASES, [case_row(case, 4) for case in (made_up.DDP, VOTE)])
    assert speedups_of(found.results_root, four, known) == {}


def test_a_speedup_foretold_is_over_the_faster_reference_without_its_rate(found: Known) -> None:
    from suite.costs.methods import candidates

    known = candidates(found.samples, 2)
    four = next(one for one in held_of(found.results_root) if one.session == "four")
    assert foretold_of(None, four, known) == {}
    predicted = [(made_up.DDP, 0.3), (replace(BF16, label="DDP bf16, 1 MB buckets"), 0.2), (VOTE, 0.05)]
    rows = [
        row(
            PREDICTIONS, left_out=left_out, value="100 Mbit/s", session="four", link=LINK.label, case=case.label,
            case_id=case.case_id, workload="digits-mlp", world_size=4, predicted_s=seconds * factor,
        )
        for left_out, factor in (("rate", 1.0), ("model", 9.0))
        for case, seconds in predicted
    ]  # fmt: skip
    foretold = foretold_of(frame_of(PREDICTIONS, rows), four, known)
    assert foretold == {"lion-cub-1bit": pytest.approx(0.2 / 0.05)}
