"""The cut of a model into shards: where a run of parameters ends."""

from __future__ import annotations

import pytest
import torch

from reference_impls.layout import canonical, cut


def sizes(elements: list[int], bucket_bytes: int | None, groups: int = 1) -> list[list[int]]:
    """Elements of the fp32 parameters of every shard."""
    share = -(-len(elements) // groups)
    parted = [elements[i * share : (i + 1) * share] for i in range(groups)]
    made = [
        {"params": [torch.zeros(n) for n in own], "param_names": [f"{g}.{i}" for i in range(len(own))]}
        for g, own in enumerate(parted)
    ]
    return [[place.param.numel() for place in run] for run in cut(canonical(made), bucket_bytes)]


@pytest.mark.parametrize(
    ("elements", "shards"),
    [
        ([40, 40, 40, 40], [[40, 40], [40, 40]]),  # 100 elements a bucket
        ([100, 1], [[100], [1]]),
        ([300, 20], [[300], [20]]),
        ([3, 300, 3, 300, 3], [[3, 300], [3, 300], [3]]),  # a bias does not travel alone
        ([7, 300], [[7], [300]]),  # from a sixteenth on it does
        ([3, 3, 300], [[3, 3, 300]]),
        ([4, 4, 300], [[4, 4], [300]]),
    ],
)
def test_a_run_ends_before_it_exceeds_the_bucket_unless_it_is_small(
    elements: list[int], shards: list[list[int]]
) -> None:
    assert sizes(elements, 400) == shards


def test_a_change_of_group_ends_even_a_small_run() -> None:
    assert sizes([3, 300], 400, groups=2) == [[3], [300]]


def test_without_a_bucket_size_there_is_one_shard() -> None:
    assert sizes([3, 300, 70], None) == [[3, 300, 70]]
