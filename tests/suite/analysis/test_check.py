"""Every rule of the check finds what it is for, and says what to do; a whole study has no findings."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from suite.analysis.check import check_store, check_study
from suite.analysis.collect import collect, write
from suite.analysis.published import facts_path
from suite.analysis.study import Study
from suite.runs.spec import ERROR, WARNING
from suite.runs.store import Status, Store
from tests.suite.analysis import made_up_study as made

FEW = made.FEW[:3]
STUDY = made.study_of(seeds=2, made=FEW)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made.run_all(tmp_path, STUDY, FEW)
    return tmp_path


def rewrite(root: Path, number: int, change: Callable[[dict[str, Any]], None]) -> str:
    """Change the result of a planned run; returns its id."""
    run_id = STUDY.entries[number].spec.run_id
    path = Store(root).folder(run_id) / "result.json"
    result = json.loads(path.read_text())
    change(result)
    path.write_text(json.dumps(result))
    return run_id


def found(root: Path, study: Study = STUDY) -> dict[str, list[Any]]:
    """Findings by rule, the tables brought up to date first, so that they are no finding."""
    write(root, collect(root, study))
    by_rule: dict[str, list[Any]] = {}
    for finding in check_study(root, study):
        assert finding.what
        assert finding.fix
        by_rule.setdefault(finding.rule, []).append(finding)
    return by_rule


def test_a_whole_study_has_no_findings(root: Path) -> None:
    assert found(root) == {}
    assert check_store(root) == []


def test_what_is_missing_or_failed_by_circumstance(root: Path) -> None:
    folder = Store(root).folder(STUDY.entries[0].spec.run_id)
    (folder / "result.json").unlink()
    (folder / "status.json").unlink()
    made.fail(Store(root), STUDY, FEW[1].arm.name, "iid", 0, Status("oom", "step 3: out of memory"))
    made.fail(Store(root), STUDY, FEW[1].arm.name, "iid", 1, Status("diverged", "loss is inf"))
    complete = found(root)["complete"]
    assert [(one.level, one.what) for one in complete] == [
        (ERROR, "1 of 12 runs are missing"),
        (ERROR, "1 of 12 runs are oom"),
    ], "a run that diverged is complete"
    assert "bandwise sweep made-up" in complete[0].fix
    assert "bandwise sweep made-up --retry oom" in complete[1].fix


def test_replicas_that_differ(root: Path) -> None:
    run_id = rewrite(
        root, 1, lambda r: r.update(status="invalid", reason="ranks 0 and 1 differ in w", final={})
    )
    by_rule = found(root)
    assert set(by_rule) == {"replicas"}
    (finding,) = by_rule["replicas"]
    assert run_id in finding.subject
    assert finding.what == "ranks 0 and 1 differ in w"


def test_sources_that_moved(root: Path) -> None:
    arms = (replace(STUDY.arms[0], source_hash="moved"), *STUDY.arms[1:])
    (finding,) = found(root, replace(STUDY, arms=arms))["stale"]
    assert (finding.level, finding.subject) == (WARNING, STUDY.arms[0].name)
    assert finding.what.startswith("4 runs come from another source")


@pytest.mark.parametrize(
    ("key", "value", "rule", "words"),
    [
        ("commit", "f" * 40, "drift", "differ in commit"),
        ("dirty", True, "drift", "1 runs come from a checkout with changes"),
        ("gpu", "Some GPU", "hardware", "differ in gpu: None (5 runs), Some GPU (1 runs)"),
    ],
)
def test_what_is_mixed_within_a_panel(key: str, value: Any, rule: str, words: str, root: Path) -> None:
    rewrite(root, 0, lambda r: r["provenance"].update({key: value}))
    by_rule = found(root)
    assert set(by_rule) == {rule}
    (finding,) = by_rule[rule]
    assert finding.level == WARNING
    assert words in finding.what


def test_code_that_is_not_known_is_an_error(root: Path) -> None:
    for number in range(len(STUDY.entries)):
        rewrite(root, number, lambda r: r["provenance"].update(dirty=None))
    by_rule = found(root)
    assert set(by_rule) == {"drift"}
    assert {finding.level for finding in by_rule["drift"]} == {ERROR}
    assert {finding.what for finding in by_rule["drift"]} == {
        "6 runs do not say of which commit they are, or whether it was changed"
    }


def test_tables_that_are_not_those_of_the_runs(root: Path) -> None:
    write(root, collect(root, STUDY))
    path = root / "tables" / "made-up-summary.csv"
    path.write_text(path.read_text().replace("accuracy", "precision"))
    facts_path(root, "made-up").unlink()
    findings = check_study(root, STUDY)
    assert [(one.rule, one.subject) for one in findings] == [
        ("tables", "made-up-summary.csv"),
        ("tables", "made-up-study.json"),
    ]
    assert all("bandwise report made-up" in one.fix for one in findings)
