"""One checkpoint for all ranks, of which another number of ranks takes what all share; parameters averaged for evaluation."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from reference_impls import DataParallelOptimizer, SimulatedCluster
from reference_impls.core.algorithm import Algorithm, StateSpec, per_tensor
from reference_impls.core.errors import LayoutError
from reference_impls.core.registry import Method, create
from reference_impls.runtime.worker import Worker
from tests.reference_impls.problem import LR, Net, batch, gradients, learning_rate, names
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


def _resumed(rank: int, size: int, name: str, consolidated: bool) -> bool:
    model, optimizer = _made(name)
    _train(model, optimizer, rank, 0, 3)
    states: list[Any] = [optimizer.consolidate() if consolidated else optimizer.state_dict()]
    assert not consolidated or (states[0] is None) == (rank != 0)
    torch.distributed.broadcast_object_list(states, src=0)
    whole = _train(model, optimizer, rank, 3, 6)
    optimizer.release()
    model, optimizer = _made(name)
    optimizer.load_state_dict(states[0])
    part = _train(model, optimizer, rank, 3, 6)
    return all(torch.equal(a, b) for a, b in zip(whole, part, strict=True))


@pytest.mark.gloo
@pytest.mark.parametrize(
    ("name", "consolidated"),
    [("allreduce-adamw", False), ("local-sgd", True)],
)
def test_one_checkpoint_resumes_all_ranks(
    name: str, consolidated: bool, ranks: Callable[[int], Ranks]
) -> None:
    assert ranks(2).run(_resumed, name, consolidated) == [True, True]


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
    optimizer.buckets[0].params.zero_()
    assert not weight.any()  # and yet it is the same memory


# ---- in lock-step: another number of ranks, and what a state may be loaded into ------------------------------------------


def _cluster(name: str | Method, size: int, **options: Any) -> SimulatedCluster:
    params = list(Net(torch.float64).parameters())
    return SimulatedCluster(name, params, size, lr=LR, seed=3, names=names(), bucket_bytes=512, **options)


def _advance(members: SimulatedCluster, steps: int) -> SimulatedCluster:
    for step in range(members.steps, members.steps + steps):
        grads = [gradients(members.parameters(r), r, step) for r in range(members.world_size)]
        members.step(grads, lr=learning_rate(step))
    return members


@pytest.mark.parametrize("new", [1, 5])
def test_a_method_that_keeps_nothing_by_rank_goes_on_with_any_number_of_ranks(new: int) -> None:
    """The same gradient on all ranks, so that the mean does not depend on how many there are."""

    def train(members: SimulatedCluster, last: int) -> SimulatedCluster:
        for step in range(members.steps, last):
            members.step([gradients(members.parameters(0), 0, step)] * members.world_size)
        return members

    whole = train(_cluster("allreduce-adamw", 4), 10)
    after = _cluster("allreduce-adamw", new)
    after.load_state_dict(train(_cluster("allreduce-adamw", 4), 5).state_dict())
    train(after, 10)
    for ours, theirs in zip(whole.parameters(0), after.parameters(new - 1), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-14)


@dataclass(frozen=True)
class _BySize(Algorithm):
    """State whose shape is the number of ranks."""

    @property
    def state(self) -> dict[str, StateSpec]:
        return {"table": per_tensor("replicated", lambda view, world: (world.size,))}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("lion-cub-1bit", "rank 0 of 3, this is rank 0 of 2, and every rank has its own state 'momentum'"),
        ("ef-signsgd", "every rank has its own state 'worker_error'"),
        ("local-sgd", "every rank has its own parameters and the local optimizer's state, between rounds"),
        (Method("by-size", _BySize(), {}), r"state 'table' of parameter .*the number of workers"),
    ],
    ids=str,
)
def test_another_number_of_ranks_is_refused_where_ranks_keep_their_own(
    name: str | Method, words: str
) -> None:
    state = _advance(_cluster(name, 3), 2).state_dict()
    other = _cluster(name, 2)
    held = [p.clone() for p in other.parameters(0)]
    with pytest.raises(LayoutError, match=words):
        other.load_state_dict(state)
    assert all(torch.equal(a, b) for a, b in zip(held, other.parameters(0), strict=True))


def test_a_state_that_was_loaded_is_not_trained_on() -> None:
    """Two trainings may begin from one state, also the states of the local optimizer."""
    state = _advance(_cluster("allreduce-adamw", 3), 3).state_dict()
    held = copy.deepcopy(state["workers"][0]["optimizer"]["state"][0])
    resumed = _cluster("allreduce-adamw", 3)
    resumed.load_state_dict(state)
    _advance(resumed, 2)
    now = state["workers"][0]["optimizer"]["state"][0]
    assert all(torch.equal(held[name], now[name]) for name in ("step", "exp_avg", "exp_avg_sq"))


def test_an_exchange_that_was_under_way_is_not_consumed_in_the_state_that_was_loaded() -> None:
    """Streaming DiLoCo uses up the mean progress that it waited for; two trainings from one state are the same."""
    options = {"period": 4, "overlap": 2, "fragments": 2}
    state = next(
        state
        for steps in range(4, 12)
        if any(
            (state := _advance(_cluster("streaming-diloco", 2, **options), steps).state_dict())["workers"][0][
                "pending"
            ]
        )
    )
    ends = []
    for _ in range(2):
        resumed = _cluster("streaming-diloco", 2, **options)
        resumed.load_state_dict(state)
        ends.append(torch.cat([x.reshape(-1) for x in _advance(resumed, 6).parameters(0)]))
    assert torch.equal(*ends)


@pytest.mark.parametrize(("old", "new", "words"), [("sgd", "adamw", "betas"), ("adamw", "sgd", "momentum")])
def test_the_state_of_another_local_optimizer_is_refused_before_anything_changes(
    old: str, new: str, words: str
) -> None:
    """Torch takes it over, and fails in the next step or trains on with what is left."""
    state = _advance(_cluster(f"allreduce-{old}", 2), 2).state_dict()
    other = _cluster(f"allreduce-{new}", 2)
    held = [p.clone() for p in other.parameters(0)]
    with pytest.raises(LayoutError, match=f"no .*{words}.*another local optimizer"):
        other.load_state_dict(state)
    state["workers"][0]["optimizer"]["param_groups"] *= 2
    with pytest.raises(LayoutError, match="2 parameter groups, the model 1"):
        _cluster(f"allreduce-{old}", 2).load_state_dict(state)
    assert all(torch.equal(a, b) for a, b in zip(held, other.parameters(0), strict=True))
