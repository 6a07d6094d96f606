"""What a state holds, by parameter name, whatever the buckets are, and what it may be loaded into; no files."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from reference_impls import DataParallelOptimizer, SimulatedCluster
from reference_impls.core.algorithm import Algorithm, Bucket, StateSpec, View, per_rank, per_tensor
from reference_impls.core.collectives import Exchange, Group
from reference_impls.core.errors import LayoutError
from reference_impls.core.registry import Method
from reference_impls.frontends.attached import attach
from tests.reference_impls.frontends import enter, run, values
from tests.reference_impls.gloo import Ranks, told
from tests.reference_impls.problem import LR, Net, gradients, learning_rate, names
from tests.reference_impls.states import equal, through_a_file

# ---- state of single parameters ------------------------------------------------------------------------------------------


def _columns(view: View, world: Group) -> tuple[int, ...] | None:
    """Two columns a matrix; other parameters have no such state."""
    return (view.param.shape[1], 2) if view.param.dim() == 2 else None


@dataclass(frozen=True)
class Columns(Algorithm):
    """Steps along the mean gradient plus what each matrix remembers: the mean column, and the rank's own count."""

    defaults = {"momentum": 0.0}  # noqa: RUF012

    @property
    def state(self) -> Mapping[str, StateSpec]:
        return {
            "columns": per_tensor("replicated", _columns, init=0.5),
            "own": per_tensor("per_rank", lambda view, world: (3,)),
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


COLUMNS = Method("columns", Columns(), {})


@dataclass(frozen=True)
class _BySize(Algorithm):
    """State whose shape is the number of ranks."""

    @property
    def state(self) -> dict[str, StateSpec]:
        return {"table": per_tensor("replicated", lambda view, world: (world.size,))}

    def update(self, bucket: Bucket, reduced: Tensor) -> None:
        """Nothing is trained here."""


def _cluster(name: str | Method, size: int, bucket_bytes: int = 512, **options: Any) -> SimulatedCluster:
    params = list(Net(torch.float64).parameters())
    return SimulatedCluster(
        name, params, size, lr=LR, seed=3, names=names(), bucket_bytes=bucket_bytes, **options
    )


def _advance(members: SimulatedCluster, steps: int) -> SimulatedCluster:
    for step in range(members.steps, members.steps + steps):
        grads = [gradients(members.parameters(r), r, step) for r in range(members.world_size)]
        members.step(grads, lr=learning_rate(step))
    return members


@pytest.mark.parametrize("buckets", [(256, 1 << 20), (1 << 20, 128)])
def test_a_checkpoint_goes_on_to_the_bit_under_any_bucket_size(buckets: tuple[int, int]) -> None:
    whole, second = (_cluster(COLUMNS, 3, bucket_bytes) for bucket_bytes in buckets)
    _advance(whole, 4)
    second.load_state_dict(through_a_file(whole.state_dict()))
    for cluster in (whole, second):
        _advance(cluster, 4)
    for rank in range(3):
        assert equal(whole.parameters(rank), second.parameters(rank))
        for slot in ("columns", "own"):
            merged = [{k: v for s in c.state(rank, slot) for k, v in s.items()} for c in (whole, second)]
            assert equal(*merged)
    counts = {k: v for s in second.state(2, "own") for k, v in s.items()}
    assert all(v.tolist() == [0, 0, 8] for v in counts.values())


# ---- what a state may be loaded into ---------------------------------------------------------------------------------------

SPOILT: dict[str, Callable[[dict[str, Any]], Any]] = {
    "'second'": lambda slots: slots["columns"]["tensors"].pop("second"),
    r"\(13, 3\)": lambda slots: slots["columns"]["tensors"].update(second=torch.zeros(13, 3)),
    "per tensor": lambda slots: slots.update(columns={"kind": "replicated", "entries": []}),
}


@pytest.mark.parametrize("words", SPOILT)
def test_a_checkpoint_that_does_not_fit_is_refused_and_changes_nothing(words: str) -> None:
    cluster = _advance(_cluster(COLUMNS, 3), 2)
    state = through_a_file(cluster.state_dict())
    before = through_a_file(_advance(cluster, 2).state_dict())["workers"][0]
    SPOILT[words](state["workers"][0]["slots"])
    with pytest.raises(LayoutError, match=words):
        cluster.load_state_dict(state)
    after = cluster.state_dict()["workers"][0]
    assert after["step"] == 4
    assert equal(after, before)


@pytest.mark.parametrize(
    ("name", "other", "size", "words"),
    [
        (
            "lion-cub-1bit",
            "",
            2,
            "rank 0 of 3, this is rank 0 of 2, and every rank has its own state 'momentum'",
        ),
        ("ef-signsgd", "", 2, "every rank has its own state 'worker_error'"),
        (
            "local-sgd",
            "",
            2,
            "every rank has its own parameters and the local optimizer's state, between rounds",
        ),
        (Method("by-size", _BySize(), {}), "", 2, r"state 'table' of parameter .*the number of workers"),
        ("allreduce-sgd", "allreduce-adamw", 3, "no .*betas.*another local optimizer"),
        ("allreduce-adamw", "allreduce-sgd", 3, "no .*momentum.*another local optimizer"),
        ("allreduce-adamw", "allreduce-lion", 3, "of the local optimizer AdamW, this is Lion"),
        ("allreduce", "top-k", 3, "the method has"),
        (
            "slowmo-adamw",
            "diloco",
            3,
            r"of the method SlowMo\(outer='slowmo'\), this is DiLoCo\(outer='nesterov'\)",
        ),
    ],
    ids=str,
)
def test_the_state_of_other_ranks_or_another_optimizer_is_refused(name, other, size, words):
    state = _advance(_cluster(name, 3), 2).state_dict()
    into = _cluster(other or name, size)
    held = [p.clone() for p in into.parameters(0)]
    with pytest.raises(LayoutError, match=words):
        into.load_state_dict(state)
    assert equal(held, into.parameters(0))
    if other:
        state["workers"][0]["optimizer"]["param_groups"] *= 2
        with pytest.raises(LayoutError, match="2 parameter groups, the model 1"):
            _cluster(name, 3).load_state_dict(state)


def test_an_exchange_under_way_is_of_the_buckets_that_it_was_begun_with() -> None:
    def made(bucket_bytes: int) -> SimulatedCluster:
        starts = [torch.zeros(8) for _ in range(3)]
        options = {
            "fragments": 3,
            "period": 6,
            "overlap": 1,
            "outer": "sgd",
            "outer_momentum": 0.0,
            "mixing": 0.0,
        }
        return SimulatedCluster(
            "streaming-diloco", starts, 2, names=list("abc"), bucket_bytes=bucket_bytes, lr=0.1, **options
        )

    saved = made(32)
    for _ in range(4):
        saved.step([[torch.ones(8), torch.ones(8), torch.ones(8)]] * 2)
    states = saved.state_dict()
    made(32).load_state_dict(states)
    with pytest.raises(LayoutError, match="under way"):
        made(1 << 20).load_state_dict(states)


@pytest.mark.parametrize("new", [1, 5])
def test_a_method_that_keeps_nothing_by_rank_goes_on_with_any_number_of_ranks(new: int) -> None:
    """The same gradient on all ranks, so that the mean does not depend on how many there are."""
    whole, after = _cluster("allreduce-adamw", 4), _cluster("allreduce-adamw", new)
    for step in range(10):
        if step == 5:
            after.load_state_dict(whole.state_dict())
        for members in (whole, after)[: 1 + (step >= 5)]:
            members.step([gradients(members.parameters(0), 0, step)] * members.world_size)
    for ours, theirs in zip(whole.parameters(0), after.parameters(new - 1), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-14)


def test_a_state_that_was_loaded_is_not_trained_on() -> None:
    """Two trainings may begin from one state: neither the local optimizer's is changed, nor an exchange under way used up."""
    options = {"period": 4, "overlap": 2, "fragments": 2}
    cluster = _cluster("streaming-diloco", 2, **options)
    while not any(cluster.state_dict()["workers"][0]["pending"]):
        _advance(cluster, 1)
    state = cluster.state_dict()
    held, ends = copy.deepcopy(state["workers"][0]["optimizer"]["state"][0]), []
    for _ in range(2):
        resumed = _cluster("streaming-diloco", 2, **options)
        resumed.load_state_dict(state)
        ends.append(_advance(resumed, 6).parameters(0))
    assert equal(*ends)
    now = state["workers"][0]["optimizer"]["state"][0]
    assert all(torch.equal(held[name], now[name]) for name in ("step", "exp_avg", "exp_avg_sq"))


BACKGROUND = {"period": 6, "overlap": 4, "fragments": 2, "carrier": "sign"}
"""Rounds of several collectives, which write into the error of the workers, and take some steps."""


def test_what_runs_in_the_background_is_forgotten_where_a_state_is_loaded() -> None:
    cluster, other = (_cluster("streaming-diloco", 2, **BACKGROUND) for _ in range(2))
    state = _advance(cluster, 2).state_dict()
    _advance(cluster, 1)
    assert cluster._local_workers.engine.under_way
    for members in (cluster, other):
        members.load_state_dict(state)
        _advance(members, 12)
    assert equal(cluster.state_dict(), other.state_dict())


def _loaded_over_the_background(rank: int, size: int) -> Any:
    own, other = (enter("DataParallelOptimizer", "streaming-diloco", BACKGROUND, size) for _ in range(2))
    run(own, rank, 0, 2)
    state = own.state.state_dict()
    run(own, rank, 2, 3)
    under_way = own.state._local_workers.engine.under_way
    ends = []
    for one in (own, other):
        one.state.load_state_dict(state)
        run(one, rank, 2, 14)
        ends.append(one.state.state_dict())
    return under_way, equal(*ends)


@pytest.mark.gloo
def test_what_runs_in_the_background_of_processes_is_forgotten_too(ranks: Callable[[int], Ranks]) -> None:
    assert ranks(2).run(_loaded_over_the_background) == [(True, True)] * 2


# ---- on processes ------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("one_rank")
@pytest.mark.gloo
def test_saving_one_weight_writes_that_weight_alone() -> None:
    model, file = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 3)), io.BytesIO()
    optimizer = DataParallelOptimizer(model, "allreduce-sgd")
    weight = model[1].weight
    torch.save(weight, file)
    assert len(file.getvalue()) < 3000  # 768 bytes of numbers; the flat buffer has 17,000
    optimizer._worker.buckets[0].params.zero_()
    assert not weight.any()  # and yet it is the same memory


