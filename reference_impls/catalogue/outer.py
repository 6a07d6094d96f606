"""Local steps under an outer optimizer, and what else synchronises progress or momenta instead of gradients."""

from __future__ import annotations

from collections.abc import Mapping

from reference_impls.catalogue.entry import ALGORITHMS, Entry

ENTRIES: Mapping[str, Entry] = {
    "slowmo-sgd": Entry(
        f"{ALGORITHMS}.slowmo:SlowMo",
        "synchronisation",
        "1910.00643",
        "slow momentum on local or gossiping SGD",
        preset={"optimizer": "sgd", "outer": "slowmo"},
    ),
    "slowmo-adamw": Entry(
        f"{ALGORITHMS}.slowmo:SlowMo",
        "synchronisation",
        "1910.00643",
        "slow momentum on local or gossiping AdamW",
        preset={"optimizer": "adamw", "outer": "slowmo"},
    ),
    "bmuf": Entry(
        f"{ALGORITHMS}.bmuf:BMUF",
        "synchronisation",
        "",
        "local steps with block momentum",
        preset={"outer": "bmuf"},
    ),
    "bmuf-nesterov": Entry(
        f"{ALGORITHMS}.bmuf:BMUF",
        "synchronisation",
        "",
        "local steps with Nesterov block momentum",
        preset={"outer": "bmuf-nesterov"},
    ),
    "diloco": Entry(
        f"{ALGORITHMS}.diloco:DiLoCo",
        "synchronisation",
        "2311.08105",
        "local AdamW under an outer Nesterov momentum",
        preset={"optimizer": "adamw"},
    ),
    "diloco-sgd": Entry(
        f"{ALGORITHMS}.diloco:DiLoCo",
        "synchronisation",
        "2311.08105",
        "local SGD under an outer Nesterov momentum",
        preset={"optimizer": "sgd"},
    ),
    "diloco-lion": Entry(
        f"{ALGORITHMS}.diloco:DiLoCo",
        "synchronisation",
        "2311.08105",
        "local Lion under an outer Nesterov momentum",
        preset={"optimizer": "lion"},
    ),
    "streaming-diloco": Entry(
        f"{ALGORITHMS}.streaming_diloco:StreamingDiLoCo",
        "synchronisation",
        "2501.18512",
        "DiLoCo fragment by fragment, in the background",
        preset={"optimizer": "adamw"},
    ),
    "streaming-diloco-sgd": Entry(
        f"{ALGORITHMS}.streaming_diloco:StreamingDiLoCo",
        "synchronisation",
        "2501.18512",
        "Streaming DiLoCo on local SGD",
        preset={"optimizer": "sgd"},
    ),
    "sparseloco": Entry(
        f"{ALGORITHMS}.sparse_loco:SparseLoCo",
        "synchronisation",
        "2508.15706",
        "local AdamW, then a few 2-bit values of the progress",
        preset={"optimizer": "adamw"},
    ),
    "sparseloco-sgd": Entry(
        f"{ALGORITHMS}.sparse_loco:SparseLoCo",
        "synchronisation",
        "2508.15706",
        "local SGD, then a few 2-bit values of the progress",
        preset={"optimizer": "sgd"},
    ),
    "noloco": Entry(
        f"{ALGORITHMS}.noloco:NoLoCo",
        "synchronisation",
        "2506.10911",
        "local AdamW, then outer steps in random pairs",
        preset={"optimizer": "adamw", "outer": "heavy-ball"},
    ),
    "noloco-sgd": Entry(
        f"{ALGORITHMS}.noloco:NoLoCo",
        "synchronisation",
        "2506.10911",
        "local SGD, then outer steps in random pairs",
        preset={"optimizer": "sgd", "outer": "heavy-ball"},
    ),
    "demo": Entry(
        f"{ALGORITHMS}.demo:DeMo",
        "synchronisation",
        "2411.19870",
        "the strongest cosine coefficients of local momenta",
    ),
}
