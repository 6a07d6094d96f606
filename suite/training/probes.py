"""Gradients at the points where a method wants them besides its parameters, of the same samples, in one batched call."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from reference_impls import SimulatedCluster
from suite.training.gradients import BatchedGradients

AtProbes = dict[str, list[list[Tensor]]]
"""Probe -> [rank][parameter], as `SimulatedCluster.step` takes it."""


def at_probes(
    clusters: Sequence[SimulatedCluster | None],
    gradients: BatchedGradients,
    names: Sequence[str],
    batch: Sequence[Tensor],
) -> list[AtProbes]:
    """For each cluster what its next step wants; nothing for None.

    names: of the parameters, in the clusters' order. batch: tensors with the rows of all clusters one after the other,
    as the gradients of their parameters were computed from.
    """
    found: list[AtProbes] = [{} for _ in clusters]
    wanted = [(i, own, probe) for i, own in enumerate(clusters) if own is not None for probe in own.probes]
    if not wanted:
        return found
    n = wanted[0][1].world_size
    points = [own.probe_parameters(rank, probe) for _, own, probe in wanted for rank in range(n)]
    rows = {name: torch.stack(values) for name, values in zip(names, zip(*points, strict=True), strict=True)}
    samples = [torch.cat([part[i * n : (i + 1) * n] for i, _, _ in wanted]) for part in batch]
    there, _ = gradients(rows, samples)
    for j, (i, _, probe) in enumerate(wanted):
        found[i][probe] = [[there[name][j * n + rank] for name in names] for rank in range(n)]
    return found
