"""Comparisons of made-up sides whose truth is known: words, levels, directions, what has no pair, where sides come from."""

from __future__ import annotations

import shutil
import subprocess

import numpy as np
import pandas as pd
import pytest

from suite.analysis.collect import collect, write
from suite.analysis.compare import (
    RUN_COLUMNS,
    SPEED_COLUMNS,
    ResultSet,
    ResultSetError,
    SessionResults,
    StudyResults,
    compare,
    paired_p,
    read_results,
)
from suite.analysis.statistics import sign_flip_p
from tests.suite.analysis import made_up_study as made

FACTS = {
    "sweep": "s",
    "workloads": [
        {"workload": "w", "unit": "points", "direction": "higher"},
        {"workload": "loss", "unit": "nats", "direction": "lower"},
    ],
    "provenance": {"cpu": ["x"], "cores": ["2"], "commit": ["old"]},
}


def row(arm, seed, value, *, workload="w", status="done", wire=100.0, run_id=None):
    return {
        "workload": workload, "sharding": "iid", "world_size": 4, "arm": arm, "seed": seed, "metric": "accuracy",
        "run_id": run_id or f"{arm}-{seed}", "status": status, "reason": None if status == "done" else "it failed",
        "value": value if status == "done" else None, "wire_bytes_per_step": wire,
    }  # fmt: skip


def side(label, rows, facts=FACTS, sessions=None):
    return ResultSet(
        label, {"s": StudyResults(pd.DataFrame(rows, columns=RUN_COLUMNS), facts)}, sessions or {}
    )


def study(arms, seeds, rng, shift=0.0, spread=1.0):
    """Rows of arms whose seeds share what a split does; `shift` by arm index."""
    return [
        row(f"arm-{arm}", seed, 90 + 3 * np.sin(seed) + rng.normal(0, spread) + (shift if arm == 0 else 0.0))
        for arm in range(arms)
        for seed in range(seeds)
    ]


def words(found):
    return {change.arm: change.word for change in found.arms}


def test_equal_sides_are_identical_and_nothing_is_tested():
    rows = study(3, 8, np.random.default_rng(0))
    found = compare(side("a", rows), side("b", [dict(r) for r in rows]))
    assert set(words(found).values()) == {"identical"}
    assert all(
        c.difference == c.low == c.high == 0.0 and c.n_same == 8 and c.bytes == 1.0 for c in found.arms
    )
    assert found.smallest_p is None
    assert (found.only_a, found.only_b, found.turned, found.hardware) == ((), (), (), ())


@pytest.mark.parametrize(("pairs", "error"), [(40, 0.034), pytest.param(300, 0.013, marks=pytest.mark.full)])
def test_without_an_effect_arms_are_called_changed_no_more_often_than_the_level(pairs, error):
    """Pairs of sides, five arms each, nothing changed: at most 5 % have any arm better or worse, to two standard errors."""
    rng = np.random.default_rng([5, 1])
    wrong = 0
    for _ in range(pairs):
        found = compare(side("a", study(5, 10, rng)), side("b", study(5, 10, rng)))
        wrong += any(word in {"better", "worse"} for word in words(found).values())
    assert wrong / pairs <= 0.05 + 2 * error


def test_an_effect_is_found_with_its_size_and_its_direction():
    rng = np.random.default_rng(3)
    found = compare(
        side("a", study(4, 12, rng, spread=0.3)), side("b", study(4, 12, rng, shift=-2.0, spread=0.3))
    )
    first = found.arms[0]
    assert first.word == "worse"
    assert first.low < -2.0 < first.high < -1.0
    assert first.p_holm == pytest.approx(4 * 2**-11)
    assert set(list(words(found).values())[1:]) == {"no change"}
    assert found.smallest_p == pytest.approx(4 * 2**-11)


def test_lower_is_better_where_the_workload_says_so():
    before = [row("x", seed, 1.0 + seed / 100, workload="loss") for seed in range(7)]
    after = [row("x", seed, 0.5 + seed / 99, workload="loss") for seed in range(7)]
    assert compare(side("a", before), side("b", after)).arms[0].word == "better"
    assert compare(side("b", after), side("a", before)).arms[0].word == "worse"


def test_too_few_pairs_and_too_many_arms_decide_nothing():
    a = [row("x", seed, 90.0) for seed in range(5)]
    b = [row("x", seed, 80.0 + seed) for seed in range(5)]
    (few,) = compare(side("a", a), side("b", b)).arms
    assert (few.word, few.difference, few.low, few.p) == ("too few", -8.0, None, None)
    rng = np.random.default_rng(1)
    a, b = study(20, 6, rng, spread=0.1), study(20, 6, rng, shift=5.0, spread=0.1)
    found = compare(side("a", a), side("b", b))
    assert found.arms[0].word == "undecided"
    assert found.smallest_p == pytest.approx(20 / 32)


