"""The gradients of many workers from one batched call; with one worker it is the same arithmetic, to the bit.

Row r of every tensor belongs to one worker. Rows may belong to different runs and seeds of one workload. A row's
result does not depend on how many rows are computed with it, so a run has the same bits alone, in any group, and on
a real process group. `at_probes` gives the gradients at the points where a method wants them besides its parameters,
of the same samples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.func import grad_and_value, vmap

from reference_impls import SimulatedCluster
from suite.workloads import Task

Shapes = Mapping[str, Sequence[int]]


class BatchedGradients:
    """The gradient function of a workload over rows of workers."""

    def __init__(self, task: Task) -> None:
        self._function = vmap(grad_and_value(task.loss))

    def __call__(
        self, params: Mapping[str, Tensor], batch: Sequence[Tensor]
    ) -> tuple[dict[str, Tensor], Tensor]:
        """Gradients name -> [rows, *shape] and losses [rows] for parameters name -> [rows, *shape].

        batch: tensors [rows, batch, ...].
        """
        gradients, losses = self._function(dict(params), *batch)
        return gradients, losses.detach()


def shapes_of(values: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    """Name -> shape, in order."""
    return {name: tuple(value.shape) for name, value in values.items()}


def split(rows: Tensor, shapes: Shapes) -> dict[str, Tensor]:
    """Views name -> [rows, *shape] of flat rows [rows, elements], in the order of `shapes`."""
    found, start = {}, 0
    for name, shape in shapes.items():
        size = torch.Size(shape).numel()
        found[name] = rows[:, start : start + size].view(-1, *shape)
        start += size
    return found


def flatten(values: Mapping[str, Tensor]) -> Tensor:
    """The parameters as one flat tensor [elements]."""
    return torch.cat([value.reshape(-1) for value in values.values()])


def first_difference(rows: Tensor, shapes: Shapes) -> str | None:
    """Where the flat parameter rows [ranks, elements] are not all the same bits, in words; None when they are."""
    for name, values in split(rows, shapes).items():
        bits = values.reshape(len(rows), -1).view(torch.int32)
        differing = (bits != bits[0]).any(1).nonzero().flatten().tolist()
        if differing:
            return (
                f"at the end ranks 0 and {differing[0]} hold different parameters, first in {name!r}: "
                "the method did not synchronise"
            )
    return None


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
