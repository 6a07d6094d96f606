"""The literal table of methods, a file a family: every property test runs over it. Adding a method means adding a row."""

from __future__ import annotations

from tests.reference_impls.table import (
    adam,
    baseline,
    control,
    outer,
    quantiser,
    sign,
    sparsifier,
    synchronisation,
    variance_reduction,
)
from tests.reference_impls.table.row import SGD, STEPS, Row

__all__ = ["FIRST", "ROWS", "SGD", "STEPS", "Row"]

_FAMILIES = (
    baseline,
    sign,
    quantiser,
    sparsifier,
    adam,
    synchronisation,
    outer,
    variance_reduction,
    control,
)
ROWS: tuple[Row, ...] = tuple(row for family in _FAMILIES for row in family.ROWS)
FIRST: tuple[Row, ...] = tuple({row.algorithm: row for row in reversed(ROWS)}.values())[::-1]
"""One row a method, for tests of what lies below the methods and is slow."""
