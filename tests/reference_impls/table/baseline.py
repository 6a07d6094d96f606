"""Rows of the family baseline."""

from __future__ import annotations

from tests.reference_impls.table.row import SGD, Row

ROWS: tuple[Row, ...] = (
    Row("allreduce-sgd", "allreduce-sgd", {"momentum": 0.9}, plain=SGD),
    Row("allreduce-adamw", "allreduce-adamw", plain=("adamw", {})),
    Row(
        "allreduce-lion",
        "allreduce-lion",
        {"weight_decay": 0.1},
        flips=0.05,
        plain=("lion", {"weight_decay": 0.1}),
    ),
)
