"""The gradient in few bits a coordinate."""

from __future__ import annotations

from collections.abc import Mapping

from reference_impls.catalogue.entry import ALGORITHMS, Entry

ENTRIES: Mapping[str, Entry] = {
    "global-qsgd": Entry(
        f"{ALGORITHMS}.global_qsgd:GlobalQSGD",
        "quantiser",
        "2305.18627",
        "unbiased codes on one global scale, summed as integers",
    ),
}
