"""gs-SGD, our reading: Sketched-SGD whose sums run over a tree, without a server. arXiv 2108.06004 (abstract only).

The abstract says that gradients are put into Count-Sketches and exchanged in a decentralised way with communication
O(log d log P) for P workers. Read here as: the worker's and the selection rule of Sketched-SGD (`algorithms.sketched_sgd`), and
both rounds summed pair by pair in ceil(log2 n) rounds (`reducers.folds`) instead of a parameter server or an all-reduce.

Differences: everything but the abstract is our reading, never the paper's: its algorithm, k, rows and columns were not to be
had, and no code was found. ``form="doubling"`` sends log2 n times the table from every worker, ``tree`` (to rank 0 and back)
less than twice on average and ceil(log2 n) times from rank 0. Pairwise sums have the same bits on every backend.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from reference_impls.algorithm import Shard, option
from reference_impls.algorithms.sketched_sgd import SketchedSGD
from reference_impls.collectives import Exchange
from reference_impls.reducers import folds
from reference_impls.reducers.folds import Fold


@dataclass(frozen=True)
class GsSGD(SketchedSGD):
    """Sketched-SGD whose two means are taken over a tree: the composition of its phases and `reducers.folds`."""

    form: Fold = option(
        "doubling", "doubling (log2 n messages from every worker) or tree (to rank 0 and back)"
    )

    def mean(self, shard: Shard, x: Tensor, stage: str) -> Exchange[Tensor]:
        total = yield from folds.fold(shard.world, x, lambda a, b, accounts: a + b, stage, self.form)
        return total / shard.world.size
