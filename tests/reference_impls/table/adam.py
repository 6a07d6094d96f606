"""Rows of the family adam."""

from __future__ import annotations

from tests.reference_impls.table.row import Row

ROWS: tuple[Row, ...] = (
    Row("apmsqueeze", "apmsqueeze", {"warmup_steps": 6}, close=1e-3),
    Row("apmsqueeze-shard-l1", "apmsqueeze", {"warmup_steps": 6, "scale": "shard", "norm": "l1"}, close=1e-3),
    Row("apmsqueeze-from-the-start", "apmsqueeze", {"warmup_steps": 0, "initial_variance": 1.0}, exact=True),
    Row(
        "apmsqueeze-gradient",
        "apmsqueeze",
        {"warmup_steps": 6, "compress": "gradient", "bias_correction": True},
        close=1e-3,
    ),
)
