"""Rows of the family quantiser."""

from __future__ import annotations

from tests.reference_impls.table.row import Row

ROWS: tuple[Row, ...] = (
    Row("global-qsgd-standard", "global-qsgd", {"momentum": 0.9}, exact=True),
    Row("global-qsgd-standard-16", "global-qsgd", {"bits": 16}, exact=True),
    Row("global-qsgd-standard-l2", "global-qsgd", {"norm": "l2"}),
    Row("global-qsgd-tree", "global-qsgd", {"dithering": "exponential", "form": "tree"}, exact=True),
)
