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
    "powersgd": Entry(
        f"{ALGORITHMS}.powersgd:PowerSGD",
        "quantiser",
        "1905.13727",
        "matrices as two thin factors, with error feedback",
    ),
}
