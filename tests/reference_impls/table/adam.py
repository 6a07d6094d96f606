"""Rows of the family adam."""

from __future__ import annotations

from tests.reference_impls.table.row import Row

_ROUNDS = {
    "variance_steps": 6,
    "refreshes_per_gap": 2,
    "local_growth_steps": 2,
    "longest_round": 3,
    "total_steps": 14,
}
ROWS: tuple[Row, ...] = (
    Row("apmsqueeze", "apmsqueeze", {"warmup_steps": 6}, close=1e-3),
    Row("apmsqueeze-shard-l1", "apmsqueeze", {"warmup_steps": 6, "scale": "shard", "norm": "l1"}, close=1e-3),
    Row("apmsqueeze-from-the-start", "apmsqueeze", {"warmup_steps": 0, "initial_variance": 1.0}, exact=True),
    Row(
        "apmsqueeze-tensor-clipped",
        "apmsqueeze",
        {"warmup_steps": 6, "scale": "tensor", "max_grad_norm": 0.5},
        close=1e-3,
    ),
    Row("apmsqueeze-exact", "apmsqueeze", {"warmup_steps": 6, "compressor": "none"}, close=1e-3),
    Row("apmsqueeze-prototype", "apmsqueeze-prototype", {"warmup_steps": 0, "weight_decay": 0.1}, exact=True),
    Row("one-bit-adam", "one-bit-adam", {"total_steps": 14, "warmup_fraction": 0.4}, close=1e-3),
    Row(
        "one-bit-adam-auto",
        "one-bit-adam",
        {"freeze": "auto", "auto_window": 3, "auto_ratio": 0.3},
        close=1e-3,
    ),
    Row(
        "one-bit-adam-deepspeed",
        "one-bit-adam-deepspeed",
        {"warmup_steps": 6, "weight_decay": 0.1},
        close=1e-3,
    ),
    Row("zero-one-adam", "zero-one-adam", _ROUNDS, close=1e-3, replicas="average"),
    Row(
        "zero-one-adam-exact",
        "zero-one-adam",
        {**_ROUNDS, "compressor": "none", "total_steps": None, "weight_decay": 0.1},
        close=1e-3,
        replicas="average",
    ),
    Row("one-bit-lamb", "one-bit-lamb", {"warmup_steps": 6}, close=1e-3),
    Row(
        "one-bit-lamb-decay-l1",
        "one-bit-lamb",
        {"warmup_steps": 6, "weight_decay": 0.1, "norm": "l1", "scale": "tensor"},
        close=1e-3,
    ),
)
