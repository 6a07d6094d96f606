"""Negative controls, which must lose."""

from __future__ import annotations

from collections.abc import Mapping

from reference_impls.catalogue.entry import ALGORITHMS, Entry

ENTRIES: Mapping[str, Entry] = {
    "control-no-communication": Entry(
        f"{ALGORITHMS}.controls:NoCommunication", "control", "", "local training, averaged once at the end"
    ),
    "control-one-worker": Entry(
        f"{ALGORITHMS}.controls:OneWorker", "control", "", "one worker on its 1/n of the data"
    ),
    "control-random-k": Entry(
        f"{ALGORITHMS}.controls:RandomK", "control", "", "a random 1 % of the gradient, no error feedback"
    ),
    "control-one-rank-sign": Entry(
        f"{ALGORITHMS}.controls:OneRankSign", "control", "", "Lion by the sign of one rank"
    ),
}
