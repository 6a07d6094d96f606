"""Adam and LAMB with a compressed momentum."""

from __future__ import annotations

from collections.abc import Mapping

from reference_impls.catalogue.entry import ALGORITHMS, Entry

ENTRIES: Mapping[str, Entry] = {
    "apmsqueeze": Entry(
        f"{ALGORITHMS}.apmsqueeze:APMSqueeze",
        "adam",
        "2008.11343",
        "Adam, then a frozen variance and error-compensated 1-bit momentum",
    ),
}
