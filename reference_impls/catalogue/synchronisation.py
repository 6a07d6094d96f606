"""Local steps, and rules of when and how to bring workers together."""

from __future__ import annotations

from collections.abc import Mapping

from reference_impls.catalogue.entry import ALGORITHMS, Entry

ENTRIES: Mapping[str, Entry] = {
    "local-sgd": Entry(
        f"{ALGORITHMS}.local_updates:PeriodicAveraging",
        "synchronisation",
        "1805.09767",
        "H local SGD steps, then the average",
        preset={"optimizer": "sgd"},
    ),
    "local-adamw": Entry(
        f"{ALGORITHMS}.local_updates:PeriodicAveraging",
        "synchronisation",
        "1805.09767",
        "H local AdamW steps, then the average",
        preset={"optimizer": "adamw"},
    ),
    "qsr": Entry(
        f"{ALGORITHMS}.local_updates:QuadraticSynchronization",
        "synchronisation",
        "2310.14423",
        "local steps whose period grows as (alpha / lr)^2",
    ),
    "qsr-sgd": Entry(
        f"{ALGORITHMS}.local_updates:QuadraticSynchronization",
        "synchronisation",
        "2310.14423",
        "QSR on local SGD",
        preset={"optimizer": "sgd"},
    ),
    "qsr-adamw": Entry(
        f"{ALGORITHMS}.local_updates:QuadraticSynchronization",
        "synchronisation",
        "2310.14423",
        "QSR on local AdamW",
        preset={"optimizer": "adamw"},
    ),
    "lag": Entry(
        f"{ALGORITHMS}.lag:LAG",
        "synchronisation",
        "1805.09965",
        "a worker sends its gradient only when it has changed enough",
    ),
    "linear-rule": Entry(
        f"{ALGORITHMS}.local_updates:QuadraticSynchronization",
        "synchronisation",
        "2310.14423",
        "local steps whose period grows as alpha / lr",
        preset={"power": 1.0},
    ),
    "cubic-rule": Entry(
        f"{ALGORITHMS}.local_updates:QuadraticSynchronization",
        "synchronisation",
        "2310.14423",
        "local steps whose period grows as (alpha / lr)^3",
        preset={"power": 3.0},
    ),
    "post-local-sgd": Entry(
        f"{ALGORITHMS}.round_rules:PostLocal",
        "synchronisation",
        "1808.07217",
        "data-parallel up to a switch, then local steps",
    ),
    "swap": Entry(
        f"{ALGORITHMS}.round_rules:SWAP",
        "synchronisation",
        "2001.02312",
        "data-parallel up to a switch, then alone to one average at the end",
    ),
    "adacomm": Entry(
        f"{ALGORITHMS}.round_rules:AdaComm",
        "synchronisation",
        "1810.08313",
        "rounds that shorten as the loss falls",
    ),
}
