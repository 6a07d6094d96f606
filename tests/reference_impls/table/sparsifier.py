"""Rows of the family sparsifier."""

from __future__ import annotations

from tests.reference_impls.table.row import SGD, Row

SMALL = {"ratio": 0.1, "column_ratio": 0.3}  # the models of the tests are small

ROWS: tuple[Row, ...] = (
    Row("top-k", "top-k", {"ratio": 0.1, "momentum": 0.9}, exact=True, plain=SGD),
    Row("top-k-tensor", "top-k", {"ratio": 0.2, "granularity": "tensor"}, exact=True),
    Row("top-k-two-phase", "top-k", {"ratio": 0.2, "form": "two-phase"}, exact=True),
    Row("top-k-all", "top-k", {"ratio": 1.0, "error_feedback": False}, exact=True, plain=("sgd", {})),
    Row("random-k", "random-k", {"ratio": 0.3, "momentum": 0.9}, plain=SGD),
    Row("random-k-feedback", "random-k", {"ratio": 0.1, "error_feedback": True}, plain=("sgd", {})),
    Row("random-k-tensor", "random-k", {"ratio": 0.3, "granularity": "tensor"}),
    Row("gtop-k", "gtop-k", {"ratio": 0.1, "momentum": 0.9}, exact=True, plain=SGD),
    Row("gtop-k-doubling", "gtop-k", {"ratio": 0.2, "form": "doubling"}, exact=True),
    Row("gtop-k-mask", "gtop-k", {"ratio": 0.1, "put_back": "mask"}, exact=True),
    Row("dgc", "dgc", {"ratio": 0.1, "momentum": 0.9}, exact=True, plain=SGD),
    Row("dgc-model-clip", "dgc", {"ratio": 0.1, "granularity": "model", "local_clip": 1.0}, exact=True),
    Row(
        "dgc-warm-up",
        "dgc",
        {"ratio": 0.05, "warmup_steps": 6, "warmup_stages": 2, "nesterov": True, "momentum": 0.9},
        exact=True,
    ),
    Row("sketched-sgd", "sketched-sgd", SMALL, flips=0.1),
    Row("sketched-sgd-all", "sketched-sgd", {**SMALL, "dense_vectors": False, "momentum": 0.5}, flips=0.1),
    Row("sketched-sgd-theory", "sketched-sgd-theory", SMALL, flips=0.1),
    Row("gs-sgd", "gs-sgd", SMALL, exact=True),
    Row("gs-sgd-tree", "gs-sgd", {**SMALL, "form": "tree", "dense_vectors": False}, exact=True),
)
