"""Claims before runs, in a real repository: what was committed late is told from what was not."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from suite.claims.claim import load_claims
from suite.claims.record import History
from tests.suite.claims.claim_files import SPEED, TRAINING, write_claims, write_study

Commit = Callable[[str], str]


@pytest.fixture
def commit(tmp_path: Path) -> Commit:
    """Commits all there is and answers the commit."""

    def git(*arguments: str) -> str:
        named = ["-c", "user.name=a", "-c", "user.email=a@b.example", "-c", "commit.gpgsign=false"]
        done = subprocess.run(
            ["git", *named, *arguments], cwd=tmp_path, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    git("init", "-q")

    def made(message: str) -> str:
        git("add", "-A")
        git("commit", "-q", "--allow-empty", "-m", message)
        return git("rev-parse", "HEAD")

    return made


def run_at(root: Path, commit: str) -> None:
    write_study(root, {"method": [1.0] * 6, "base": [2.0] * 6}, commit=commit)


def late(root: Path) -> list[str]:
    return History(root).late(load_claims(root))


def test_a_claim_before_its_run_is_well(tmp_path: Path, commit: Commit) -> None:
    write_claims(tmp_path, TRAINING)
    run_at(tmp_path, commit("claim"))
    commit("tables")
    assert late(tmp_path) == []


def test_a_claim_after_its_run_is_late(tmp_path: Path, commit: Commit) -> None:
    run_at(tmp_path, commit("code"))
    write_claims(tmp_path, TRAINING)
    commit("claim and tables")
    (found,) = late(tmp_path)
    assert found.startswith("made-up-loses: its file is not in its runs' commit")


def test_a_claim_that_joined_its_file_after_the_run_is_late(tmp_path: Path, commit: Commit) -> None:
    write_claims(
        tmp_path, TRAINING.replace("made-up-loses", "made-up-other").replace("claims/made-up", "claims/none")
    )
    run_at(tmp_path, commit("another claim"))
    write_claims(tmp_path, TRAINING)
    (found,) = late(tmp_path)
    assert "does not stand in its file" in found


def test_a_threshold_that_moved_after_the_run_is_another_claim(tmp_path: Path, commit: Commit) -> None:
    write_claims(tmp_path, TRAINING)
    run_at(tmp_path, commit("claim"))
    write_claims(tmp_path, TRAINING.replace("threshold: -1", "threshold: -0.5"))
    (found,) = late(tmp_path)
    assert "was another claim" in found


def test_a_note_may_come_after_the_run(tmp_path: Path, commit: Commit) -> None:
    write_claims(tmp_path, TRAINING)
    run_at(tmp_path, commit("claim"))
    write_claims(tmp_path, TRAINING + "    note: it lost more than it should\n")
    assert late(tmp_path) == []


def test_what_takes_a_verdict_back_may_be_learnt_after_the_run_and_never_goes(
    tmp_path: Path, commit: Commit
) -> None:
    less = "    counts_as: {reproduced: undecided}\n    because: its grid was too coarse\n"
    write_claims(tmp_path, TRAINING)
    run_at(tmp_path, commit("claim"))
    write_claims(tmp_path, TRAINING + less)
    assert late(tmp_path) == []
    write_claims(tmp_path, TRAINING + less.replace("reproduced: undecided", "contradicted: reproduced"))
    assert [("was another claim" in one) for one in late(tmp_path)] == [True]
    write_claims(tmp_path, TRAINING + less)
    run_at(tmp_path, commit("taken back"))
    write_claims(tmp_path, TRAINING)
    assert [("was another claim" in one) for one in late(tmp_path)] == [True]


@pytest.mark.parametrize(
    ("old", "new", "well"),
    [
        ("quantity: net", "quantity: steps", True),
        ("quantity: net", "against: control-one-worker, quantity: net", True),
        ("Twice as fast.", "Twice as fast, as a user would compare.", True),
        ("threshold: 2", "threshold: 1", False),
        ("quantifier: any", "quantifier: all", False),
        (
            "      - {link: 1 Gbit/s, arm: method, quantity: net, unit: times, is: above, threshold: 2}\n",
            "",
            False,
        ),
    ],
)
def test_a_baseline_may_be_put_right_and_nothing_else(
    tmp_path: Path, commit: Commit, old: str, new: str, well: bool
) -> None:
    assert old in SPEED
    write_claims(tmp_path, SPEED + "    written: during\n")
    ran = commit("claim")
    run_at(tmp_path, ran)
    commit("tables")
    other = SPEED.replace("made-up-fast", "made-up-faster").replace(old, new)
    write_claims(tmp_path, SPEED, other + "    of: made-up-fast\n    written: baseline\n")
    found = [one for one in late(tmp_path) if one.startswith("made-up-faster")]
    assert [("was another claim" in one) for one in found] == ([] if well else [True])


def state(root: Path, text: str) -> None:
    """The file of the sweep, where claims stood before there were files of claims."""
    path = root / "suite" / "sweeps" / "claims" / "made-up.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


@pytest.mark.parametrize(
    ("then", "now", "well"),
    [
        ("# C1 the method loses:\n#   below -1\n", "C1 the method loses below -2", False),
        ("# C1 the method loses\n#   below -1\n", "C1 the method loses below -1", True),
        ("", "C1 the method loses below -1", False),
    ],
)
def test_words_of_a_sweeps_file_are_looked_for_in_the_commit_of_the_runs(
    tmp_path: Path, commit: Commit, then: str, now: str, well: bool
) -> None:
    """Not in an older one, and not in a later one: it is the text that counts, no ancestor's."""
    state(tmp_path, "# C1 the method loses below -1 and C1 the method loses below -2\n")
    commit("something else was stated")
    state(tmp_path, then)
    run_at(tmp_path, commit("what was run"))
    state(tmp_path, "# C1 the method loses below -1 and C1 the method loses below -2\n")
    commit("and again")
    write_claims(tmp_path, TRAINING + f"    written: {now}\n")
    assert [("do not stand in claims/made-up.yaml" in one) for one in late(tmp_path)] == (
        [] if well else [True]
    )


@pytest.mark.parametrize("before", [True, False])
def test_what_was_written_while_runs_went_on_precedes_their_tables(
    tmp_path: Path, commit: Commit, before: bool
) -> None:
    text = TRAINING + "    written: during\n"
    ran = commit("code")
    write_claims(tmp_path, text if before else text.replace("threshold: -1", "threshold: -2"))
    assert late(tmp_path) == [], "no tables yet"
    commit("claim")
    run_at(tmp_path, ran)
    commit("tables")
    write_claims(tmp_path, text)
    assert [("was another claim in the commit before its tables" in one) for one in late(tmp_path)] == (
        [] if before else [True]
    )


def test_what_was_written_after_says_so_itself(tmp_path: Path, commit: Commit) -> None:
    run_at(tmp_path, commit("code"))
    write_claims(tmp_path, TRAINING + "    written: after\n")
    assert late(tmp_path) == []


def test_commits_that_a_clone_lacks_are_named_and_nothing_is_said_of_them(
    tmp_path: Path, commit: Commit
) -> None:
    commit("code")
    run_at(tmp_path, "0123456789" * 4)
    write_claims(tmp_path, TRAINING)
    history = History(tmp_path)
    assert history.late(load_claims(tmp_path)) == []
    assert history.beyond(load_claims(tmp_path)) == ["01234567"]


def test_outside_of_git_nothing_is_known(tmp_path: Path) -> None:
    write_claims(tmp_path, TRAINING)
    assert not History(tmp_path).known
