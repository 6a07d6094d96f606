"""Rows of the family sparsifier."""

from __future__ import annotations

from tests.reference_impls.table.row import Row

ROWS: tuple[Row, ...] = ()
