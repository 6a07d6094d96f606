"""Which long tests a change is given."""

from __future__ import annotations

from pathlib import Path

from tests import touched
from tests.reference_impls.table import FIRST

ROOT = Path(__file__).resolve().parents[1]


def test_changes_are_mapped_to_the_tests_of_their_folders() -> None:
    assert touched.arguments(["suite/claims/verdict.py", "docs/timing.md"]) == [
        "tests/golden",
        "tests/suite/claims",
    ]
    assert touched.arguments(["suite/sweeps/quick.yaml"]) == ["tests/golden", "tests/suite"]
    assert touched.arguments(["report/study.py", "tests/slurm/test_states.py"]) == [
        "tests/golden",
        "tests/report",
        "tests/slurm/test_states.py",
    ]
    assert touched.arguments(["README.md", "docs/timing.md"]) == []


def test_a_change_of_methods_is_given_their_rows_and_one_of_all_a_sample() -> None:
    *places, methods = touched.arguments(["reference_impls/algorithms/powersgd.py"])
    assert "tests/reference_impls/test_conformance.py" in places
    assert methods == "--methods=l-greco,powersgd"
    assert touched.methods({"reference_impls.runtime.engine"}) == sorted(touched.SAMPLE)
    assert (
        touched.arguments(["tests/reference_impls/problem.py"])[-1]
        == f"--methods={','.join(sorted(touched.SAMPLE))}"
    )
    assert {row.algorithm for row in FIRST} >= set(touched.SAMPLE)
