"""Studies as one submission on a real Slurm: the search of rates, runs, a session, the report, and what `status` says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bandwise.cli import main
from slurm import scheduler
from slurm.records import records
from slurm.study import cancel_sweep, load_study, stage_rows, studies
from suite.runs.plan import make_plan, statuses
from suite.runs.store import Store
from suite.runs.sweep import load_sweep
from tests.slurm.devcluster import Cluster
from tests.support import eventually

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(400)]

SWEEP = """
workloads: [quadratic]
world_size: 2
steps: 4
batch_size: 4
seeds: 2
lr: {schedule: constant}
tuning: {points: 3, factor: 4, extensions: 1, centres: {plain: 0.01}}
arms:
  plain: {algorithm: allreduce-sgd}
  local: {algorithm: local-sgd, options: {period: 2}, baseline: plain}
"""
SESSION = """
minutes: 1
workload: quadratic
world_size: 2
batch_size: 4
links: [{rate: 100mbit}]
rounds_h: [1, 4]
units: 2
block_s: 0.01
phase_units: 1
phase_s: 0.01
reference: {buckets_mb: [1], precisions: [fp32]}
powersgd: {rank: 0}
arms:
  local: {algorithm: local-sgd, options: {period: 2}}
"""
ENDS_S = 200.0


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A folder with a sweep that has no rates, a session and a profile."""
    (tmp_path / "small.yaml").write_text(SWEEP, encoding="utf-8")
    (tmp_path / "short.yaml").write_text(SESSION, encoding="utf-8")
    (tmp_path / "site.yaml").write_text("{timeout_min: 5, mem: 1G}\n", encoding="utf-8")
    return tmp_path


def command(files: Path, *options: str) -> list[str]:
    return ["sweep", str(files / "small.yaml"), "--on", str(files / "site.yaml"), *where(files), *options]


def where(files: Path) -> list[str]:
    return ["--results", str(files / "r")]


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    capsys.readouterr()
    assert main([*arguments, "--json"]) == 0
    return dict(json.loads(capsys.readouterr().out))


def stages(files: Path) -> dict[str, tuple[str, str]]:
    return {row["stage"]: (row["state"], row["reason"]) for row in stage_rows(files / "r", "small")}


def ended(files: Path) -> bool:
    return all(state not in {"queued", "running", "missing"} for state, _ in stages(files).values())


def test_from_no_rates_to_the_report_without_anybody_waiting(
    two_nodes: Cluster, files: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    session = f"session:{files / 'short.yaml'}"
    sent = answer(capsys, *command(files, "--tune", "--then", f"runs,{session},report"))
    assert sent["stages"] == ["tune", "runs", session, "report"]
    assert [row["stage"] for row in sent["sent"]] == ["tune"], "the rest follows the rates"
    assert sent["trials"] == 6
    early = answer(capsys, "status", str(files / "small.yaml"), *where(files))
    assert [row["stage"] for row in early["stages"]] == sent["stages"]
    assert early["runs"] is None
    assert eventually(lambda: ended(files), ENDS_S), stages(files)

    found = stages(files)
    assert found["tune"][0] == "done"
    assert "4 rates" not in found["tune"][1]
    assert "2 rates" in found["tune"][1]
    assert found["runs"][0] == "done"
    assert found[session][0] in {"done", "unavailable", "disturbed"}, found
    assert found["report"][0] == "done", found
    assert (files / "r" / "reports" / "small.html").is_file()
    assert not (files / "small-lr.yaml").exists(), "the sweep's own file is its user's"
    assert len(records(files / "r", "small")) == 3, "two rounds of trials, and the runs"

    collected = answer(capsys, *command(files, "--tune"))
    assert collected["tuned"] == str(files / "small-lr.yaml")
    here = (files / "small-lr.yaml").read_text()
    assert here == (files / "r" / "sweeps" / "small" / "small-lr.yaml").read_text()
    plan = make_plan(load_sweep(str(files / "small.yaml")))
    assert {s.state for s in statuses(plan, Store(files / "r")).values()} == {"done"}
    answer(capsys, "sweep", str(files / "small.yaml"), "--tune", "--results", str(files / "local"))
    assert (files / "small-lr.yaml").read_text() == here, "the search finds what it finds on one machine"


def test_a_report_says_what_it_lacks_and_is_not_sent_twice(
    two_nodes: Cluster, files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = SWEEP.replace("allreduce-sgd}", "allreduce-sgd, lr: 0.01}").replace(
        "{period: 2},", "{period: 2}, lr: 0.01,"
    )
    (files / "small.yaml").write_text(text.replace("steps: 4", "steps: 10000000"), encoding="utf-8")
    first = answer(capsys, *command(files, "--then", "report"))
    assert [row["stage"] for row in first["sent"]] == ["report"]
    second = answer(capsys, *command(files, "--then", "report"))
    assert second["sent"] == first["sent"]
    assert len(studies(files / "r", "small")) == 1, "the same command goes on with the same study"
    assert stages(files)["report"][0] == "queued"
    assert "Dependency" in stages(files)["report"][1]
    for array in (array for record in records(files / "r", "small") for array in record.arrays):
        scheduler.cancel([array.job_id])
    assert eventually(lambda: ended(files), ENDS_S), stages(files)
    said = load_study(studies(files / "r", "small")[0].path).noted(1)
    assert said is not None
    assert said["state"] == "done", said
    assert "it lacks: 4 runs cancelled" in said["reason"]


def test_cancel_takes_the_stages_along(
    two_nodes: Cluster, files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (files / "small.yaml").write_text(SWEEP.replace("steps: 4", "steps: 10000000"), encoding="utf-8")
    answer(capsys, *command(files, "--tune", "--then", "runs"))
    cancelled, left = cancel_sweep("small", files / "r", 60.0)
    assert len(cancelled) == 2, "the trials and what goes on with the search"
    assert not left


def test_a_dry_run_shows_every_script_and_leaves_nothing(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert main(command(files, "--tune", "--then", "runs,report", "--dry-run")) == 0
    shown = capsys.readouterr().out
    assert shown.count("#!/bin/bash") == 3
    assert "slurm.member" in shown
    assert shown.count("slurm.stage") == 2
    assert "afterany:STAGE-BEFORE" in shown
    assert (
        "small: tune -> runs -> report would be submitted; the arrays of its runs follow the rates" in shown
    )
    assert not (files / "r").exists()


@pytest.mark.parametrize(
    ("then", "why"),
    [
        ("reprot", "known are runs"),
        ("report,session", "follow each other as"),
        ("session", "no session of small"),
    ],
)
def test_what_cannot_follow_is_refused(
    files: Path, capsys: pytest.CaptureFixture[str], then: str, why: str
) -> None:
    assert main(command(files, "--then", then)) == 2
    assert why in capsys.readouterr().err