@pytest.mark.usefixtures("one_rank")
@pytest.mark.gloo
def test_moments_are_not_loaded_into_other_parameters() -> None:
    """They go by their order, which ``attach`` takes from an optimizer that may know no names."""

    def made(
        attached: bool, order: Sequence[int], first: int
    ) -> tuple[torch.nn.Module, DataParallelOptimizer]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(3)))
        pairs = list(model.named_parameters())
        own = [pairs[i] for i in order]
        if not attached:
            groups = [{"params": own[:first]}, {"params": own[first:]}]
            return model, DataParallelOptimizer(groups, "allreduce-adamw", lr=0.1)
        bare = [{"params": [p for _, p in part]} for part in (own[:first], own[first:])]
        return model, attach(torch.optim.AdamW(bare, lr=0.1), model, "allreduce")

    def stepped(model: torch.nn.Module, optimizer: DataParallelOptimizer) -> list[Tensor]:
        model(torch.ones(2, 4)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        return [p.detach().clone() for p in model.parameters()]

    for attached in (False, True):
        model, optimizer = made(attached, range(6), 2)
        stepped(model, optimizer)
        state = through_a_file(optimizer.state_dict())
        after = stepped(model, optimizer)
        for order, first, words in (
            (
                (2, 1, 0, 3, 4, 5),
                2,
                "group 0 has '0.weight' in the checkpoint where the optimizer has '1.weight'",
            ),
            (range(6), 3, "group 0 has 2 parameters in the checkpoint, 3 in the optimizer"),
            (range(6), 2, ""),
        ):
            other, into = made(attached, order, first)
            held = values(other)
            if words:
                with pytest.raises(LayoutError, match=words):
                    into.load_state_dict(state)
                assert equal(held, values(other))
            else:
                into.load_state_dict(state)
                assert equal(stepped(other, into), after)
            into.release()
        optimizer.release()


def _averaged(rank: int, size: int) -> Any:
    own = enter("DataParallelOptimizer", "local-sgd", {"period": 4}, size)
    before = run(own, rank, 0, 3)
    saved = own.state.state_dict()
    with own.state.averaged():
        inside = values(own.model)
        refused = [told(own.steps.step), told(own.state.state_dict), told(own.state.consolidate)]
        refused.append(told(lambda: own.state.load_state_dict(saved)))
    return before, inside, values(own.model), refused


@pytest.mark.gloo
def test_parameters_are_averaged_inside_and_their_own_again_after(ranks: Callable[[int], Ranks]) -> None:
    found = ranks(2).run(_averaged)
    first, second = (before for before, *_ in found)
    assert not equal(first, second)
    for before, inside, after, refused in found:
        step, *states = refused
        assert "take steps outside of the block" in step
        assert all("save and load the optimizer's state outside of the block" in one for one in states)
        assert equal(inside, [(a + b) / 2 for a, b in zip(first, second, strict=True)])
        assert equal(after, before)
