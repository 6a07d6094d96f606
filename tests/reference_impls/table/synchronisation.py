"""Rows of the family synchronisation."""

from __future__ import annotations

from tests.reference_impls.table.row import SGD, STEPS, Row

ROWS: tuple[Row, ...] = (
    Row(
        "local-sgd",
        "local-sgd",
        {"period": 4, "momentum": 0.9, "total_steps": STEPS},
        replicas="average",
        plain=SGD,
    ),
    Row(
        "local-adamw",
        "local-adamw",
        {"period": 3, "total_steps": STEPS},
        replicas="average",
        plain=("adamw", {}),
    ),
    Row(
        "qsr-sgd",
        "qsr-sgd",
        {"alpha": 0.03, "h_base": 2, "momentum": 0.9, "total_steps": STEPS},
        replicas="average",
        plain=SGD,
    ),
    Row(
        "qsr-adamw",
        "qsr-adamw",
        {"alpha": 0.03, "h_base": 2, "total_steps": STEPS},
        replicas="average",
        plain=("adamw", {}),
    ),
    Row("lag", "lag", {"momentum": 0.9}),
    Row("lag-short-memory", "lag", {"xi": 0.5, "depth": 2, "optimizer": "adamw"}, close=1e-4),
)
