"""One checkpoint for all ranks, and parameters averaged for evaluation between rounds; on real processes."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from reference_impls import DataParallelOptimizer, SimulatedCluster
from reference_impls.drivers.worker import Worker
from reference_impls.errors import LayoutError
from reference_impls.registry import create
from tests.reference_impls.problem import LR, Net, batch
from tests.reference_impls.ranks import Ranks


def _made(name: str) -> tuple[Net, DataParallelOptimizer]:
    model = Net()
    return model, DataParallelOptimizer(model.named_parameters(), name, lr=LR, seed=3, bucket_bytes=256)


def _train(model: Net, optimizer: DataParallelOptimizer, rank: int, first: int, last: int) -> list[Tensor]:
    for step in range(first, last):
        optimizer.zero_grad()
        x, y = batch(rank, step)
        (model(x) - y).square().mean().backward()
        optimizer.step()
    return [p.detach().clone() for p in model.parameters()]


def _resumed(rank: int, size: int, name: str, consolidated: bool, go_on: bool = True) -> Any:
    model, optimizer = _made(name)
    _train(model, optimizer, rank, 0, 3)
    states: list[Any] = [optimizer.consolidate() if consolidated else optimizer.state_dict()]
    assert not consolidated or (states[0] is None) == (rank != 0)
    torch.distributed.broadcast_object_list(states, src=0)
    whole = _train(model, optimizer, rank, 3, 6)
    optimizer.release()
    model, optimizer = _made(name)
    try:
        optimizer.load_state_dict(states[0])
    except LayoutError as error:
        return str(error)
    if not go_on:  # the others may have been refused
        return True
    part = _train(model, optimizer, rank, 3, 6)
    return all(torch.equal(a, b) for a, b in zip(whole, part, strict=True))


@pytest.mark.gloo
@pytest.mark.parametrize(
    ("name", "consolidated"),
    [("allreduce-adamw", False), ("lion-cub-1bit", True), ("local-sgd", True)],
)
def test_one_checkpoint_resumes_all_ranks(
    name: str, consolidated: bool, ranks: Callable[[int], Ranks]
) -> None:
    assert ranks(2).run(_resumed, name, consolidated) == [True, True]


@pytest.mark.gloo
@pytest.mark.parametrize(
    ("name", "what"), [("lion-cub-1bit", "slot 'momentum'"), ("local-sgd", "parameters")]
)
def test_rank_0_s_alone_is_refused_where_ranks_keep_their_own(
    name: str, what: str, ranks: Callable[[int], Ranks]
) -> None:
    first, second = ranks(2).run(_resumed, name, False, False)
    assert first is True
    assert f"every rank has its own {what}" in second
    assert "consolidate()" in second


def _averaged(rank: int, size: int) -> list[Any]:
    model, optimizer = _made("local-sgd")
    before = _train(model, optimizer, rank, 0, 3)
    with optimizer.averaged():
        inside = [p.detach().clone() for p in model.parameters()]
    return [before, inside, [p.detach().clone() for p in model.parameters()]]


@pytest.mark.gloo
def test_parameters_are_averaged_inside_and_their_own_again_after(ranks: Callable[[int], Ranks]) -> None:
    found = ranks(2).run(_averaged)
    assert not torch.equal(found[0][0][0], found[1][0][0])
    for i in range(len(found[0][0])):
        mean = (found[0][0][i] + found[1][0][i]) / 2
        for before, inside, after in found:
            assert torch.equal(inside[i], mean)
            assert torch.equal(after[i], before[i])


def test_a_cluster_s_average() -> None:
    cluster = SimulatedCluster("local-sgd", [torch.zeros(2)], 2, lr=1.0)
    cluster.step([[torch.tensor([1.0, 0.0])], [torch.tensor([0.0, 3.0])]])
    assert torch.equal(cluster.averaged()[0], torch.tensor([-0.5, -1.5]))


def test_saving_one_weight_writes_that_weight_alone() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 3))
    optimizer = Worker(
        create("allreduce-sgd").algorithm,
        [
            {
                "params": list(model.parameters()),
                "param_names": list("abcd"),
                **create("allreduce-sgd").group(lr=0.1),
            }
        ],
        rank=0,
        size=1,
    )
    weight, file = model[1].weight, io.BytesIO()
    torch.save(weight, file)
    assert len(file.getvalue()) < 3000  # 768 bytes of numbers; the flat buffer has 17,000
    optimizer.shards[0].params.zero_()
    assert not weight.any()  # and yet it is the same memory


def _saves_between_rounds(rank: int, size: int) -> list[bool]:
    model = Net()
    optimizer = DataParallelOptimizer(model, "local-sgd", lr=LR, period=2)
    warned = []
    for step in range(2):
        _train(model, optimizer, rank, step, step + 1)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model.state_dict()
        warned.append(any("averaged()" in str(w.message) for w in caught))
        with warnings.catch_warnings(), optimizer.averaged():
            warnings.simplefilter("error")
            model.state_dict()
    return warned


@pytest.mark.gloo
def test_a_replica_is_not_saved_between_rounds_without_a_word(ranks: Callable[[int], Ranks]) -> None:
    assert ranks(2).run(_saves_between_rounds) == [[True, False]] * 2
