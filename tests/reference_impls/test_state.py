"""What a state holds, by parameter name, whatever the buckets are, and what it may be loaded into; no files."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from reference_impls import DataParallelOptimizer, SimulatedCluster
from reference_impls.core.algorithm import Algorithm, Bucket, StateSpec, per_tensor
from reference_impls.core.errors import LayoutError
from reference_impls.core.registry import Method
from reference_impls.frontends.attached import attach
from tests.reference_impls.averages import normals
from tests.reference_impls.frontends import enter, run, values
from tests.reference_impls.gloo import Ranks, told
from tests.reference_impls.problem import LR, Net, advance, gradients, names
from tests.reference_impls.states import equal, through_a_file


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


BY_TENSOR = {"rank": 2, "min_compression_rate": 0.5}
"""PowerSGD's state is by tensor: what all ranks share, and what is each rank's own."""
ALIGNED = [torch.linspace(-1, 1, 64).view(8, 8), torch.linspace(0, 1, 128).view(16, 8), torch.ones(11)]
"""Matrices that lie at multiples of 64 bytes: elsewhere some CPUs' products differ in the last bit."""


def _by_tensor(bucket_bytes: int = 1 << 20) -> SimulatedCluster:
    return SimulatedCluster(
        "powersgd", ALIGNED, 3, lr=LR, names=list("abc"), bucket_bytes=bucket_bytes, **BY_TENSOR
    )


def _drawn(params: list[Tensor], rank: int, step: int) -> list[Tensor | None]:
    return normals([p.shape for p in params], 100 * step + rank)


@pytest.mark.parametrize("buckets", [(256, 1 << 20), (1 << 20, 64)])
def test_a_checkpoint_goes_on_to_the_bit_under_any_bucket_size(buckets: tuple[int, int]) -> None:
    whole, second = map(_by_tensor, buckets)
    advance(whole, 4, _drawn)
    second.load_state_dict(through_a_file(whole.state_dict()))
    for cluster in (whole, second):
        advance(cluster, 4, _drawn)
    for rank in range(3):
        assert equal(whole.parameters(rank), second.parameters(rank))
        for slot in ("q", "error"):
            merged = [{k: v for s in c.state(rank, slot) for k, v in s.items()} for c in (whole, second)]
            assert equal(*merged)


# ---- what a state may be loaded into ---------------------------------------------------------------------------------------

SPOILT: dict[str, Callable[[dict[str, Any]], Any]] = {
    "'b'": lambda slots: slots["q"]["tensors"].pop("b"),
    r"\(13, 3\)": lambda slots: slots["q"]["tensors"].update(b=torch.zeros(13, 3)),
    "per tensor": lambda slots: slots.update(q={"kind": "replicated", "entries": []}),
}


@pytest.mark.parametrize("words", SPOILT)
def test_a_checkpoint_that_does_not_fit_is_refused_and_changes_nothing(words: str) -> None:
    cluster = advance(_by_tensor(), 2, _drawn)
    state = through_a_file(cluster.state_dict())
    before = through_a_file(advance(cluster, 2, _drawn).state_dict())["workers"][0]
    SPOILT[words](state["workers"][0]["slots"])
    with pytest.raises(LayoutError, match=words):
        cluster.load_state_dict(state)
    after = cluster.state_dict()["workers"][0]
    assert after["step"] == 4
    assert equal(after, before)


@pytest.mark.parametrize(
    ("name", "other", "size", "words"),
    [
        ("lion-cub-1bit", "", 2, "rank 0 of 3, this is rank 0 of 2, .* its own state 'momentum'"),
        ("local-sgd", "", 2, "its own parameters and the local optimizer's state, between rounds"),
        (Method("by-size", _BySize(), {}), "", 2, r"state 'table' of parameter .*the number of workers"),
        ("allreduce-sgd", "allreduce-adamw", 3, "no .*betas.*another local optimizer"),
        ("allreduce-adamw", "allreduce-sgd", 3, "no .*momentum.*another local optimizer"),
        ("allreduce-adamw", "allreduce-lion", 3, "of the local optimizer AdamW, this is Lion"),
        ("allreduce", "top-k", 3, "the method has"),
        ("slowmo-adamw", "diloco", 3, r"SlowMo\(outer='slowmo'\), this is DiLoCo\(outer='nesterov'\)"),
    ],
    ids=str,
)
def test_the_state_of_other_ranks_or_another_optimizer_is_refused(name, other, size, words):
    state = advance(_cluster(name, 3), 2).state_dict()
    into = _cluster(other or name, size)
    held = [p.clone() for p in into.parameters(0)]
    with pytest.raises(LayoutError, match=words):
        into.load_state_dict(state)
    assert equal(held, into.parameters(0))
    if other:
        state["workers"][0]["optimizer"]["param_groups"] *= 2
        with pytest.raises(LayoutError, match="2 parameter groups, the model 1"):
            _cluster(name, 3).load_state_dict(state)


LATE = {"fragments": 2, "period": 4, "overlap": 2}


def _under_way() -> Any:
    """The state of a training that an exchange is under way in."""
    cluster = _cluster("streaming-diloco", 2, **LATE)
    while not any((state := cluster.state_dict())["workers"][0]["pending"]):
        advance(cluster, 1)
    return state


def test_an_exchange_under_way_is_of_the_buckets_that_it_was_begun_with() -> None:
    state = _under_way()
    _cluster("streaming-diloco", 2, **LATE).load_state_dict(state)
    with pytest.raises(LayoutError, match="under way"):
        _cluster("streaming-diloco", 2, bucket_bytes=1 << 20, **LATE).load_state_dict(state)


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
    state = _under_way()
    held, ends = copy.deepcopy(state["workers"][0]["optimizer"]["state"][0]), []
    for _ in range(2):
        resumed = _cluster("streaming-diloco", 2, **LATE)
        resumed.load_state_dict(state)
        ends.append(advance(resumed, 6).parameters(0))
    assert equal(*ends)
    now = state["workers"][0]["optimizer"]["state"][0]
    assert all(torch.equal(held[name], now[name]) for name in ("step", "exp_avg", "exp_avg_sq"))


BACKGROUND = {"period": 6, "overlap": 4, "fragments": 2, "carrier": "sign"}
"""Rounds of several collectives, which write into the error of the workers, and take some steps."""


def test_what_runs_in_the_background_is_forgotten_where_a_state_is_loaded() -> None:
    cluster, other = (_cluster("streaming-diloco", 2, **BACKGROUND) for _ in range(2))
    state = advance(cluster, 2).state_dict()
    advance(cluster, 1)
    assert cluster._local_workers.engine.under_way
    for members in (cluster, other):
        members.load_state_dict(state)
        advance(members, 12)
    assert equal(cluster.state_dict(), other.state_dict())


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
            ((2, 1, 0, 3, 4, 5), 2, "has '0.weight' in the checkpoint where the optimizer has '1.weight'"),
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
