"""What everything is compared with: uncompressed means of the gradient."""

from __future__ import annotations

from collections.abc import Mapping

from reference_impls.catalogue.entry import ALGORITHMS, Entry

ENTRIES: Mapping[str, Entry] = {
    "allreduce": Entry(
        f"{ALGORITHMS}.all_reduce:AllReduce",
        "baseline",
        "",
        "fp32 all-reduce of the gradient, any local optimizer",
    ),
    "allreduce-sgd": Entry(
        f"{ALGORITHMS}.all_reduce:AllReduce",
        "baseline",
        "",
        "fp32 all-reduce of the gradient, SGD",
        preset={"optimizer": "sgd"},
    ),
    "allreduce-adamw": Entry(
        f"{ALGORITHMS}.all_reduce:AllReduce",
        "baseline",
        "",
        "fp32 all-reduce of the gradient, AdamW",
        preset={"optimizer": "adamw"},
    ),
    "allreduce-lion": Entry(
        f"{ALGORITHMS}.all_reduce:AllReduce",
        "baseline",
        "2302.06675",
        "fp32 all-reduce of the gradient, Lion",
        preset={"optimizer": "lion"},
    ),
}
