"""Better gradients instead of smaller messages."""

from __future__ import annotations

from collections.abc import Mapping

from reference_impls.catalogue.entry import ALGORITHMS, Entry

ENTRIES: Mapping[str, Entry] = {
    "root-sgd": Entry(
        f"{ALGORITHMS}.root_sgd:RootSGD",
        "variance-reduction",
        "2008.12690",
        "running mean of gradients that follows the parameters, with two gradients a step",
    ),
}
