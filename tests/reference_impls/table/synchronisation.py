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
    Row(
        "linear-rule",
        "linear-rule",
        {"alpha": 0.05, "h_base": 2, "momentum": 0.9, "total_steps": STEPS},
        replicas="average",
        plain=SGD,
    ),
    Row(
        "cubic-rule",
        "cubic-rule",
        {"alpha": 0.03, "h_base": 2, "optimizer": "adamw", "total_steps": STEPS},
        replicas="average",
        plain=("adamw", {}),
    ),
    Row(
        "post-local-sgd",
        "post-local-sgd",
        {"switch_step": 5, "period": 4, "momentum": 0.9, "total_steps": STEPS},
        replicas="average",
        plain=SGD,
    ),
    Row(
        "swap",
        "swap",
        {"switch_step": 12, "switch_accuracy": 0.8, "total_steps": STEPS, "optimizer": "adamw"},
        replicas="average",
        plain=("adamw", {}),
    ),
    Row(
        "adacomm",
        "adacomm",
        {"first_period": 4, "adapt_every": 4, "momentum": 0.9, "total_steps": STEPS},
        replicas="average",
        plain=SGD,
    ),
    Row(
        "adacomm-paddle",
        "adacomm",
        {"first_period": 4, "adapt_every": 2, "form": "paddle", "total_steps": STEPS},
        replicas="average",
    ),
)
