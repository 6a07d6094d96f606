"""Rows of the family synchronisation: local steps, what else brings progress or momenta together, and LAG."""

from __future__ import annotations

from typing import Any

from tests.reference_impls.table.row import SGD, STEPS, Row

ADAMW: tuple[str, dict[str, Any]] = ("adamw", {})


def _rounds(id: str, name: str, plain: tuple[str, dict[str, Any]] | None = None, **said: Any) -> Row:
    """Replicas are equal after every average, and the last one ends the training; what is no field of a row is an option."""
    own = {key: said.pop(key) for key in ("exact", "close", "largest") if key in said}
    replicas = said.pop("replicas", "average")
    return Row(id, name, {**said, "total_steps": STEPS}, replicas=replicas, plain=plain, **own)


_SGD: dict[str, Any] = {"period": 4, "momentum": 0.9}
ROWS: tuple[Row, ...] = (
    _rounds("local-sgd", "local-sgd", SGD, **_SGD),
    _rounds("local-adamw", "local-adamw", ADAMW, period=3),
    _rounds("qsr-sgd", "qsr-sgd", SGD, alpha=0.03, h_base=2, momentum=0.9),
    _rounds("qsr-adamw", "qsr-adamw", ADAMW, alpha=0.03, h_base=2),
    Row("lag", "lag", {"momentum": 0.9}),
    Row("lag-short-memory", "lag", {"xi": 0.5, "depth": 2, "optimizer": "adamw"}, close=1e-4),
    _rounds("linear-rule", "linear-rule", SGD, alpha=0.05, h_base=2, momentum=0.9),
    _rounds("cubic-rule", "cubic-rule", ADAMW, alpha=0.03, h_base=2, optimizer="adamw"),
    _rounds("post-local-sgd", "post-local-sgd", SGD, switch_step=5, **_SGD),
    _rounds("swap", "swap", ADAMW, switch_step=12, switch_accuracy=0.8, optimizer="adamw"),
    _rounds("adacomm", "adacomm", SGD, first_period=4, adapt_every=4, momentum=0.9),
    _rounds("adacomm-paddle", "adacomm", first_period=4, adapt_every=2, form="paddle"),
    # any carrier brings local methods together
    _rounds("local-sgd-bf16", "local-sgd", SGD, **_SGD, carrier="bf16", close=1e-3),
    _rounds("local-sgd-int4", "local-sgd", SGD, **_SGD, carrier="int4", exact=True, close=1e-3, largest=7),
    _rounds("local-sgd-sign", "local-sgd", SGD, **_SGD, carrier="sign", exact=True, close=1e-3),
    _rounds("qsr-adamw-int4", "qsr-adamw", ADAMW, alpha=0.03, h_base=2, carrier="int4", exact=True, largest=7),
    _rounds("local-adamw-average-states", "local-adamw", ADAMW, period=3, inner_state="average"),
    # outer optimizers and gossip
    _rounds("slowmo-sgd", "slowmo-sgd", **_SGD),
    _rounds("slowmo-sgd-sgp", "slowmo-sgd", base="sgp", **{**_SGD, "period": 5}),
    _rounds("slowmo-sgd-osgp", "slowmo-sgd", base="osgp", overlap=2, **{**_SGD, "period": 5}),
    _rounds("slowmo-sgd-no-average", "slowmo-sgd", **_SGD, base="sgp", average=False, exact=True, replicas="never"),
    _rounds("slowmo-adamw", "slowmo-adamw", period=4),
    _rounds(
        "slowmo-adamw-osgp-no-average", "slowmo-adamw", period=4, base="osgp", average=False, exact=True, replicas="never"
    ),
    _rounds("bmuf", "bmuf", period=4, outer_momentum=0.5),
    _rounds("bmuf-nesterov", "bmuf-nesterov", period=3),
    _rounds("diloco", "diloco", period=5),
    _rounds("diloco-int4", "diloco", period=5, carrier="int4", exact=True, largest=7),
    _rounds("diloco-sgd", "diloco-sgd", period=4, carrier="int8", exact=True),
    _rounds("diloco-lion", "diloco-lion", period=4, carrier="sign", outer_momentum=0.5, exact=True),
    _rounds("streaming-diloco", "streaming-diloco", period=6, fragments=3, carrier="e3m0", exact=True, replicas="end"),
    _rounds(
        "streaming-diloco-sequential", "streaming-diloco", period=4, fragments=2, pattern="sequential", overlap=3,
        carrier="bf16", close=1e-3, replicas="end",
    ),
    _rounds(
        "streaming-diloco-sgd", "streaming-diloco-sgd", period=4, fragments=2, overlap=0, mixing=0.0, carrier="int8",
        exact=True, replicas="end",
    ),
    _rounds("sparseloco", "sparseloco", ADAMW, period=4, k=8, chunk=32, exact=True),
    _rounds("sparseloco-sgd", "sparseloco-sgd", period=3, k=4, chunk=16, value_bits=32, outer_lr=0.7, exact=True),
    _rounds("noloco", "noloco", period=3, exact=True, replicas="never"),
    _rounds("noloco-sgd", "noloco-sgd", **_SGD, exact=True, replicas="never"),
    Row("demo", "demo", {"side": 8, "k": 4}, flips=0.02),
)  # fmt: skip
