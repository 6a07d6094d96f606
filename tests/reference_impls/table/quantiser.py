"""Rows of the family quantiser."""

from __future__ import annotations

from tests.reference_impls.table.row import SGD, Row

ROWS: tuple[Row, ...] = (
    Row("global-qsgd-standard", "global-qsgd", {"momentum": 0.9}, exact=True),
    Row("global-qsgd-standard-16", "global-qsgd", {"bits": 16}, exact=True),
    Row("global-qsgd-standard-l2", "global-qsgd", {"norm": "l2"}),
    Row("global-qsgd-tree", "global-qsgd", {"dithering": "exponential", "form": "tree"}, exact=True),
    Row("powersgd", "powersgd", {"momentum": 0.9}, plain=SGD, close=1e-3),
    Row("powersgd-rank-1", "powersgd", {"rank": 1, "reshape": "balanced"}, plain=("sgd", {}), close=1e-3),
    Row(
        "powersgd-all", "powersgd", {"rank": 4, "min_compression_rate": 0.0, "optimizer": "adamw"}, close=1e-3
    ),
    Row("powersgd-cold", "powersgd", {"warm_start": False, "error_feedback": False}, close=1e-3),
    Row("powersgd-warm-up", "powersgd", {"warmup_steps": 3}, close=1e-3),
)
