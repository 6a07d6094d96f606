"""Rows of the family variance-reduction."""

from __future__ import annotations

from tests.reference_impls.table.row import Row

ROWS: tuple[Row, ...] = (
    Row("root-sgd", "root-sgd", {"burn_in": 4}),
    Row(
        "root-sgd-inverse",
        "root-sgd",
        {"burn_in": 2, "step_size": "inverse", "slope": 0.1, "exponent": 1.0, "weight_decay": 0.1},
    ),
)
