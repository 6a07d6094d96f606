"""Few coordinates of the gradient, and sketches of it."""

from __future__ import annotations

from collections.abc import Mapping

from reference_impls.catalogue.entry import ALGORITHMS, Entry

ENTRIES: Mapping[str, Entry] = {
    "top-k": Entry(
        f"{ALGORITHMS}.top_k:TopKGradient",
        "sparsifier",
        "1809.10505",
        "each worker's largest coordinates, with error feedback",
    ),
    "random-k": Entry(
        f"{ALGORITHMS}.random_k:RandomKGradient",
        "sparsifier",
        "1809.07599",
        "the same random coordinates on all workers, summed",
    ),
    "gtop-k": Entry(
        f"{ALGORITHMS}.gtop_k:GTopK",
        "sparsifier",
        "1901.04359",
        "the largest coordinates of all workers, merged on a tree",
    ),
    "dgc": Entry(
        f"{ALGORITHMS}.dgc:DGC",
        "sparsifier",
        "1712.01887",
        "top-k of accumulated momentum, with clipping, masking and warm-up",
    ),
    "sketched-sgd": Entry(
        f"{ALGORITHMS}.sketched_sgd:SketchedSGD",
        "sparsifier",
        "1903.04488",
        "heavy coordinates of summed Count-Sketches, exact values in a second round",
    ),
    "sketched-sgd-theory": Entry(
        f"{ALGORITHMS}.sketched_sgd:SketchedSGDTheory",
        "sparsifier",
        "1903.04488",
        "the version of its convergence theorem: HEAVYMIX on lr g + e",
    ),
    "gs-sgd": Entry(
        f"{ALGORITHMS}.gs_sgd:GsSGD",
        "sparsifier",
        "2108.06004",
        "Sketched-SGD summed over a tree (our reading of the abstract)",
    ),
}
