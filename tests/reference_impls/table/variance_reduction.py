"""Rows of the family variance-reduction."""

from __future__ import annotations

from tests.reference_impls.table.row import Row

ROWS: tuple[Row, ...] = ()
