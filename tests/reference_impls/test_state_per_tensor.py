"""State of single parameters: of any shape, saved by parameter name, whatever the buckets are."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from reference_impls import SimulatedCluster
from reference_impls.core.algorithm import Algorithm, Bucket, StateSpec, View, per_rank, per_tensor
from reference_impls.core.collectives import Exchange, Group
from reference_impls.core.errors import LayoutError
from reference_impls.core.registry import Method
from tests.reference_impls.problem import LR, Net, gradients, names

SIZE = 3


def _columns(view: View, world: Group) -> tuple[int, ...] | None:
    """Two columns a matrix; other parameters have no such state."""
    return (view.param.shape[1], 2) if view.param.dim() == 2 else None


@dataclass(frozen=True)
class Columns(Algorithm):
    """Steps along the mean gradient plus what each matrix remembers: the mean column, and the rank's own count."""

    defaults = {"momentum": 0.0}  # noqa: RUF012
    one_a_rank: bool = False

    @property
    def state(self) -> Mapping[str, StateSpec]:
        return {
            "columns": per_tensor("replicated", _columns, init=0.5),
            "own": per_tensor("per_rank", lambda view, world: (world.size,)),
            "error": per_rank(),
        }

    def reduce(self, bucket: Bucket) -> Exchange[Tensor]:
        for count in bucket.state["own"].values():
            count[bucket.world.rank] += 1
        bucket.state["error"].add_(bucket.grads)
        mean = yield from bucket.world.mean(bucket.grads, "gradient")
        for view in bucket.views:
            if view.name in bucket.state["columns"]:
                column = mean[view.part].view(view.param.shape).mean(0)
                bucket.state["columns"][view.name].lerp_(column[:, None], 0.1)
        return mean

    def update(self, bucket: Bucket, reduced: Tensor) -> None:
        for view in bucket.views:
            change = reduced[view.part].view(view.param.shape).clone()
            if view.name in bucket.state["columns"]:
                change += bucket.state["columns"][view.name].sum(1)
            change += 0.01 * bucket.state["own"][view.name].sum()
            bucket.params[view.part] -= 0.1 * change.flatten()


def build(bucket_bytes: int = 256, size: int = SIZE) -> SimulatedCluster:
    return SimulatedCluster(
        Method("columns", Columns(), {}),
        list(Net().parameters()),
        size,
        lr=LR,
        names=names(),
        bucket_bytes=bucket_bytes,
    )


def advance(cluster: SimulatedCluster, first: int, last: int) -> None:
    for step in range(first, last):
        cluster.step([gradients(cluster.parameters(r), r, step) for r in range(cluster.world_size)])


def through_a_file(state: dict[str, Any]) -> Any:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("buckets", [(256, 1 << 20), (1 << 20, 128)])
def test_a_checkpoint_goes_on_to_the_bit_under_any_bucket_size(buckets: tuple[int, int]) -> None:
    whole, first = build(buckets[0]), build(buckets[0])
    advance(whole, 0, 8)
    advance(first, 0, 4)
    second = build(buckets[1])
    second.load_state_dict(through_a_file(first.state_dict()))
    advance(second, 4, 8)
    for rank in range(SIZE):
        for a, b in zip(whole.parameters(rank), second.parameters(rank), strict=True):
            assert torch.equal(a, b)
        for slot in ("columns", "own"):
            merged = [{k: v for s in c.state(rank, slot) for k, v in s.items()} for c in (whole, second)]
            assert merged[0].keys() == merged[1].keys()
            assert all(torch.equal(merged[0][k], merged[1][k]) for k in merged[0])
    counts = {k: v for s in second.state(2, "own") for k, v in s.items()}
    assert all(v.tolist() == [0, 0, 8] for v in counts.values())


def _state() -> tuple[SimulatedCluster, dict[str, Any]]:
    cluster = build()
    advance(cluster, 0, 2)
    return cluster, cluster.state_dict()


def _without_a_tensor(slots: dict[str, Any]) -> None:
    del slots["columns"]["tensors"]["second"]


def _another_shape(slots: dict[str, Any]) -> None:
    slots["columns"]["tensors"]["second"] = torch.zeros(13, 3)


def _per_bucket(slots: dict[str, Any]) -> None:
    slots["columns"] = {"kind": "replicated", "entries": []}


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (_without_a_tensor, "'second'"),
        (_another_shape, r"\(13, 3\)"),
        (_per_bucket, "per tensor"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused_and_changes_nothing(spoil: Any, words: str) -> None:
    cluster, state = _state()
    advance(cluster, 2, 4)
    before = through_a_file(cluster.state_dict())["workers"][0]
    spoil(state["workers"][0]["slots"])
    with pytest.raises(LayoutError, match=words):
        cluster.load_state_dict(state)
    after = cluster.state_dict()["workers"][0]
    assert after["step"] == before["step"] == 4
    assert all(torch.equal(x, before["parameters"][n]) for n, x in after["parameters"].items())
    for slot in ("columns", "own"):
        for name, x in after["slots"][slot]["tensors"].items():
            assert torch.equal(x, before["slots"][slot]["tensors"][name])
