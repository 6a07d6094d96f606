"""Every mutant is one that can be made: its text is in the sources once, and what comes of it is Python."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from tests.mutants import run
from tests.mutants.table import BANDWISE, MUTANTS, REFERENCE_IMPLS, REPORT, SLURM, SUITE, Mutant

TEXTS = {path: path.read_text(encoding="utf-8") for path in run.sources(run.ROOT)}


def test_there_are_sixty_over_all_packages() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) == 60
    own = {
        "reference_impls": REFERENCE_IMPLS,
        "suite": SUITE,
        "slurm": SLURM,
        "report": REPORT,
        "bandwise": BANDWISE,
    }
    places = {mutant: run.place(mutant, TEXTS).relative_to(run.ROOT).parts[0] for mutant in MUTANTS}
    assert {mutant: package for package, mutants in own.items() for mutant in mutants} == places
    assert min(Counter(mutant.kind for mutant in MUTANTS).values()) >= 2


def test_each_changes_one_place_and_still_parses() -> None:
    for mutant in MUTANTS:
        text = TEXTS[run.place(mutant, TEXTS)]
        assert run.mutated(mutant, text) != text, mutant.name


def test_hints_are_few_and_name_tests() -> None:
    for mutant in MUTANTS:
        assert 1 <= len(mutant.tests) <= 3, mutant.name
        assert len(run.hinted([mutant], run.ROOT)) == len(mutant.tests), mutant.name


def test_a_text_that_is_gone_or_stands_twice_is_refused() -> None:
    there = Mutant("m", "sign", "x + 1", "x - 1", ("tests/mutants",))
    assert run.place(there, {Path("a.py"): "y = x + 1"}) == Path("a.py")
    with pytest.raises(run.MutationError, match="exactly once and is in no source"):
        run.place(there, {Path("a.py"): "y = x"})
    with pytest.raises(run.MutationError, match=r"a.py \(2 times\)"):
        run.place(there, {Path("a.py"): "y = x + 1 + (x + 1)"})
    with pytest.raises(run.MutationError, match="does not parse"):
        run.mutated(Mutant("m", "sign", "x + 1", "x +", ()), "y = x + 1")


def test_a_mutant_is_killed_by_the_test_that_fails_first(tmp_path: Path) -> None:
    for name, text in (
        ("suite/__init__.py", ""),
        ("suite/double.py", "def double(x):\n    return 2 * x\n"),
        (
            "tests/test_zero.py",
            "from suite.double import double\n\ndef test_zero():\n    assert double(0) == 0\n",
        ),
        (
            "tests/test_one.py",
            "from suite.double import double\n\ndef test_one():\n    assert double(1) == 2\n",
        ),
        (
            "pyproject.toml",
            '[tool.pytest.ini_options]\naddopts = ["--import-mode=importlib"]\npythonpath = ["."]\n',
        ),
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    seen = Mutant("seen", "scale", "2 * x", "3 * x", ("tests/test_one.py",))
    missed = Mutant("missed", "scale", "2 * x", "3 * x", ("tests/test_zero.py",))
    killed = run.judge(seen, tmp_path, "hints", run.Passes())
    assert (killed["killed_by"], killed["tier"]) == ("tests/test_one.py::test_one", "hints")
    assert killed["package"] == "suite"
    assert not run.judge(missed, tmp_path, "hints", run.Passes())["killed_by"]
    assert "2 * x" in (tmp_path / "suite/double.py").read_text()
    late = run.judge(missed, tmp_path, "fast", run.Passes())
    assert (late["killed_by"], late["tier"]) == ("tests/test_one.py::test_one", "fast")


def test_tests_that_fail_without_a_mistake_kill_nothing(tmp_path: Path) -> None:
    (tmp_path / "test_wrong.py").write_text("def test_wrong():\n    assert False\n")
    with pytest.raises(run.MutationError, match=r"test_wrong.py::test_wrong fails without any mistake"):
        run.Passes()(tmp_path, ["test_wrong.py"], compiled=False, limit_s=60)
    with pytest.raises(run.MutationError, match="ended with 5"):
        run.Passes()(tmp_path, ["-k", "nothing"], compiled=False, limit_s=60)


def test_results_hold_for_the_same_row_tier_and_code(tmp_path: Path) -> None:
    mutant = Mutant("m", "sign", "+", "-", ("tests",))
    out = tmp_path / "out.jsonl"
    result = {"killed_by": "", "tier": "", "package": "suite", "seconds": 1.0}
    out.write_text(json.dumps({**run.identity(mutant, "fast", "c0de"), **result}) + "\n")
    assert list(run.known(out, [mutant], "fast", "c0de")) == ["m"]
    assert not run.known(out, [mutant], "full", "c0de")
    assert not run.known(out, [mutant], "fast", "0ther")
    assert not run.known(out, [Mutant("m", "sign", "+", "*", ("tests",))], "fast", "c0de")
    assert "| m | sign | suite | **survives** |" in run.table(
        run.known(out, [mutant], "fast", "c0de").values()
    )
