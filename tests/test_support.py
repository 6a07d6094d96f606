"""The rule for missing programs: a test skips and says what to install; with CI=true it fails."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from tests.support import each, require_system


def test_a_missing_program_fails_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="with CI=true a test may not skip"):
        require_system("no-such-program")


def test_each_goes_over_all_cases_and_names_the_one_that_fails(tmp_path: Path) -> None:
    seen = []

    @each("size", (1, 2))
    @each(("name", "value"), [("a", 3), ("b", 4)])
    def looked_at(size: int, name: str, value: int, folder: Path) -> None:
        assert folder == tmp_path
        seen.append((size, name, value))
        assert (size, name) != (2, "b")

    with pytest.raises(AssertionError) as failed:
        looked_at(folder=tmp_path)
    assert seen == [(1, "a", 3), (1, "b", 4), (2, "a", 3), (2, "b", 4)]
    assert failed.value.__notes__ == ["case: size=2, name='b', value=4"]
    assert list(inspect.signature(looked_at).parameters) == ["folder"], "pytest gives it the rest"


def test_of_a_large_crossing_the_fast_test_meets_every_value_and_the_full_one_the_rest() -> None:
    seen: list[tuple[int, int, int]] = []

    @each("a", range(8))
    @each("b", range(5))
    @each("c", range(2))
    def looked_at(a: int, b: int, c: int) -> None:
        seen.append((a, b, c))

    (mark,) = looked_at.pytestmark  # type: ignore[attr-defined]
    fast, full = mark.args[1]
    assert fast == "spread"
    assert (full.values, [one.name for one in full.marks]) == (("others",), ["full"])
    looked_at(part=fast)
    assert len(seen) == 16
    assert [len({case[k] for case in seen}) for k in range(3)] == [8, 5, 2]
    looked_at(part=full.values[0])
    assert sorted(seen) == [(a, b, c) for a in range(8) for b in range(5) for c in range(2)]
