"""What is frozen still holds; `python -m tests.golden.freeze` freezes anew what was meant to change."""

from __future__ import annotations

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
