"""The cost model's pages hold what their tables hold, and blocks say what is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from report.pages.costs import DOCUMENTS, IMAGES, pictures
from suite.analysis.document import DocumentError
from suite.costs.document import BLOCKS, filled

RESULTS = Path(__file__).resolve().parents[3] / "results" / "published"


@pytest.mark.parametrize("page", DOCUMENTS, ids=lambda page: page.stem)
def test_a_page_is_what_the_tables_make_it(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert filled(text, RESULTS) == text


def test_the_pictures_are_what_the_tables_make_them() -> None:
    drawn = pictures(RESULTS)
    assert drawn
    for name, text in drawn.items():
        assert (IMAGES / name).read_text(encoding="utf-8") == text, (
            f"bandwise costs docs makes another {name}"
        )


@pytest.mark.parametrize(
    "block",
    [
        "machine",
        "prices",
        "score",
        "worst 3",
        "speedups low-bandwidth lion-cub-1bit:step",
        "before costs-unseen",
        "two-runs low-bandwidth",
        "advised costs-far",
        "regret",
        "foretold",
    ],
)
def test_what_was_not_measured_is_said(block: str, tmp_path: Path) -> None:
    assert block.split()[0] in BLOCKS
    text = filled(f"<!-- table: {block} -->\n<!-- end of table -->", tmp_path)
    assert "Not measured yet: `bandwise" in text


def test_an_unknown_block_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DocumentError, match="no table is called 'nothing'"):
        filled("<!-- table: nothing -->\n<!-- end of table -->", tmp_path)
