"""Rows of methods that meet under an outer optimizer; of the family synchronisation."""

from __future__ import annotations

from tests.reference_impls.table.row import SGD, STEPS, Row

_LOCAL = {"period": 4, "momentum": 0.9, "total_steps": STEPS}
ROWS: tuple[Row, ...] = (
    # any carrier brings local methods together
    *(
        Row(
            f"local-sgd-{carrier}",
            "local-sgd",
            {**_LOCAL, "carrier": carrier},
            exact=carrier not in ("bf16",),
            close=1e-3,
            largest=largest,
            replicas="average",
            plain=SGD,
        )
        for carrier, largest in (("bf16", 8), ("int4", 7), ("sign", 8))
    ),
    Row(
        "qsr-adamw-int4",
        "qsr-adamw",
        {"alpha": 0.03, "h_base": 2, "carrier": "int4", "total_steps": STEPS},
        exact=True,
        largest=7,
        replicas="average",
        plain=("adamw", {}),
    ),
    Row(
        "local-adamw-average-states",
        "local-adamw",
        {"period": 3, "inner_state": "average", "total_steps": STEPS},
        replicas="average",
        plain=("adamw", {}),
    ),
    Row("slowmo-sgd", "slowmo-sgd", _LOCAL, replicas="average"),
    Row("slowmo-sgd-sgp", "slowmo-sgd", {**_LOCAL, "base": "sgp", "period": 5}, replicas="average"),
    Row(
        "slowmo-sgd-osgp",
        "slowmo-sgd",
        {**_LOCAL, "base": "osgp", "overlap": 2, "period": 5},
        replicas="average",
    ),
    Row(
        "slowmo-sgd-no-average",
        "slowmo-sgd",
        {**_LOCAL, "base": "sgp", "average": False},
        exact=True,
        replicas="never",
    ),
    Row("slowmo-adamw", "slowmo-adamw", {"period": 4, "total_steps": STEPS}, replicas="average"),
    Row(
        "slowmo-adamw-osgp-no-average",
        "slowmo-adamw",
        {"period": 4, "total_steps": STEPS, "base": "osgp", "average": False},
        exact=True,
        replicas="never",
    ),
    Row("bmuf", "bmuf", {"period": 4, "outer_momentum": 0.5, "total_steps": STEPS}, replicas="average"),
    Row("bmuf-nesterov", "bmuf-nesterov", {"period": 3, "total_steps": STEPS}, replicas="average"),
    Row("diloco", "diloco", {"period": 5, "total_steps": STEPS}, replicas="average"),
    Row(
        "diloco-int4",
        "diloco",
        {"period": 5, "carrier": "int4", "total_steps": STEPS},
        exact=True,
        largest=7,
        replicas="average",
    ),
    Row(
        "diloco-sgd",
        "diloco-sgd",
        {"period": 4, "carrier": "int8", "total_steps": STEPS},
        exact=True,
        replicas="average",
    ),
    Row(
        "diloco-lion",
        "diloco-lion",
        {"period": 4, "carrier": "sign", "outer_momentum": 0.5, "total_steps": STEPS},
        exact=True,
        replicas="average",
    ),
    Row(
        "streaming-diloco",
        "streaming-diloco",
        {"period": 6, "fragments": 3, "carrier": "e3m0", "total_steps": STEPS},
        exact=True,
        replicas="end",
    ),
    Row(
        "streaming-diloco-sequential",
        "streaming-diloco",
        {
            "period": 4,
            "fragments": 2,
            "pattern": "sequential",
            "overlap": 3,
            "carrier": "bf16",
            "total_steps": STEPS,
        },
        close=1e-3,
        replicas="end",
    ),
    Row(
        "streaming-diloco-sgd",
        "streaming-diloco-sgd",
        {"period": 4, "fragments": 2, "overlap": 0, "mixing": 0.0, "carrier": "int8", "total_steps": STEPS},
        exact=True,
        replicas="end",
    ),
    Row(
        "sparseloco",
        "sparseloco",
        {"period": 4, "k": 8, "chunk": 32, "total_steps": STEPS},
        exact=True,
        replicas="average",
        plain=("adamw", {}),
    ),
    Row(
        "sparseloco-sgd",
        "sparseloco-sgd",
        {
            "period": 3,
            "k": 4,
            "chunk": 16,
            "value_bits": 32,
            "outer_lr": 0.7,
            "total_steps": STEPS,
        },
        exact=True,
        replicas="average",
    ),
    Row("noloco", "noloco", {"period": 3, "total_steps": STEPS}, exact=True, replicas="never"),
    Row(
        "noloco-sgd",
        "noloco-sgd",
        {"period": 4, "momentum": 0.9, "total_steps": STEPS},
        exact=True,
        replicas="never",
    ),
    Row("demo", "demo", {"side": 8, "k": 4}, flips=0.02),
)
