"""Defects of published codes of Lion Cub and Distributed Lion: what each breaks, and that it holds here.

The defective rule is written out in each test; it was read in the code that accompanies the paper or a co-author's.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from reference_impls import SimulatedCluster
from reference_impls.codecs import lion_integers, nibbles
from reference_impls.errors import UnsupportedError
from reference_impls.optimizers import Lion
from reference_impls.reducers.majority import balance, broken
from tests.reference_impls.exchanges import flat, local_workers, run, shards, train
from tests.reference_impls.lion_training import RATE, advance, cluster, vector

VOTERS = ("lion-cub-1bit", "lion-cub-pbit", "distributed-lion-mavo", "distributed-lion-avg", "lion-sign-sum")


def never(name: str) -> dict[str, str]:
    return {"momentum_sync": "never"} if name.startswith("lion-cub") else {}


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", VOTERS)
def test_rates_read_from_the_defaults_ignore_the_schedule(name: str) -> None:
    """There: `self.defaults["lr"]` in the step. A rate of zero must stop the training; the defaults never do."""
    optimizer = Lion([torch.nn.Parameter(torch.zeros(4))], lr=0.1)
    optimizer.param_groups[0]["lr"] = 0.0
    assert optimizer.defaults["lr"] == 0.1 != optimizer.param_groups[0]["lr"]

    ours = local_workers(
        name, [{"params": [torch.zeros(9)], "param_names": ["a"], "lr": 0.1}], 3, **never(name)
    )
    train(ours, lambda rank: normal(9))
    before = flat(ours, 0)
    assert before.abs().max() == pytest.approx(0.1)
    for worker in ours.workers:
        worker.optimizer.param_groups[0]["lr"] = 0.0
    train(ours, lambda rank: normal(9))
    assert torch.equal(flat(ours, 0), before)


@pytest.mark.parametrize("name", VOTERS)
def test_a_mask_of_a_rank_s_own_zeros_lets_replicas_drift(name: str) -> None:
    """There: the agreed direction is multiplied by (u_i != 0) on each rank alone."""
    u = normal(3, 100)
    u[1] *= u[1] > 0
    direction = u.sign().sum(0).sign()
    masked = direction * (u != 0)
    assert not torch.equal(masked[0], masked[1])

    trained = SimulatedCluster(name, [torch.zeros(100)], 3, lr=0.1, **never(name))
    trained.step([[row] for row in u])
    assert all(torch.equal(trained.parameters(0)[0], trained.parameters(rank)[0]) for rank in range(3))


def test_zero_codes_counted_as_votes_for_plus_are_a_drift() -> None:
    """There: a ternary code goes into a counter as (q >= 0), and the count less n/2 is the verdict."""
    n, d = 4, 20_000
    u = normal(n, d)
    codes = torch.empty(n, d, dtype=torch.int8)
    lion_integers.encode(u, [slice(0, d)], "l1", 1, codes)  # one level
    assert 0.5 < float((codes == 0).float().mean()) < 0.7
    counted = ((codes >= 0).sum(0) - n // 2).sign().float()
    assert float(counted.mean()) > 0.5

    trained = SimulatedCluster("lion-cub-pbit", [torch.zeros(d)], n, lr=1.0, bits=4)
    trained.step([[row] for row in u])
    assert abs(float(trained.parameters(0)[0].mean())) < 5 / math.sqrt(d)


def test_a_count_less_half_is_biased_for_odd_n_and_carries_into_its_neighbour() -> None:
    """There: 0/1 votes in two counters a byte, verdict sign(count - n // 2): for n = 3 counts 0 .. 3 are -, 0, +, +."""
    assert [(count - 3 // 2 > 0) - (count - 3 // 2 < 0) for count in range(4)] == [-1, 0, 1, 1]
    byte = torch.zeros(1, dtype=torch.uint8)
    for _ in range(16):  # all vote + in the low counter, nobody in the high one
        byte += 1
    low, high = int(byte) & 15, int(byte) >> 4
    assert (low, high) == (0, 1)

    votes = torch.tensor([[1, 1, 0], [1, 0, 0], [1, 1, 0]], dtype=torch.bool)
    trained = SimulatedCluster("distributed-lion-mavo", [torch.zeros(3)], 3, lr=1.0, transport="int8-sum")
    trained.step([[2.0 * row - 1] for row in votes])
    assert trained.parameters(0)[0].tolist() == [-1, -1, 1]
    with pytest.raises(UnsupportedError, match="more bits"):
        SimulatedCluster("distributed-lion-mavo", [torch.zeros(3)], 128, lr=1.0, transport="int8-sum")


@pytest.mark.parametrize("d", [1, 7, 67])
def test_an_odd_number_of_counters_is_no_special_case(d: int) -> None:
    """There: byte = low[::2] + 16 high[1::2]: of unequal lengths, which do not add, or broadcast to nothing."""
    counters = torch.randint(0, 16, (d,), generator=torch.Generator().manual_seed(d))
    if d == 1:
        assert (counters[::2] + 16 * counters[1::2]).numel() == 0
    else:
        with pytest.raises(RuntimeError, match="size"):
            counters[::2] + 16 * counters[1::2]
    wire = torch.empty(nibbles.wire_bytes(d), dtype=torch.uint8)
    nibbles.pack(counters, wire)
    back = torch.empty_like(counters)
    nibbles.unpack(wire, back)
    assert torch.equal(back, counters)


def test_one_level_on_the_maximum_votes_for_nothing() -> None:
    """There: s = int(127 / n) is 1 from n = 64 on, and round(u / max|u| / 2) is 0 for every u. From 128 on s is 0."""
    u = normal(1000)
    assert not (u / u.abs().max() * 0.5).round().any()
    assert int(127 / 128) == 0
    with pytest.raises(UnsupportedError, match="nothing would ever move"):
        SimulatedCluster("lion-cub-pbit", [torch.zeros(8)], 64, scale="linf")
    for scale in lion_integers.SCALES:
        with pytest.raises(UnsupportedError, match="more bits"):
            SimulatedCluster("lion-cub-pbit", [torch.zeros(8)], 128, scale=scale)
    moving = SimulatedCluster("lion-cub-pbit", [torch.zeros(1000)], 64, lr=1.0, scale="linf", gain=1.0)
    moving.step([[normal(1000)] for _ in range(64)])
    assert moving.parameters(0)[0].any()


@pytest.mark.parametrize("scale", lion_integers.SCALES)
def test_a_tensor_of_zeros_is_not_nought_by_nought(scale: str) -> None:
    """There: u / mean|u| is NaN and goes into int8, where it is whatever the processor makes of it."""
    zeros = torch.zeros(5)
    assert torch.isnan(zeros / zeros.abs().mean()).all()
    trained = SimulatedCluster("lion-cub-pbit", [torch.ones(5), torch.ones(4)], 3, lr=0.1, scale=scale)
    trained.step([[torch.zeros(5), normal(4)] for _ in range(3)])
    assert torch.equal(trained.parameters(0)[0], torch.ones(5))
    assert torch.isfinite(trained.parameters(0)[1]).all()


def test_adding_packed_bytes_is_no_vote() -> None:
    """There: an integer all-reduce of bytes that hold eight votes each, so that carries run from vote to vote."""
    n, d = 3, 8 * 4000
    bits = normal(n, d) > 0
    weights = 1 << torch.arange(8)
    packed = (bits.view(n, -1, 8) * weights).sum(-1)
    mixed = ((packed.sum(0).unsqueeze(-1) >> torch.arange(8)) & 1).flatten() > 0
    truth = bits.sum(0) > n / 2
    assert 0.45 < float((mixed == truth).float().mean()) < 0.6
    members = shards(n, [d])
    none = torch.tensor(False)
    for transport in ("two-phase", "all-gather"):
        found, _ = run(
            [balance(s.world, row, none, transport=transport) for s, row in zip(members, bits, strict=True)]
        )
        assert torch.equal(found[0] > 0, truth)


@pytest.mark.parametrize("name", VOTERS)
def test_stepping_with_the_own_update_after_all_lets_replicas_drift(name: str) -> None:
    """There: what was agreed on is thrown away by rebinding a name, and sign(u_i) is applied on each rank."""
    u = normal(3, 50)
    own = -RATE * u.sign()
    assert not torch.equal(own[0], own[1])
    trained = cluster(name, 3)
    advance(trained, 5)
    assert torch.equal(vector(trained.parameters(0)), vector(trained.parameters(2)))


@pytest.mark.parametrize("name", ["distributed-lion-mavo", "lion-sign-gather"])
def test_zeros_and_ties_as_minus_are_a_drift(name: str) -> None:
    """There: bit = (sign(u) > 0), and `torch.mode` over ranks, which answers the smaller of two that tie."""
    tie = torch.tensor([[-1.0], [1.0]])
    assert torch.mode(tie, dim=0).values.item() == -1
    assert not (torch.zeros(1).sign() > 0).item()
    d, steps = 500, 200
    split = [[torch.ones(d)], [-torch.ones(d)]]
    tied = SimulatedCluster(name, [torch.zeros(d)], 2, lr=1.0)
    untouched = SimulatedCluster(name, [torch.zeros(d)], 3, lr=1.0)
    for _ in range(steps):
        tied.step(split)
        untouched.step([[torch.zeros(d)] for _ in range(3)])
    for trained in (tied, untouched):  # there: steps, exactly
        assert abs(float(trained.parameters(0)[0].mean())) < 5 * math.sqrt(steps / d) < 0.05 * steps


def test_the_sign_of_nan_is_nought_and_hides_it() -> None:
    """There: sign(sum) with a NaN in it; the coordinate stands still and nobody notices."""
    assert torch.tensor(math.nan).sign().item() == 0
    assert not (torch.tensor(math.nan) > 0).item()
    u = torch.tensor([1.0, math.nan])
    assert broken(u)
    for name in (*VOTERS, "lion-update-mean"):
        trained = SimulatedCluster(name, [torch.zeros(2)], 2, lr=1.0, **never(name))
        trained.step([[u], [torch.ones(2)]])
        assert all(torch.isnan(trained.parameters(rank)[0]).any() for rank in range(2))


def test_gaps_of_synchronisation_go_on_doubling_after_the_first_epoch() -> None:
    """There: the list of indices ends with the iterations of one epoch, and nothing is synchronised from then on."""
    epoch, listed = 20, [0]
    for j in range(100):
        following = int(listed[-1] + 2.0**j)
        if following >= epoch:
            break
        listed.append(following)
    assert listed == [0, 1, 3, 7, 15]
    trained, found = cluster("lion-cub-1bit", 2, momentum_sync="doubling"), []
    for step in range(130):
        advance(trained, 1, first=step)
        if trained.kind == "sync":
            found.append(step)
    assert found == [*listed, 31, 63, 127]
