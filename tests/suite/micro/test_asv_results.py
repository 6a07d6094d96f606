"""asv's results become the micro table, through asv's own API."""

from __future__ import annotations

import math

import pytest
from asv import util
from asv.benchmarks import Benchmarks
from asv.machine import Machine
from asv.results import Results
from asv.runner import BenchmarkResult

from suite.analysis.columns import MICRO
from suite.analysis.tables import to_csv
from suite.micro.asv_results import MicroError, micro_rows

ENV = "virtualenv-py3.11-torch2.13.0"
TIME = {"name": "codecs.Encode.time_encode", "params": [["'sign'", "'qsgd'"], ["1000"]], "version": "1"}
TRACK = {"name": "codecs.track_bytes", "params": [], "version": "1"}


def outcome(values, samples):
    return BenchmarkResult(
        result=values,
        samples=samples,
        number=[1 if s else None for s in samples],
        errcode=0,
        stderr="",
        profile=None,
    )


@pytest.fixture
def folder(tmp_path):
    """A results folder as asv itself writes it: one commit, a timing with a failure, a tracked value."""
    asv = tmp_path / "asv"
    (asv / "box").mkdir(parents=True)
    util.write_json(str(asv / "box" / "machine.json"), {"machine": "box"}, Machine.api_version)
    listed = {
        b["name"]: {**b, "unit": unit, "type": "time"} for b, unit in ((TIME, "seconds"), (TRACK, "bytes"))
    }
    util.write_json(str(asv / "benchmarks.json"), listed, Benchmarks.api_version)
    results = Results({"machine": "box"}, {}, "0123456789abcdef", 1_800_000_000_000, "3.11", ENV, {})
    results.add_result(TIME, outcome([None, None], [None, None]))
    results.add_result(TIME, outcome([2e-3, None], [[1e-3, 2e-3, 3e-3, 2e-3, 2e-3, 2e-3, 2e-3], None]))
    results.add_result(TRACK, outcome([0.126], [None]))
    results.save(str(asv))
    return asv


def test_api_versions_are_the_ones_this_was_written_for():
    assert (Results.api_version, Benchmarks.api_version, Machine.api_version) == (2, 2, 1)


def test_rows(tmp_path, folder):
    rows = {(r["benchmark"], r["params"]): r for r in micro_rows(tmp_path)}
    assert len(rows) == 3
    timed = rows["codecs.Encode.time_encode", "'sign', 1000"]
    assert timed["value"] == pytest.approx(2e-3)
    assert timed["ci_low"] <= timed["value"] <= timed["ci_high"]
    assert (timed["unit"], timed["commit"], timed["machine"], timed["status"]) == (
        "seconds",
        "01234567",
        "box",
        "done",
    )
    assert timed["committed"] == "2027-01-15T08:00:00Z"
    failed = rows["codecs.Encode.time_encode", "'qsgd', 1000"]
    assert (failed["status"], failed["value"]) == ("failed", None)
    tracked = rows["codecs.track_bytes", None]
    assert (tracked["value"], tracked["unit"], tracked["ci_low"]) == (0.126, "bytes", None)
    assert to_csv(MICRO, rows.values()) == to_csv(MICRO, reversed(list(rows.values())))


def test_skipped_is_not_failed(tmp_path, folder):
    results = Results({"machine": "box"}, {}, "fedcba9876543210", 1_800_000_100_000, "3.11", ENV, {})
    results.add_result(TRACK, outcome([math.nan], [None]))
    results.save(str(folder))
    found = [r for r in micro_rows(tmp_path) if r["commit"] == "fedcba98"]
    assert [(r["status"], r["value"]) for r in found] == [("skipped", None)]


def test_environment_names_leave_no_path_behind(tmp_path, folder):
    results = Results(
        {"machine": "box"}, {}, "aa" * 8, 1_800_000_100_000, "3.11", "existing-py_home_me_venv", {}
    )
    results.add_result(TRACK, outcome([1.0], [None]))
    results.save(str(folder))
    assert "home" not in to_csv(MICRO, micro_rows(tmp_path))


def test_no_results_is_an_empty_table(tmp_path):
    assert micro_rows(tmp_path) == []
    assert to_csv(MICRO, []) == ",".join(MICRO.names) + "\n"


def test_damaged_results_are_named(tmp_path, folder):
    next(folder.glob("box/0123*.json")).write_text('{"version": 99}')
    with pytest.raises(MicroError, match="cannot be read"):
        micro_rows(tmp_path)
