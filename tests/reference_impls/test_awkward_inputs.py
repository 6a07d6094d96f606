"""Gradients as they should not be: nothing, too little, of odd strides. `test_conformance.py` has those that are not finite."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from reference_impls import SimulatedCluster
from reference_impls.core.errors import LayoutError
from tests.reference_impls.problem import LR, Net, learning_rate, names, observed
from tests.reference_impls.problem import gradients as usual
from tests.reference_impls.table import SOME, Row

# what lies in how drivers read gradients is the same for all methods
FEW = [row for row in SOME if row.id in ("lion-cub-1bit", "powersgd", "diloco")]
some_methods = pytest.mark.parametrize("row", FEW, ids=lambda row: row.id)
Gradients = Callable[[list[Tensor], int, int], list[Tensor | None]]
"""(parameters or a reference point, rank, step) -> the gradient of each parameter."""


def build(row: Row, params: list[Tensor], size: int, **more: Any) -> SimulatedCluster:
    return SimulatedCluster(
        row.algorithm, params, min(size, row.largest), lr=LR, seed=3, **{**row.options, **more}
    )


def step(cluster: SimulatedCluster, gradients: Gradients) -> None:
    """The next step; gradients at reference points are those of the same rank and step there."""
    number, ranks = cluster.steps, range(cluster.world_size)
    cluster.observe(**observed(number))
    reference_points = {
        reference_point: [
            gradients(cluster.reference_parameters(r, reference_point), r, number) for r in ranks
        ]
        for reference_point in cluster.reference_points
    }
    own = [gradients(cluster.parameters(r), r, number) for r in ranks]
    cluster.step(own, lr=learning_rate(number), reference_points=reference_points)


def train(cluster: SimulatedCluster, gradients: Gradients, steps: int = 8) -> None:
    for _ in range(steps):
        step(cluster, gradients)


def _transposed(gradient: Tensor) -> Tensor:
    """The same values, in memory the other way round, with a gap."""
    order = tuple(reversed(range(gradient.dim())))
    wide = torch.full((*gradient.permute(order).shape[:-1], 2 * gradient.shape[0]), float("nan"))
    wide[..., ::2] = gradient.permute(order)
    odd = wide[..., ::2].permute(order)
    assert torch.equal(odd, gradient)
    assert not odd.is_contiguous()
    return odd


def _values(params: list[Tensor], rank: int, number: int) -> list[Tensor | None]:
    draw = torch.Generator().manual_seed(100 * number + rank)
    return [0.1 * p + 0.1 * torch.randn(p.shape, generator=draw) for p in params]


@some_methods
def test_strides_of_gradients_change_nothing(row: Row) -> None:
    start = [torch.linspace(-1, 1, 3 * 4 * 2 * 2).view(3, 4, 2, 2), torch.linspace(0, 1, 20).view(5, 4)]
    odd = [
        lambda params, rank, number: [_transposed(g) for g in _values(params, rank, number)],
        lambda params, rank, number: [
            g.to(memory_format=torch.channels_last) if g.dim() == 4 else g
            for g in _values(params, rank, number)
        ],
    ]
    plain = build(row, start, 3)
    train(plain, _values)
    for gradients in odd:
        cluster = build(row, start, 3)
        train(cluster, gradients)
        for ours, theirs in zip(cluster.parameters(1), plain.parameters(1), strict=True):
            assert torch.equal(ours, theirs)


@some_methods
def test_no_gradient_is_a_gradient_of_zeros(row: Row) -> None:
    def without(params: list[Tensor], rank: int, number: int) -> list[Tensor | None]:
        return [None if i == 1 + rank % 2 else g for i, g in enumerate(usual(params, rank, number))]

    def zeros(params: list[Tensor], rank: int, number: int) -> list[Tensor | None]:
        return [  # the last has none on any rank, and stays (test_unused.py)
            torch.zeros_like(p) if g is None and i < len(params) - 1 else g
            for i, (p, g) in enumerate(zip(params, without(params, rank, number), strict=True))
        ]

    first, second = (
        build(row, list(Net().parameters()), 3, names=names(), bucket_bytes=256) for _ in range(2)
    )
    train(first, without)
    train(second, zeros)
    for ours, theirs in zip(first.parameters(1), second.parameters(1), strict=True):
        assert torch.equal(ours, theirs)


@some_methods
def test_empty_parameters_are_passed_over(row: Row) -> None:
    start = [torch.linspace(-1, 1, 9).view(3, 3), torch.empty(0, 3), torch.ones(2)]
    with_empty = build(row, start, 3, names=["a", "b", "c"])
    plain = build(row, [start[0], start[2]], 3, names=["a", "c"])
    train(with_empty, lambda params, rank, number: [0.1 * p + rank - number for p in params])
    train(plain, lambda params, rank, number: [0.1 * p + rank - number for p in params])
    found = with_empty.parameters(2)
    assert found[1].shape == (0, 3)
    assert torch.equal(found[0], plain.parameters(2)[0])
    assert torch.equal(found[2], plain.parameters(2)[1])


def test_a_gradient_of_no_elements_is_refused_for_a_parameter_that_has_some() -> None:
    cluster = SimulatedCluster("allreduce-sgd", [torch.ones(3)], 2)
    with pytest.raises(LayoutError, match=r"shape \(0,\), the parameter \(3,\)"):
        cluster.step([[torch.empty(0)], [torch.ones(3)]])
