"""A training that goes on with another number of workers: what is kept, what is refused, and what folding preserves."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from reference_impls import DataParallelOptimizer, SimulatedCluster
from reference_impls.algorithm import Algorithm, Shard, Slot, per_rank, per_tensor
from reference_impls.errors import LayoutError, UnsupportedError
from reference_impls.registry import Method
from tests.reference_impls.problem import LR, Net, batch, gradients, learning_rate, names
from tests.reference_impls.ranks import Ranks

APM: dict[str, Any] = {"warmup_steps": 3, "weight_decay": 0.1}


def cluster(name: str | Method, size: int, **options: Any) -> SimulatedCluster:
    """In double precision, in several buckets."""
    params = list(Net(torch.float64).parameters())
    return SimulatedCluster(name, params, size, lr=LR, seed=3, names=names(), bucket_bytes=512, **options)


def advance(members: SimulatedCluster, steps: int) -> SimulatedCluster:
    for step in range(members.steps, members.steps + steps):
        grads = [gradients(members.parameters(r), r, step) for r in range(members.world_size)]
        members.step(grads, lr=learning_rate(step))
    return members


def vector(parts: list[Tensor]) -> Tensor:
    return torch.cat([part.reshape(-1) for part in parts])


def slot(members: SimulatedCluster, name: str) -> Tensor:
    """[n, d]: a whole-shard slot of every rank."""
    return torch.stack([vector(members.state(r, name)) for r in range(members.world_size)])


def owned(members: SimulatedCluster, name: str) -> Tensor:
    """[d]: the pieces of an owned slot, put together shard by shard."""
    shards = range(len(members.state(0, name)))
    return torch.cat([members.state(r, name)[i] for i in shards for r in range(members.world_size)])


@pytest.mark.parametrize(("old", "new"), [(4, 2), (4, 3), (2, 5), (3, 1), (1, 3)])
def test_folding_keeps_what_error_feedback_still_owes(old: int, new: int) -> None:
    """APMSqueeze: mean of the workers' errors plus the servers' errors, element by element; the rest to the bit."""
    before = advance(cluster("apmsqueeze", old, **APM), 9)
    after = cluster("apmsqueeze", new, **APM)
    after.load_state_dict(before.state_dict(), elastic="fold")
    assert after.steps == 9
    owed = [slot(members, "worker_error").mean(0) for members in (before, after)]
    torch.testing.assert_close(*owed, rtol=0, atol=1e-15)
    assert torch.equal(owned(before, "server_error"), owned(after, "server_error"))
    assert old == 1 or float(owned(before, "server_error").abs().max()) > 0
    for name in ("momentum", "variance"):
        assert (slot(after, name) == slot(before, name)[0]).all()
    for ours, theirs in zip(before.parameters(0), after.parameters(new - 1), strict=True):
        assert torch.equal(ours, theirs)
    advance(after, 3)
    for ours, theirs in zip(after.parameters(0), after.parameters(new - 1), strict=True):
        assert torch.equal(ours, theirs)
        assert ours.isfinite().all()


def test_starting_anew_keeps_what_is_shared_and_owned() -> None:
    before = advance(cluster("apmsqueeze", 4, **APM), 9)
    after = cluster("apmsqueeze", 2, **APM)
    after.load_state_dict(before.state_dict(), elastic="zero")
    assert (slot(after, "worker_error") == 0).all()
    assert torch.equal(owned(before, "server_error"), owned(after, "server_error"))
    assert torch.equal(slot(before, "momentum")[0], slot(after, "momentum")[1])


def test_pieces_that_are_owned_may_also_change_their_buckets() -> None:
    before = advance(cluster("apmsqueeze", 4, **APM), 9)
    params = list(Net(torch.float64).parameters())
    after = SimulatedCluster("apmsqueeze", params, 3, names=names(), **APM)
    after.load_state_dict(before.state_dict(), elastic="fold")
    assert torch.equal(owned(before, "server_error"), owned(after, "server_error"))
    torch.testing.assert_close(
        slot(before, "worker_error").mean(0), slot(after, "worker_error").mean(0), rtol=0, atol=1e-15
    )


@pytest.mark.parametrize("new", [1, 2, 5])
def test_momenta_fold_to_their_mean(new: int) -> None:
    """Lion Cub, as its own synchronisation would make them."""
    before = advance(cluster("lion-cub-1bit", 3, momentum_sync="never"), 6)
    assert not torch.equal(slot(before, "momentum")[0], slot(before, "momentum")[1])
    after = cluster("lion-cub-1bit", new, momentum_sync="never")
    after.load_state_dict(before.state_dict(), elastic="fold")
    mean = slot(before, "momentum").mean(0)
    torch.testing.assert_close(slot(after, "momentum"), mean.expand(new, -1), rtol=0, atol=1e-15)
    advance(after, 2)
    with pytest.raises(LayoutError, match=r"slot 'momentum' holds what each rank keeps.*elastic='fold'"):
        cluster("lion-cub-1bit", new, momentum_sync="never").load_state_dict(before.state_dict())


@pytest.mark.parametrize("name", ["thc", "powersgd", "l-greco", "ef-signsgd"])
@pytest.mark.parametrize("new", [2, 5])
def test_errors_of_workers_fold_to_their_mean_and_nothing_is_lost_on_the_way(name: str, new: int) -> None:
    """Over the change of ranks: what is applied is the mean gradient plus the change of the mean error (SGD)."""
    options = {"min_compression_rate": 0.0} if name in ("powersgd", "l-greco") else {}
    key = "worker_error" if name == "ef-signsgd" else "error"

    def owed(members: SimulatedCluster) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        for shard in range(len(members.state(0, key))):
            own = [members.state(r, key)[shard] for r in range(members.world_size)]
            if isinstance(own[0], Tensor):
                found[str(shard)] = torch.stack(own).mean(0)  # type: ignore[arg-type]
            else:
                found |= {k: torch.stack([x[k] for x in own]).mean(0) for k in own[0]}
        return found

    before = advance(cluster(name, 3, **options), 5)
    after = cluster(name, new, **options)
    after.load_state_dict(before.state_dict(), elastic="fold")
    assert any(float(x.abs().max()) > 1e-3 for x in owed(before).values())
    for k, x in owed(before).items():
        torch.testing.assert_close(owed(after)[k], x, rtol=0, atol=1e-15)

    def flat(x: dict[str, Tensor]) -> Tensor:
        return vector([x[k] for k in sorted(x)])

    at = vector(after.parameters(0)).clone()
    grads = [
        [torch.cos(r + p + torch.arange(p.numel()).view_as(p)) for p in after.parameters(r)]
        for r in range(new)
    ]
    mean = vector([torch.stack(of_one).mean(0) for of_one in zip(*grads, strict=True)])
    error = flat(owed(after)).sum()
    after.step(grads, lr=1.0)
    moved = at - vector(after.parameters(0))
    atol = 1e-5 if name == "thc" else 1e-12  # THC computes in fp32
    torch.testing.assert_close(moved.sum(), mean.sum() + error - flat(owed(after)).sum(), rtol=0, atol=atol)


@pytest.mark.parametrize("name", ["signum", "distributed-lion-mavo", "distributed-lion-avg"])
def test_momenta_of_votes_fold_to_their_mean(name: str) -> None:
    before = advance(cluster(name, 3), 6)
    assert not torch.equal(slot(before, "momentum")[0], slot(before, "momentum")[1])
    after = cluster(name, 2)
    after.load_state_dict(before.state_dict(), elastic="fold")
    mean = slot(before, "momentum").mean(0)
    torch.testing.assert_close(slot(after, "momentum"), mean.expand(2, -1), rtol=0, atol=1e-15)
    advance(after, 2)


def test_within_a_round_of_local_steps_folding_averages() -> None:
    options = {"period": 4, "momentum": 0.9}
    before = advance(cluster("local-sgd", 3, **options), 6)  # two steps into the second round
    state = before.state_dict()
    with pytest.raises(LayoutError, match=r"parameter 'first' differs between ranks"):
        cluster("local-sgd", 2, **options).load_state_dict(state)
    after, anew = cluster("local-sgd", 2, **options), cluster("local-sgd", 2, **options)
    after.load_state_dict(state, elastic="fold")
    anew.load_state_dict(state, elastic="zero")
    for i in range(len(names())):
        mean = torch.stack([before.parameters(r)[i] for r in range(3)]).mean(0)
        for members in (after, anew):
            assert torch.equal(members.parameters(1)[i], mean)
    held = [w["optimizer"]["state"][0]["momentum_buffer"] for w in state["workers"]]
    found = after.state_dict()["workers"][1]["optimizer"]["state"][0]["momentum_buffer"]
    assert torch.equal(found, torch.stack(held).mean(0))
    assert anew.state_dict()["workers"][1]["optimizer"]["state"] == {}
    advance(after, 2)
    assert after.kind == "average"
    assert torch.equal(after.parameters(0)[0], after.parameters(1)[0])


def test_after_a_round_nothing_is_refused_if_nothing_differs() -> None:
    before = advance(cluster("local-sgd", 3, period=4), 8)
    after = cluster("local-sgd", 2, period=4)
    after.load_state_dict(before.state_dict())
    assert torch.equal(after.parameters(1)[0], before.parameters(0)[0])


@pytest.mark.parametrize("new", [1, 2])
def test_a_method_without_state_of_single_ranks_goes_on_as_if_nothing_had_happened(new: int) -> None:
    """The same gradient on all ranks, so that the mean does not depend on how many there are."""

    def train(members: SimulatedCluster, first: int, last: int) -> SimulatedCluster:
        for step in range(first, last):
            own = gradients(members.parameters(0), 0, step)
            members.step([own] * members.world_size)
        return members

    whole = train(cluster("allreduce-adamw", 4), 0, 10)
    after = cluster("allreduce-adamw", new)
    after.load_state_dict(train(cluster("allreduce-adamw", 4), 0, 5).state_dict())
    train(after, 5, 10)
    for ours, theirs in zip(whole.parameters(0), after.parameters(new - 1), strict=True):
        assert torch.equal(ours, theirs)


@dataclass(frozen=True)
class Keeping(Algorithm):
    """State of which nobody said how it folds; and one whose shape is the number of ranks."""

    by_size: bool = False
    defaults = {"momentum": 0.0}  # noqa: RUF012

    @property
    def slots(self) -> dict[str, Slot]:
        if self.by_size:
            return {"table": per_tensor("replicated", lambda view, world: (world.size,))}
        return {"private": per_rank(init=2.0)}

    def update(self, shard: Shard, reduced: Tensor) -> None:
        shard.params.sub_(0 * reduced)


def test_what_cannot_be_folded_says_so_and_may_start_anew() -> None:
    method = Method("keeping", Keeping(), {})
    state = cluster(method, 3).state_dict()
    with pytest.raises(LayoutError, match=r"slot 'private'.*does not say.*elastic='zero'"):
        cluster(method, 2).load_state_dict(state, elastic="fold")
    after = cluster(method, 2)
    after.load_state_dict(state, elastic="zero")
    assert (slot(after, "private") == 2.0).all()  # the value with which it starts
    method = Method("keeping", Keeping(by_size=True), {})
    with pytest.raises(LayoutError, match=r"checkpoint holds \(3,\), the method wants \(2,\)"):
        cluster(method, 2).load_state_dict(cluster(method, 3).state_dict(), elastic="fold")


def _drop(states: list[dict[str, Any]]) -> None:
    del states[1]


def _twice(states: list[dict[str, Any]]) -> None:
    states[1] = states[0]


def _later(states: list[dict[str, Any]]) -> None:
    states[1]["step"] += 1


def _waiting(states: list[dict[str, Any]]) -> None:
    states[1]["pending"] = {"0:outer": torch.zeros(1)}


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (_drop, "all old ranks"),
        (_twice, "all old ranks"),
        (_later, "differ in step"),
        (_waiting, "under way"),
    ],
)
def test_states_that_do_not_belong_together_are_refused(spoil: Callable[..., None], words: str) -> None:
    state = advance(cluster("allreduce-adamw", 3), 2).state_dict()
    spoil(state["workers"])
    with pytest.raises(LayoutError, match=words):
        cluster("allreduce-adamw", 4).load_state_dict(state, elastic="fold")


def test_another_word_is_refused_and_states_are_left_as_they_were() -> None:
    state = advance(cluster("apmsqueeze", 3, **APM), 6).state_dict()
    held = copy.deepcopy(state)
    with pytest.raises(UnsupportedError, match="refuse, zero, fold, got 'stretch'"):
        cluster("apmsqueeze", 2, **APM).load_state_dict(state, elastic="stretch")  # type: ignore[arg-type]
    after = cluster("apmsqueeze", 2, **APM)
    after.load_state_dict(state, elastic="fold")
    advance(after, 2)
    for old, own in zip(held["workers"], state["workers"], strict=True):
        assert all(torch.equal(x, own["parameters"][name]) for name, x in old["parameters"].items())
        for a, b in zip(
            old["slots"]["worker_error"]["entries"], own["slots"]["worker_error"]["entries"], strict=True
        ):
            assert torch.equal(a[2], b[2])


def test_a_state_that_was_loaded_is_not_trained_on() -> None:
    """Two trainings may begin from one state, also the states of the local optimizer."""
    state = advance(cluster("allreduce-adamw", 3), 3).state_dict()
    held = copy.deepcopy(state["workers"][0]["optimizer"]["state"][0])
    resumed = cluster("allreduce-adamw", 3)
    resumed.load_state_dict(state)
    advance(resumed, 2)
    now = state["workers"][0]["optimizer"]["state"][0]
    assert all(torch.equal(held[name], now[name]) for name in ("step", "exp_avg", "exp_avg_sq"))


def test_an_exchange_that_was_under_way_is_not_consumed_in_the_state_that_was_loaded() -> None:
    """Streaming DiLoCo uses up the mean progress that it waited for; two trainings from one state are the same."""
    options = {"period": 4, "overlap": 2, "fragments": 2}
    state = next(
        state
        for steps in range(4, 12)
        if any(
            (state := advance(cluster("streaming-diloco", 2, **options), steps).state_dict())["workers"][0][
                "pending"
            ]
        )
    )
    ends = []
    for _ in range(2):
        resumed = cluster("streaming-diloco", 2, **options)
        resumed.load_state_dict(state)
        ends.append(vector(advance(resumed, 6).parameters(0)))
    assert torch.equal(*ends)


# ---- on real processes ---------------------------------------------------------------------------------------------

EXACT: dict[str, Any] = {"warmup_steps": 0, "initial_variance": 1.0}


def _go_on(rank: int, size: int, states: list[dict[str, Any]], elastic: str) -> list[Tensor]:
    model = Net()
    optimizer = DataParallelOptimizer(
        model.named_parameters(), "apmsqueeze", lr=LR, seed=3, bucket_bytes=256, **EXACT
    )
    optimizer.load_state_dict(states, elastic=elastic)  # type: ignore[arg-type]
    for step in range(5, 9):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step)
        optimizer.zero_grad()
        x, y = batch(rank, step)
        (model(x) - y).square().mean().backward()
        optimizer.step()
    optimizer.release()
    return [p.detach().clone() for p in model.parameters()]


@pytest.mark.gloo
@pytest.mark.parametrize(("old", "elastic"), [(2, "fold"), (4, "zero"), (3, "refuse")])
def test_real_ranks_go_on_like_simulated_ones(old: int, elastic: Any, ranks: Callable[[int], Ranks]) -> None:
    """From two, four and (with nothing to change) three ranks to three."""

    def simulated(size: int) -> SimulatedCluster:
        params = list(Net().parameters())
        return SimulatedCluster(
            "apmsqueeze", params, size, lr=LR, seed=3, names=names(), bucket_bytes=256, **EXACT
        )

    before, after = advance(simulated(old), 5), simulated(3)
    state = before.state_dict()
    after.load_state_dict(state, elastic=elastic)
    advance(after, 4)
    for rank, found in enumerate(ranks(3).run(_go_on, state, elastic)):
        assert isinstance(found, list), found
        for ours, theirs in zip(after.parameters(rank), found, strict=True):
            assert torch.equal(ours, theirs)


@pytest.mark.parametrize(("old", "new", "words"), [("sgd", "adamw", "betas"), ("adamw", "sgd", "momentum")])
def test_the_state_of_another_local_optimizer_is_refused_before_anything_changes(
    old: str, new: str, words: str
) -> None:
    """Torch takes it over, and fails in the next step or trains on with what is left."""
    state = advance(cluster(f"allreduce-{old}", 2), 2).state_dict()
    other = cluster(f"allreduce-{new}", 2)
    held = [p.clone() for p in other.parameters(0)]
    with pytest.raises(LayoutError, match=f"no .*{words}.*another local optimizer"):
        other.load_state_dict(state)
    state["workers"][0]["optimizer"]["param_groups"] *= 2
    with pytest.raises(LayoutError, match="2 parameter groups, the model 1"):
        cluster(f"allreduce-{old}", 2).load_state_dict(state)
    assert all(torch.equal(a, b) for a, b in zip(held, other.parameters(0), strict=True))
