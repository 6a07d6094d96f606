"""Groups within and across nodes: who meets whom, what it costs, what real processes do with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from reference_impls import DataParallelOptimizer, SimulatedCluster, wire
from reference_impls.algorithm import Algorithm, Shard, Slot, option, per_rank
from reference_impls.collectives import Exchange
from reference_impls.drivers.groups import partitions
from reference_impls.errors import LayoutError, MismatchError, UnsupportedError
from reference_impls.registry import Method
from tests.reference_impls.gloo import run_ranks
from tests.reference_impls.problem import LR, Net, batch, gradients, names
from tests.reference_impls.states import contents

ELEMENTS = 177  # of Net


@dataclass(frozen=True)
class TwoLevel(Algorithm):
    """The mean in two levels; `wrong` makes one rank disagree with its node, or one node with the other."""

    wrong: str = option("", "rank, stage or node")
    defaults = {"momentum": 0.0}  # noqa: RUF012

    def reduce(self, shard: Shard) -> Exchange[Tensor]:
        x, stage, odd = shard.grads.clone(), "gradient", shard.step == 1 and shard.world.rank in (2, 3)
        if odd and (self.wrong == "node" or (self.wrong == "rank" and shard.world.rank == 3)):
            x = torch.cat([x, x[:1]])
        if odd and self.wrong == "stage":
            stage = "other"
        x = yield from shard.node.mean(x, stage)
        return (yield from shard.cross.mean(x[: shard.d], "gradient"))

    def update(self, shard: Shard, reduced: Tensor) -> None:
        shard.params.sub_(reduced, alpha=shard.clock.lr)


@dataclass(frozen=True)
class Meetings(TwoLevel):
    """Exact numbers instead of gradients: who took part in what, by every verb. Kept as state."""

    @property
    def slots(self) -> Mapping[str, Slot]:
        return {"seen": per_rank()}

    def reduce(self, shard: Shard) -> Exchange[Tensor]:
        me, seen = torch.tensor([float(shard.world.rank)]), []
        for group in (shard.world, shard.node, shard.cross):
            everybody = torch.full((group.size,), me.item()) * 100 + torch.arange(group.size)
            seen.append((yield from group.sum(me.clone(), "sum")))
            seen.append((yield from group.max(me.clone(), "max")))
            seen.append((yield from group.gather(me, "gather")).view(-1))
            seen.append((yield from group.all_to_all(everybody, "exchange")).view(-1))
            after, before = (group.rank + 1) % group.size, (group.rank - 1) % group.size
            ring = (after, before) if group.size > 1 else (None, None)
            came = yield from group.send_recv(me, "ring", *ring)
            seen.append(torch.full((1,), -1.0) if came is None else came)
        found = torch.cat(seen)
        shard.state["seen"][: found.numel()] = found
        return shard.grads


def by_hand(rank: int, size: int, node_size: int) -> list[float]:
    """What `Meetings` must see, from the definition of the groups alone."""
    node = [r for r in range(size) if r // node_size == rank // node_size]
    cross = [r for r in range(size) if r % node_size == rank % node_size]
    seen: list[float] = []
    for ranks in (list(range(size)), node, cross):
        place = ranks.index(rank)
        seen += [sum(ranks), max(ranks), *ranks, *(100 * r + place for r in ranks)]
        seen.append(ranks[place - 1] if len(ranks) > 1 else -1)
    return seen


def cluster(algorithm: Algorithm, size: int, node_size: int, **more: Any) -> SimulatedCluster:
    return SimulatedCluster(
        Method("two-level", algorithm, {}),
        list(Net().parameters()),
        size,
        lr=LR,
        names=names(),
        node_size=node_size,
        **more,
    )


def advance(members: SimulatedCluster, steps: int) -> None:
    for step in range(members.steps, members.steps + steps):
        members.step([gradients(members.parameters(r), r, step) for r in range(members.world_size)])


def seen_of(state: Tensor, size: int, node_size: int) -> list[float]:
    return state[: len(by_hand(0, size, node_size))].tolist()


@pytest.mark.parametrize(("size", "node_size"), [(4, 1), (4, 2), (4, 4), (6, 3), (6, 2), (1, 1)])
def test_every_verb_meets_the_ranks_of_its_group(size: int, node_size: int) -> None:
    members = cluster(Meetings(), size, node_size)
    advance(members, 1)
    for rank in range(size):
        (state,) = members.state(rank, "seen")
        assert seen_of(state, size, node_size) == by_hand(rank, size, node_size)


def test_every_rank_is_in_one_set_of_each_group() -> None:
    for size in range(1, 13):
        for node_size in (k for k in range(1, size + 1) if size % k == 0):
            for sets in partitions(size, node_size).values():
                assert sorted(rank for ranks in sets for rank in ranks) == list(range(size))
            found = partitions(size, node_size)
            for node in found["node"]:
                for cross in found["cross"]:
                    assert len(set(node) & set(cross)) == 1


@pytest.mark.parametrize(("size", "node_size"), [(4, 3), (4, 8), (4, 0), (4, -1)])
def test_nodes_that_do_not_divide_the_ranks_are_refused(size: int, node_size: int) -> None:
    with pytest.raises(UnsupportedError, match=f"{size} ranks do not divide into nodes of {node_size}"):
        cluster(TwoLevel(), size, node_size)


@pytest.mark.parametrize(("size", "node_size"), [(4, 2), (6, 3), (6, 2), (8, 4)])
def test_a_mean_in_two_levels_is_the_plain_mean(size: int, node_size: int) -> None:
    two, plain = cluster(TwoLevel(), size, node_size), cluster(TwoLevel(), size, 1)
    for step in range(5):
        grads = [gradients(plain.parameters(r), r, step) for r in range(size)]
        two.step(grads)
        plain.step(grads)
    for rank in range(size):
        for a, b in zip(two.parameters(rank), plain.parameters(rank), strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-6)
        for a, b in zip(two.parameters(rank), two.parameters(0), strict=True):
            assert torch.equal(a, b)


def test_nodes_of_one_rank_are_the_plain_group_to_the_bit() -> None:
    nodes, plain = (
        cluster(TwoLevel(), 3, 1),
        SimulatedCluster("allreduce-sgd", list(Net().parameters()), 3, lr=LR, names=names()),
    )
    for members in (nodes, plain):
        advance(members, 4)
    assert all(torch.equal(a, b) for a, b in zip(nodes.parameters(2), plain.parameters(2), strict=True))


@pytest.mark.parametrize(("size", "node_size"), [(4, 1), (4, 2), (6, 3), (4, 4)])
def test_bytes_are_counted_by_the_size_of_the_group(size: int, node_size: int) -> None:
    members = cluster(TwoLevel(), size, node_size)
    advance(members, 1)
    frame = members.ledger.frame(rank=None)
    assert len(frame) == 2 * size
    for row in frame.to_dict("records"):
        ranks = node_size if row["group"] == "node" else size // node_size
        assert row["payload_bytes"] == 4 * ELEMENTS
        assert row["wire_bytes"] == row["received_bytes"] == wire.all_reduce(4 * ELEMENTS, ranks)


@pytest.mark.parametrize(("wrong", "other"), [("rank", 3), ("stage", 2)])
def test_a_disagreement_names_two_ranks(wrong: str, other: int) -> None:
    members = cluster(TwoLevel(wrong=wrong), 4, 2)
    advance(members, 1)
    with pytest.raises(MismatchError, match=f"step 1: rank .* rank {other} asks for"):
        advance(members, 1)


def test_nodes_may_agree_on_a_length_of_their_own() -> None:
    """Two nodes never meet in a collective within nodes, so their lengths are their own business."""
    members, plain = cluster(TwoLevel(wrong="node"), 4, 2), cluster(TwoLevel(), 4, 2)
    for trained in (members, plain):
        advance(trained, 3)
    assert all(torch.equal(a, b) for a, b in zip(members.parameters(2), plain.parameters(2), strict=True))


def test_ranks_of_a_node_draw_alike_if_asked_to() -> None:
    drawn: dict[tuple[str, int], list[int]] = {}

    class Drawing(TwoLevel):
        def reduce(self, shard: Shard) -> Tensor:  # type: ignore[override]
            for name, group in {"cross": shard.cross, "world": None}.items():
                drawn[name, shard.world.rank] = shard.key("draw", group=group).bits(3).tolist()
            return shard.grads

    advance(cluster(Drawing(), 4, 2), 1)
    assert drawn["cross", 0] == drawn["cross", 1] != drawn["cross", 2] == drawn["cross", 3]
    assert len({tuple(drawn["world", rank]) for rank in range(4)}) == 4


def test_state_of_single_ranks_in_nodes_is_not_taken_over_by_other_nodes() -> None:
    saved = cluster(Meetings(), 4, 2)
    advance(saved, 1)
    state = saved.state_dict()
    cluster(Meetings(), 4, 2).load_state_dict(state)
    with pytest.raises(LayoutError, match="nodes of 2 ranks, here a node has 4: give node_size=2"):
        cluster(Meetings(), 4, 4).load_state_dict(state)
    resumed = cluster(Meetings(), 4, 2)
    resumed.load_state_dict(state)
    with pytest.raises(LayoutError, match="node_size=2"):  # also before the next step has asked for a node
        cluster(Meetings(), 4, 1).load_state_dict(resumed.state_dict())


def test_without_state_of_single_ranks_nodes_may_change_between_sessions() -> None:
    saved = cluster(TwoLevel(), 4, 2)
    advance(saved, 2)
    other = cluster(TwoLevel(), 4, 4)
    other.load_state_dict(saved.state_dict())
    assert other.steps == 2
    lion = {"momentum_sync": "never"}
    first = SimulatedCluster("lion-cub-1bit", [torch.zeros(9)], 4, node_size=2, **lion)
    first.step([[torch.randn(9)] for _ in range(4)])
    SimulatedCluster("lion-cub-1bit", [torch.zeros(9)], 4, **lion).load_state_dict(first.state_dict())


# ---- on real processes ---------------------------------------------------------------------------------------------


def _optimizer(algorithm: Algorithm, node_size: int, **more: Any) -> tuple[Net, DataParallelOptimizer]:
    model = Net()
    method = Method("two-level", algorithm, {})
    return model, DataParallelOptimizer(
        model.named_parameters(), method, lr=LR, node_size=node_size, bucket_bytes=256, **more
    )


def _train(model: Net, optimizer: DataParallelOptimizer, rank: int, steps: int) -> list[Tensor]:
    for step in range(steps):
        optimizer.zero_grad()
        x, y = batch(rank, step)
        (model(x) - y).square().mean().backward()
        optimizer.step()
    return [p.detach().clone() for p in model.parameters()]


def _on_two_nodes(rank: int, size: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    model, optimizer = _optimizer(TwoLevel(), 2, check="each")
    found["parameters"] = _train(model, optimizer, rank, 6)
    found["ledger"] = optimizer.ledger.totals()
    with optimizer.without_communication():
        _train(model, optimizer, rank, 2)
    with optimizer.traced() as trace:
        found["traced"] = _train(model, optimizer, rank, 2)
    found["communication"] = trace.seconds["communication"]
    optimizer.release()
    for node_size in (1, 2, 4):
        flat = torch.nn.Parameter(torch.zeros(200))
        optimizer = DataParallelOptimizer(
            [("flat", flat)], Method("meetings", Meetings(), {}), node_size=node_size, check="each"
        )
        flat.sum().backward()
        optimizer.step()
        state = contents(optimizer.state_dict())["slots"]["seen"]["entries"][0][2]
        found[f"seen-{node_size}"] = seen_of(state, size, node_size)
        optimizer.release()
    try:
        _optimizer(TwoLevel(), 3)
    except UnsupportedError as error:
        found["refused"] = str(error)
    return found


@pytest.mark.gloo
def test_four_processes_as_two_nodes() -> None:
    results = run_ranks(_on_two_nodes, 4)
    simulated = cluster(TwoLevel(), 4, 2, bucket_bytes=256)
    advance(simulated, 6)
    longer = cluster(TwoLevel(), 4, 2, bucket_bytes=256)
    longer.load_state_dict(simulated.state_dict())
    for step in range(2):
        longer.step([gradients(longer.parameters(r), r, step) for r in range(4)])
    for rank, found in enumerate(results):
        assert isinstance(found, dict), found
        assert found["ledger"] == [row for row in simulated.ledger.totals() if row["rank"] == rank]
        for trained, real in ((simulated, found["parameters"]), (longer, found["traced"])):
            for a, b in zip(trained.parameters(rank), real, strict=True):
                torch.testing.assert_close(a, b, rtol=0, atol=1e-6)
        assert all(torch.equal(a, b) for a, b in zip(found["traced"], results[0]["traced"], strict=True))
        assert found["communication"] > 0
        for node_size in (1, 2, 4):
            assert found[f"seen-{node_size}"] == by_hand(rank, 4, node_size)
        assert "4 ranks do not divide into nodes of 3" in found["refused"]


def _beside_another_rank(rank: int, size: int) -> Any:
    group = dist.new_group([0, 1, 2, 3])
    if rank == 4:
        return None  # takes no part, also not in making the groups
    model, optimizer = _optimizer(TwoLevel(), 2, group=group, check="each", timeout_s=20)
    return _train(model, optimizer, rank, 3)


@pytest.mark.gloo
@pytest.mark.full
def test_nodes_of_a_part_of_the_processes() -> None:
    results = run_ranks(_beside_another_rank, 5)
    simulated = cluster(TwoLevel(), 4, 2, bucket_bytes=256)
    advance(simulated, 3)
    assert results[4] is None
    for rank in range(4):
        assert isinstance(results[rank], list), results[rank]
        for a, b in zip(simulated.parameters(rank), results[rank], strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-6)


def _disagree(rank: int, size: int) -> Any:
    model, optimizer = _optimizer(TwoLevel(wrong="rank"), 2, timeout_s=3.0)
    return _train(model, optimizer, rank, 4)


@pytest.mark.gloo
@pytest.mark.full
def test_a_disagreement_within_a_node_is_named_there_and_ends_the_others() -> None:
    results = run_ranks(_disagree, 4, joins=False)
    for rank in (2, 3):
        assert results[rank][:2] == ("error", "MismatchError"), results[rank]
        assert "rank 2" in results[rank][2]
        assert "rank 3" in results[rank][2]
    for rank in (0, 1):
        assert results[rank][:2] == ("error", "PeerError"), results[rank]
