"""One training of a row of the table, kept for the tests of a session: every property is asserted on the same steps."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch

from reference_impls import SimulatedCluster
from tests.reference_impls.problem import LR, Net, advance, names
from tests.reference_impls.table import ROWS, STEPS, Row

SEED = 1
"""Of torch's own generator, on which nothing may depend."""


@dataclass(frozen=True)
class Trajectory:
    """kinds: of each step. parameters: [step][rank][parameter] after it. ledger: summed over steps. cluster: at the end."""

    kinds: tuple[str, ...]
    parameters: tuple[tuple[tuple[torch.Tensor, ...], ...], ...]
    ledger: tuple[dict[str, Any], ...]
    cluster: SimulatedCluster


def build(row: Row, world_size: int, **more: Any) -> SimulatedCluster:
    """The small bucket cuts the model into several buckets."""
    given = {"lr": LR, "seed": 3, "names": names(), "bucket_bytes": 256, **row.options, **more}
    return SimulatedCluster(row.algorithm, list(Net().parameters()), world_size, **given)


def trajectory(row: Row, world_size: int) -> Trajectory:
    """`STEPS` steps of the row."""
    return _trajectory(row.id, world_size)


@functools.cache
def _trajectory(row_id: str, world_size: int) -> Trajectory:
    kinds, parameters = [], []
    with torch.random.fork_rng():
        torch.manual_seed(SEED)
        cluster = build(next(row for row in ROWS if row.id == row_id), world_size)
        for _ in range(STEPS):
            advance(cluster, 1)
            kinds.append(cluster.kind)
            parameters.append(
                tuple(tuple(p.clone() for p in cluster.parameters(r)) for r in range(world_size))
            )
    ledger = tuple(dict(x) for x in cluster.ledger.totals())
    return Trajectory(tuple(kinds), tuple(parameters), ledger, cluster)
