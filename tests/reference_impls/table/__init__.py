"""The literal table of methods, a file a family: every property test runs over it. Adding a method means adding a row."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from tests.reference_impls.table import (
    adam,
    baseline,
    control,
    quantiser,
    sign,
    sparsifier,
    synchronisation,
    variance_reduction,
)
from tests.reference_impls.table.row import SGD, STEPS, Row

__all__ = ["FIRST", "OVER_GLOO", "ROWS", "SGD", "SOME", "STEPS", "Row", "tiered"]

_FAMILIES = (
    baseline,
    sign,
    quantiser,
    sparsifier,
    adam,
    synchronisation,
    variance_reduction,
    control,
)
ROWS: tuple[Row, ...] = tuple(row for family in _FAMILIES for row in family.ROWS)
FIRST: tuple[Row, ...] = tuple({row.algorithm: row for row in reversed(ROWS)}.values())[::-1]
"""One row a method: what the fast tests look at, and tests of what lies below the methods."""

_SOME = (
    "allreduce-sgd",
    "allreduce-adamw",
    "lion-cub-1bit",
    "global-qsgd-standard",
    "powersgd",
    "top-k",
    "dgc",
    "apmsqueeze",
    "zero-one-adam",
    "local-sgd",
    "slowmo-sgd",
    "diloco",
    "streaming-diloco",
    "noloco",
    "root-sgd",
    "control-one-rank-sign",
)
SOME: tuple[Row, ...] = tuple(row for row in FIRST if row.id in _SOME)
"""Methods of every family: what the fast tests look at where drivers decide, or where a look takes long."""

OVER_GLOO: tuple[str, ...] = (
    "allreduce-bf16",
    "allreduce-fp16",
    "control-one-rank-sign",
    "dgc-unmasked",
    "dgc-warm-up",
    "dq-sgd-convex",
    "ef-sign-adam",
    "global-qsgd-halving",
    "global-qsgd-sparse",
    "intsgd-32-bucket",
    "lion-cub-1bit-selective",
    "noloco",
    "powersgd-warm-up",
    "root-sgd",
    "streaming-diloco-sgd",
    "zero-one-adam",
)
"""Rows that together ask real processes for all that any row asks them for: each collective on each group with each
operation and type of numbers, each kind of step, each way of averaging, what is pending over steps."""


def tiered(rows: Iterable[Row] = ROWS, fast: Sequence[Row] = FIRST) -> list[Any]:
    """Rows as parameters of a test, those that are not among `fast` in the full tests alone."""
    return [pytest.param(row, id=row.id, marks=() if row in fast else pytest.mark.full) for row in rows]
