"""Rows of the family baseline."""

from __future__ import annotations

from tests.reference_impls.table.row import SGD, Row

ROWS: tuple[Row, ...] = (
    Row("allreduce-sgd", "allreduce-sgd", {"momentum": 0.9}, plain=SGD),
    Row("allreduce-adamw", "allreduce-adamw", plain=("adamw", {})),
    Row("allreduce-bf16", "allreduce-bf16", {"momentum": 0.9}, close=1e-2, plain=SGD),
    Row("allreduce-bf16-two-phase", "allreduce-bf16", {"form": "two-phase"}, exact=True, plain=("sgd", {})),
    Row("allreduce-fp16", "allreduce-fp16", {"optimizer": "adamw"}, close=1e-2, plain=("adamw", {})),
    Row("allreduce-fp16-two-phase", "allreduce-fp16", {"form": "two-phase"}, exact=True, plain=("sgd", {})),
    Row(
        "allreduce-lion",
        "allreduce-lion",
        {"weight_decay": 0.1},
        flips=0.05,
        plain=("lion", {"weight_decay": 0.1}),
    ),
    Row("lion-sign-sum", "lion-sign-sum", exact=True, plain=("lion", {})),
    Row("lion-sign-sum-fp32", "lion-sign-sum-fp32", exact=True, plain=("lion", {})),
    Row("lion-sign-gather", "lion-sign-gather", exact=True, plain=("lion", {})),
    Row("lion-update-mean", "lion-update-mean", flips=0.2, plain=("lion", {})),
    Row(
        "lion-update-mean-synchronised",
        "lion-update-mean",
        {"dtype": "fp32", "momentum_sync": "periodic", "sync_every": 5},
        flips=0.05,
        plain=("lion", {}),
    ),
    Row("ef-sign-adam", "ef-sign-adam", exact=True, plain=("adamw", {})),
    Row("ef-sign-adam-warm-up", "ef-sign-adam", {"warmup_steps": 4}, close=1e-3),
)
