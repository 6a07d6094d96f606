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
}
