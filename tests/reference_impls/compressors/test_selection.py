"""The largest coordinates: exactly those that the rule names, by every way of finding them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from reference_impls.compressors import sparse
from reference_impls.compressors.sparse import kept, largest, largest_magnitudes, magnitude
from reference_impls.core import compute
from tests.reference_impls.averages import normal
from tests.support import each


def by_definition(order: Tensor, k: int) -> Tensor:
    """Sorted by value, the larger first, equal ones by index; the first k, ascending."""
    first = order.sort(dim=-1, descending=True, stable=True).indices[..., :k]
    return first.sort(-1).values


def uniform(*shape: int, seed: int = 1) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


KINDS: dict[str, Callable[[Tensor], Tensor]] = {
    "normal": lambda x: x,
    "zeros of both signs": lambda x: torch.zeros_like(x) * x.sign(),
    "constant": lambda x: torch.full_like(x, -1.5),
    "few not zero": lambda x: torch.where(uniform(*x.shape) < 0.002, x, 0.0),
    "many ties": lambda x: (2 * x).round(),
    "many NaN": lambda x: torch.where(uniform(*x.shape) < 0.3, math.nan, x),
    "many infinities": lambda x: torch.where(uniform(*x.shape) < 0.5, math.inf, x),
    "large in front": lambda x: x * torch.where(torch.arange(x.shape[-1]) < x.shape[-1] // 50, 1e6, 1.0),
    "one at the end": lambda x: torch.cat([torch.zeros_like(x[..., 1:]), x[..., :1]], -1),
}
SHARES = (0.0001, 0.01, 1 / 64, 0.0157, 0.07, 0.5, 0.999, 1.0)  # about where ways part, and far from there


def test_every_vector_of_four_values_up_to_length_five() -> None:
    for d in range(1, 6):
        order = torch.tensor(list(itertools.product(range(4), repeat=d)), dtype=torch.int32)
        for k in range(1, d + 1):
            expected = by_definition(order, k)
            assert torch.equal(largest(order, k), expected)
            if k < d:
                assert torch.equal(sparse._by_groups(order, -1, k), expected)
                assert torch.equal(sparse._by_keys(order, k), expected)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "shape",
    [
        pytest.param(shape, id=str(shape), marks=() if shape == (65, 1023) else pytest.mark.full)
        for shape in ((65535,), (65536,), (3, 33_001), (65, 1023), (64, 1024))
    ],
)
def test_large_vectors_are_searched_by_the_same_rule(shape: tuple[int, ...], kind: str) -> None:
    """Lengths at both sides of what is compiled, cut into groups, and cut without a rest."""
    x = KINDS[kind](normal(*shape))
    order = magnitude(x)
    for share in SHARES:
        k = kept(share, shape[-1])
        expected = by_definition(order, k)
        assert torch.equal(largest_magnitudes(x, k), expected)
        if share in (1 / 64, 0.07):
            assert torch.equal(largest(order, k), expected)
            assert torch.equal(sparse._by_keys(order, k), expected)
            assert torch.equal(largest(order.long() << 20, k), expected)


def test_the_extremes_of_integers_are_integers_like_any_other() -> None:
    order = torch.zeros(2, 40_000, dtype=torch.int32)
    order[0, ::7], order[1, ::5] = -(1 << 31), (1 << 31) - 1
    for k in (1, 100, 400, 2000, 10_000, 39_999):
        assert torch.equal(largest(order, k), by_definition(order, k))


@each("step", [1, 2])
def test_what_lies_apart_in_memory_is_selected_as_a_copy_is(step: int) -> None:
    x = normal(4, 80_000)[:, 1:70_001:step]
    assert torch.equal(largest_magnitudes(x, 300), by_definition(magnitude(x), 300))
    assert torch.equal(largest_magnitudes(x.T, 2), by_definition(magnitude(x.T), 2))


@pytest.mark.compiled
def test_nothing_is_allocated_in_a_steady_state() -> None:
    inputs = [normal(1_000_003, seed=seed) for seed in range(4)]
    for x in inputs:
        largest_magnitudes(x, 10_000)
    with torch.profiler.profile(profile_memory=True) as profile:
        largest_magnitudes(inputs[0], 10_000)
    assert max(event.cpu_memory_usage for event in profile.events()) < compute.SMALLEST


def test_a_share_keeps_as_many_as_it_says() -> None:
    """Though 0.29 x 100 is a little less than 29 in floats."""
    assert [kept(share, 100) for share in (0.001, 0.29, 0.57, 0.999, 1.0)] == [1, 29, 57, 99, 100]
    assert kept(0.5, 0) == 0
