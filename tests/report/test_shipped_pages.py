"""The pages of the studies that ship can be built from the tables in git, whatever sessions have left there."""

from __future__ import annotations

from pathlib import Path

import pytest

from report.study.build import build_page

RESULTS = Path(__file__).resolve().parents[2] / "results" / "published"
MOST_BYTES = 1_500_000
"""Of any page: on a slow line it is there in seconds, and a phone lays it out."""
WITH_CURVES = ("quick", "digits", "profiles")


@pytest.mark.parametrize(
    "sweep",
    [
        "quick",
        "language",
        *(pytest.param(name, marks=pytest.mark.full) for name in ("digits", "profiles", "ladder")),
    ],
)
def test_a_shipped_page_is_built_from_the_tables_in_git(sweep: str, tmp_path: Path) -> None:
    (tmp_path / "published").symlink_to(RESULTS)
    path = build_page(tmp_path, sweep, tmp_path / "page.html").path
    text = path.read_text(encoding="utf-8")
    assert "None" not in text.partition('<script type="application/json"')[0].replace("None of", "")
    assert path.stat().st_size < MOST_BYTES
    assert f"<code>session-{sweep}-rounds.csv</code>" in text or sweep not in ("quick", "language")
    if sweep in WITH_CURVES:
        assert "are not in the tables here" not in text
        assert f"<code>{sweep}-curves.csv</code>" in text
