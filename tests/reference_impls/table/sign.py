"""Rows of the family sign."""

from __future__ import annotations

from tests.reference_impls.table.row import SGD, Row

ROWS: tuple[Row, ...] = (
    Row("lion-cub-1bit", "lion-cub-1bit", {"momentum_sync": "never"}, exact=True, plain=("lion", {})),
    Row("lion-cub-1bit-periodic", "lion-cub-1bit", {"sync_every": 5}, flips=0.05, plain=("lion", {})),
    Row(
        "lion-cub-1bit-doubling",
        "lion-cub-1bit",
        {"momentum_sync": "doubling"},
        flips=0.05,
        plain=("lion", {}),
    ),
    Row(
        "lion-cub-1bit-selective",
        "lion-cub-1bit",
        {"momentum_sync": "selective", "sync_every": 3, "sync_measure_every": 7, "sync_fraction": 0.3},
        flips=0.05,
        plain=("lion", {}),
    ),
    Row("lion-cub-pbit-l1", "lion-cub-pbit", exact=True),
    Row("lion-cub-pbit-l0", "lion-cub-pbit", {"scale": "l0"}, exact=True),
    Row("lion-cub-pbit-linf", "lion-cub-pbit", {"scale": "linf"}, exact=True),
    Row("lion-cub-pbit-4", "lion-cub-pbit", {"bits": 4}, exact=True, largest=7),
    Row("lion-cub-pbit-16", "lion-cub-pbit", {"bits": 16}, exact=True),
    Row(
        "lion-cub-pbit-periodic", "lion-cub-pbit", {"momentum_sync": "periodic", "sync_every": 4}, flips=0.05
    ),
    Row(
        "lion-cub-pbit-two-phase-stochastic",
        "lion-cub-pbit",
        {"form": "two-phase", "bits": 6, "scale": "l2-stochastic"},
        exact=True,
    ),
    Row(
        "lion-cub-pbit-two-phase-sign",
        "lion-cub-pbit",
        {"form": "two-phase-sign", "levels": "code", "bits": 5, "scale": "linf", "shared_scale": True},
        exact=True,
    ),
    Row("distributed-lion-mavo", "distributed-lion-mavo", exact=True, plain=("lion", {})),
    Row("distributed-lion-avg", "distributed-lion-avg", exact=True, plain=("lion", {})),
    Row("distributed-lion-avg-int8", "distributed-lion-avg", {"transport": "int8-sum"}, exact=True),
    Row("ef-signsgd", "ef-signsgd", {"momentum": 0.9}, exact=True, plain=SGD),
    Row("ef-signsgd-bucket", "ef-signsgd", {"granularity": "bucket"}, exact=True, plain=("sgd", {})),
    Row(
        "ef-signsgd-two-phase-l2",
        "ef-signsgd",
        {"form": "two-phase", "granularity": "bucket", "norm": "l2"},
        exact=True,
    ),
    Row("ef-signsgd-warm-up", "ef-signsgd", {"warmup_steps": 3, "optimizer": "adamw"}, close=1e-3),
    Row("signsgd", "signsgd", {"weight_decay": 0.1}, exact=True),
    Row(
        "signsgd-average",
        "signsgd",
        {"vote": "average", "transport": "int8-sum", "zero_policy": "zero"},
        exact=True,
    ),
    Row("signum", "signum", {"momentum": 0.8}, exact=True),
    Row("signum-average", "signum", {"vote": "average", "local_clip_norm": 0.5}, exact=True),
)
