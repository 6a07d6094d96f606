"""BMUF: blockwise model-update filtering, a momentum on the progress of whole rounds. Chen & Huo, ICASSP 2016.

After each round of `period` local steps: D = mean progress, u <- b u + a D, A <- A - u with b = `outer_momentum` (block
momentum) and a = `outer_lr` (block learning rate); with Nesterov block momentum the next round begins at the look-ahead
point A - u - b u, which becomes the anchor. b = 0 and a = 1 is local SGD.

Differences: the paper could not be read; fairseq's code was. That code lets workers train apart for the first 500
updates, then takes rank 0's model, throws the others' work away and resets the optimizers; here the first round is like
all others. Inner states stay local unless `inner_state` says otherwise, as there. Buffers are not touched.
"""

from __future__ import annotations

from dataclasses import dataclass

from reference_impls.algorithm import option
from reference_impls.algorithms.local_updates import PeriodicAveraging
from reference_impls.optimizers.outer import OuterKind


@dataclass(frozen=True)
class BMUF(PeriodicAveraging):
    """Local updates with block momentum."""

    period: int = option(50, "local steps in a round, at least 1", ge=1)
    outer: OuterKind = option("bmuf", "bmuf (classic block momentum) or bmuf-nesterov")
    outer_momentum: float = option(0.875, "block momentum", ge=0, lt=1)
