"""Rows of the family control."""

from __future__ import annotations

from tests.reference_impls.table.row import STEPS, Row

ROWS: tuple[Row, ...] = (
    Row(
        "control-no-communication",
        "control-no-communication",
        {"total_steps": STEPS},
        replicas="average",
        plain=("sgd", {}),
    ),
    Row(
        "control-one-worker",
        "control-one-worker",
        {"total_steps": STEPS},
        exact=True,
        replicas="average",
        plain=("sgd", {}),
        deaf="what the other workers learn is thrown away",
    ),
    Row(
        "control-random-k",
        "control-random-k",
        {"fraction": 0.1},
        deaf="a coordinate that is not drawn is dropped, whatever it is",
    ),
    Row(
        "control-one-rank-sign",
        "control-one-rank-sign",
        exact=True,
        plain=("lion", {}),
        deaf="what the other ranks have is not listened to",
    ),
)
