"""When momenta are brought together, what that changes, and what stays apart."""

from __future__ import annotations

import math
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from reference_impls import SimulatedCluster
from reference_impls.reducers.momentum_sync import MomentumSync
from tests.reference_impls.lion_training import SHAPES, D, advance, cluster, gradient, vector


def kinds(steps: int, **options: Any) -> list[str]:
    trained, found = cluster("lion-cub-1bit", 2, **options), []
    for step in range(steps):
        advance(trained, 1, first=step)
        found.append(trained.kind)
    return found


def when(found: list[str], kind: str = "sync") -> list[int]:
    return [step for step, each in enumerate(found) if each == kind]


def test_schedules_of_synchronisation_are_exact() -> None:
    assert when(kinds(40)) == []
    assert when(kinds(40, momentum_sync="periodic", sync_every=7)) == [0, 7, 14, 21, 28, 35]
    assert when(kinds(70, momentum_sync="doubling")) == [0, 1, 3, 7, 15, 31, 63]  # T <- int(T + 2^j)
    assert when(kinds(40, momentum_sync="doubling", sync_doubling=2)) == [
        0,
        1,
        2,
        4,
        6,
        10,
        15,
        23,
        34,
    ]  # + 2^(j/2)
    both = kinds(20, momentum_sync="selective", sync_every=4, sync_measure_every=10)
    assert when(both) == [4, 8, 12, 16]
    assert when(both, "measure") == [0, 10]


def momenta(trained: SimulatedCluster) -> list[list[Tensor]]:
    """[rank][parameter], flat."""
    lengths = [math.prod(shape) for shape in SHAPES]
    return [
        [m.clone() for m in vector(trained.state(rank, "momentum")).split_with_sizes(lengths)]
        for rank in range(trained.world_size)
    ]


def test_a_synchronisation_gives_all_ranks_the_mean_and_keeps_the_sum() -> None:
    free, synced = (
        cluster("lion-cub-1bit", 4),
        cluster("lion-cub-1bit", 4, momentum_sync="periodic", sync_every=5),
    )
    advance(free, 1)
    advance(synced, 1)  # step 0 is one
    apart, together = momenta(free), momenta(synced)
    for i in range(len(SHAPES)):
        mean = sum(m[i] for m in apart) / 4
        for rank in range(4):
            assert torch.equal(together[rank][i], mean)
            assert not torch.equal(apart[rank][i], mean)
    advance(free, 4, first=1)
    advance(synced, 4, first=1)
    for i in range(len(SHAPES)):
        torch.testing.assert_close(sum(m[i] for m in momenta(free)), sum(m[i] for m in momenta(synced)))


@pytest.mark.parametrize(("fraction", "chosen"), [(0.01, {1}), (0.16, {1}), (0.55, {1, 2}), (1.0, {0, 1, 2})])
def test_selective_averages_the_tensors_on_which_workers_disagree_most(
    fraction: float, chosen: set[int]
) -> None:
    """Parameter 1 (11 elements) is opposite on half of the ranks, 2 (27) differs a little, 0 (35) is nearly common."""

    def disagreeing(step: int, rank: int) -> list[Tensor]:
        common, own = gradient(step, 99), gradient(step, rank)
        return [common[0] + 1e-3 * own[0], common[1] * (-1) ** rank, common[2] + 0.3 * own[2]]

    def build(momentum_sync: str) -> SimulatedCluster:
        return cluster(
            "lion-cub-1bit",
            4,
            momentum_sync=momentum_sync,
            sync_every=3,
            sync_measure_every=6,
            sync_fraction=fraction,
        )

    free, selective = build("never"), build("selective")
    for step in range(8):
        advance(free, 1, disagreeing, first=step)
        advance(selective, 1, disagreeing, first=step)
        assert selective.kind == {0: "measure", 3: "sync", 6: "measure"}.get(step, "step")
        apart, together = momenta(free), momenta(selective)
        for i in range(len(SHAPES)):
            for rank in range(4):
                if i not in chosen:
                    assert torch.equal(together[rank][i], apart[rank][i])
                elif selective.kind != "step":
                    assert torch.equal(together[rank][i], together[0][i])
                    torch.testing.assert_close(together[rank][i], sum(m[i] for m in apart) / 4)
    rows = selective.ledger.frame(0)
    share = sum(math.prod(SHAPES[i]) for i in chosen)
    of = rows[rows.stage.str.startswith("momentum")].groupby("kind").payload_bytes.sum()
    assert of.to_dict() == {
        "measure": 2 * 2 * 4 * D,
        "sync": 4 * share,
    }  # m and m^2, twice; then what was chosen


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def _by_threads(x: Tensor) -> list[float]:
    found = []
    for count in (1, 2):
        torch.set_num_threads(count)
        found.append(float(x.mean()))
    return found


@pytest.mark.usefixtures("threads")
def test_ranks_with_other_numbers_of_threads_choose_the_same_tensors() -> None:
    """A large tensor whose mean disagreement, as torch adds it, has another last bit on two threads than on one; and a
    tensor of one element that disagrees by exactly the larger of the two, so that this bit decides between them."""
    d = 100_000
    for seed in range(100):
        mean = torch.rand(d + 1, generator=torch.Generator().manual_seed(seed))
        one, two = _by_threads(1 - mean[:d].square())
        wanted = max(one, two)
        near = torch.tensor(math.sqrt(1 - wanted)) + torch.arange(-8, 9) * 2.0**-24
        hit = near[1 - near.square() == wanted]
        if one < two and hit.numel():
            mean[d] = hit[0]
            break
    else:
        pytest.skip("here no mean depends on the number of threads")
    views = [SimpleNamespace(name="0", part=slice(0, d)), SimpleNamespace(name="1", part=slice(d, d + 1))]
    rule, chosen = MomentumSync("selective", fraction=1e-9), []
    for count in (1, 2):
        torch.set_num_threads(count)
        shard: Any = SimpleNamespace(views=views, d=d + 1, state={"selected": torch.zeros(d + 1)})
        rule._select(shard, mean, torch.ones(d + 1))
        chosen.append(shard.state["selected"])
    assert float(chosen[0].sum()) in (1, d)
    assert torch.equal(chosen[0], chosen[1])