def test_what_has_no_pair_is_listed():
    a = [
        row("x", 0, 1.0),
        row("x", 1, 1.0),
        row("gone", 3, 1.0),
        row("gone", 4, 1.0),
        row("y", 0, None, status="missing"),
    ]
    b = [row("x", 0, 1.0), row("x", 1, None, status="diverged"), row("y", 0, 2.0)]
    found = compare(side("a", a), side("b", b))
    assert found.only_a == ("sweep s: gone on w, iid, 4 workers, seeds 3, 4",)
    assert found.only_b == ("sweep s: y on w, iid, 4 workers, seeds 0",)
    (turned,) = found.turned
    assert (turned.run[4], turned.a, turned.b, turned.reason) == (1, "done", "diverged", "it failed")
    assert [(c.arm, c.n_a, c.n_b, c.n_pairs) for c in found.arms] == [("x", 2, 1, 1)]
    other = ResultSet("c", {"t": StudyResults(pd.DataFrame(columns=RUN_COLUMNS), FACTS)}, {})
    assert (compare(side("a", a), other).only_a, compare(side("a", a), other).only_b) == (
        ("sweep s",),
        ("sweep t",),
    )


def test_moved_options_pair_by_case_and_are_counted():
    a = [row("x", seed, 1.0) for seed in range(6)]
    b = [row("x", seed, 1.0, run_id=f"new-{seed}" if seed else None, wire=25.0) for seed in range(6)]
    (change,) = compare(side("a", a), side("b", b)).arms
    assert (change.n_pairs, change.n_same, change.bytes) == (6, 1, 0.25)


def test_other_hardware_is_said():
    facts = {**FACTS, "provenance": {"cpu": ["y"], "cores": ["2"], "commit": ["new"]}}
    found = compare(side("a", [row("x", 0, 1.0)]), side("b", [row("x", 0, 1.0)], facts))
    assert found.hardware == (("sweep s", "cpu", "x", "y"),)
    assert found.environment == (("sweep s", "commit", "old", "new"),)


def test_speeds_differ_where_their_intervals_do():
    def session(*numbers):
        arms = [
            {"link": "l", "sharding": "iid", "arm": arm, "kind": "run", "n_pairs": 9, "speedup": value,
             "speedup_low": low, "speedup_high": high}
            for arm, (value, low, high) in zip("abc", numbers, strict=True)
        ]  # fmt: skip
        return {"t": SessionResults(pd.DataFrame(arms, columns=SPEED_COLUMNS), {"provenance": {"cpu": "x"}})}

    a = ResultSet("a", {}, session((2.0, 1.9, 2.1), (2.0, 1.9, 2.1), (None, None, None)))
    b = ResultSet("b", {}, session((3.0, 2.9, 3.1), (2.05, 1.95, 2.2), (2.0, 1.9, 2.1)))
    found = compare(a, b)
    assert [(s.arm, s.word, s.ratio) for s in found.speeds] == [
        ("a", "faster", 1.5),
        ("b", "no change", 1.025),
    ]
    assert (found.speeds[0].low, found.speeds[0].high) == (2.9 / 2.1, 3.1 / 1.9)
    assert [s.word for s in compare(b, a).speeds] == ["slower", "no change"]


def test_p_of_many_pairs_agrees_with_that_of_few():
    rng = np.random.default_rng(2)
    a, b = rng.normal(0.5, 1, 24).tolist(), rng.normal(0, 1, 24).tolist()
    assert paired_p(a, b) == sign_flip_p(a, b)
    assert paired_p([*a, a[0]], [*b, b[0]]) == pytest.approx(sign_flip_p(a, b), rel=0.5)


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """A results folder with the tables of a made-up study."""
    root = tmp_path_factory.mktemp("results")
    study = made.study_of()
    made.run_all(root, study)
    write(root, collect(root, study))
    return root


def test_a_folder_against_itself_and_against_an_older_table(tables, tmp_path):
    found = compare(read_results(str(tables), tables), read_results(str(tables), tables), "made-up")
    assert {change.word for change in found.arms} <= {"identical", "too few"}
    assert len(found.arms) == 36
    older = tmp_path / "older"
    shutil.copytree(tables / "tables", older / "tables")
    path = older / "tables" / "made-up-runs.csv"
    lines = [line.split(",", 1) for line in path.read_text().splitlines()]
    path.write_text("".join(f"{rest},{first}\n" for first, rest in lines))  # columns in another order
    assert compare(read_results(str(older), tables), read_results(str(tables), tables)).arms == found.arms
    path.write_text(path.read_text().replace("world_size", "workers", 1))
    with pytest.raises(ResultSetError, match="lacks the columns world_size"):
        read_results(str(older), tables)


@pytest.mark.parametrize("place", ["results/published/tables", "results/tables/v1"])
def test_a_commit_and_a_label_and_nothing(tables, tmp_path, place):
    """Commits from before published data were parted from local ones have their tables elsewhere."""
    repository = tmp_path / "r"
    shutil.copytree(tables / "tables", repository / place)
    git = ["git", "-C", str(repository), "-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "one"]):
        subprocess.run([*git, *command], check=True)
    committed = read_results("HEAD", tables, repository)
    assert {c.word for c in compare(committed, read_results(str(tables), tables)).arms} <= {
        "identical",
        "too few",
    }
    shutil.copytree(tables / "tables", tables / "published" / "day-one" / "tables", dirs_exist_ok=True)
    assert len(compare(read_results("day-one", tables), committed).arms) == 36
    with pytest.raises(
        ResultSetError, match="no folder, no label of a published study and no commit; did you mean 'day-one'"
    ):
        read_results("day-on", tables, repository)
    with pytest.raises(ResultSetError, match="no folder, no label of a published study and no commit"):
        read_results("--output=x", tables, repository)
    with pytest.raises(ResultSetError, match="has no tables"):
        read_results(str(tmp_path), tables)
