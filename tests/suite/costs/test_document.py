"""The cost model's pages hold what their tables hold, and blocks say what is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs.make import cost_model
from suite.analysis.document import DocumentError
from suite.costs.document import BLOCKS, filled


def test_pages_and_pictures_are_what_the_published_tables_make_them() -> None:
    texts = dict(cost_model())
    assert {path.suffix for path in texts} == {".md", ".svg"}
    for path, text in texts.items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name}: run `make docs`"


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
