"""What is frozen still holds; `python -m tests.golden.freeze` freezes anew what was meant to change."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.golden import freeze
from tests.golden.freeze import SECTIONS


def _holds(section: str, names: list[str]) -> None:
    kept = freeze.frozen(section)
    same = kept.pop("arithmetic") == freeze.arithmetic()
    found = [
        line
        for name in names
        for line in freeze.compared(
            kept[name], freeze.plain(SECTIONS[section].make(name)), f"{section}/{name}", same
        )
    ]
    assert not found, "\n".join([f"{len(found)} differences", *found[:40]])


@pytest.mark.parametrize(
    "section", [name for name, part in SECTIONS.items() if any(map(part.fast, part.cases()))]
)
def test_what_was_frozen_holds(section: str) -> None:
    part = SECTIONS[section]
    _holds(section, [name for name in part.cases() if part.fast(name)])


@pytest.mark.full
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    "section", [name for name, part in SECTIONS.items() if not all(map(part.fast, part.cases()))]
)
def test_what_was_frozen_holds_in_full(section: str) -> None:
    part = SECTIONS[section]
    _holds(section, [name for name in part.cases() if not part.fast(name)])


@pytest.mark.parametrize("section", SECTIONS)
def test_every_case_is_frozen_and_no_other(section: str) -> None:
    assert freeze.frozen(section).keys() - {"arithmetic"} == set(SECTIONS[section].cases())


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name == "quick" else pytest.mark.full) for name in freeze.SHIPPED],
)
def test_tables_that_ship_are_made_again_from_what_is_in_git(name: str, tmp_path: Path) -> None:
    """To six digits: what they are made from stands in git with nine. Of studies the rows and curves come back as runs."""
    freeze.remade(name, tmp_path)
    made = sorted(path for path in (tmp_path / freeze.TABLES).glob(f"{name}*.csv"))
    assert len(made) >= 2
    for path in made:
        assert list(freeze.unlike(freeze.PUBLISHED / path.name, path)) == []


def test_a_difference_is_found_and_placed() -> None:
    kept = {
        "exact": {"columns": {"a": "x", "b": "y"}, "by_row": "aa bb cc"},
        "bits": {"p": ["1", "2"]},
        "about": {"n": 1.0},
    }
    made = {
        "exact": {"columns": {"a": "x", "b": "z"}, "by_row": "aa bd cc"},
        "bits": {"p": ["1", "3"]},
        "about": {"n": 1.2},
    }
    assert sorted(freeze.compared(kept, made, "s", True)) == [
        "s/by_row: rows [1] of 3 differ", "s/columns/b: was 'y', is 'z'", "s/n: was 1.0, is 1.2", "s/p[1]: was '2', is '3'",
    ]  # fmt: skip
    assert len(list(freeze.compared(kept, made, "s", False))) == 3
    assert list(freeze.compared(kept, kept, "s", True)) == []
