"""What published low-rank, adaptive and table codes get wrong: each rule, written out, breaks an identity that ours holds."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import _orthogonalize

from reference_impls import SimulatedCluster
from reference_impls.codecs.lookup import PUBLISHED
from reference_impls.codecs.low_rank import orthonormal
from reference_impls.codecs.uniform_levels import UniformLevels
from reference_impls.errors import UnsupportedError
from reference_impls.randomness import Key
from reference_impls.schedules.bits import levels

ALL = {"min_compression_rate": 0.0}


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def powersgd(n: int, *shapes: tuple[int, ...], **options: object) -> SimulatedCluster:
    start = [torch.zeros(shape, dtype=torch.float64) for shape in shapes]
    return SimulatedCluster("powersgd", start, n, lr=1.0, **ALL, **options)


def moved(members: SimulatedCluster, grads: list[list[Tensor]]) -> Tensor:
    """One step of SGD with rate 1: what was taken from the first parameter."""
    before = members.parameters(0)[0].clone()
    members.step(grads)
    return before - members.parameters(0)[0]


def by_hooks_rule(m: Tensor, q: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """One step of torch's arithmetic on [1, a, b] and Q [1, b, r]: answer and next Q."""
    p = m @ q
    _orthogonalize(p, eps)
    q = m.transpose(1, 2) @ p
    return p @ q.transpose(1, 2), q


# ---- GRACE's PowerSGD ----------------------------------------------------------------------------------------------


def test_a_q_that_is_drawn_in_every_step_never_improves() -> None:
    """The PyTorch variant draws Q anew: on a gradient that stays, the tenth answer is no better than the first."""
    u, v = (torch.linalg.qr(normal(30, 8, seed=s)).Q for s in (1, 2))
    m = u @ torch.diag(0.8 ** torch.arange(8, dtype=torch.float64)) @ v.T
    best = math.sqrt(sum(0.64**k for k in range(2, 8)))
    drawn = [float((by_hooks_rule(m[None], normal(1, 30, 2, seed=s), 0)[0][0] - m).norm()) for s in range(40)]
    assert min(drawn[20:]) > 1.01 * best
    assert sum(drawn[20:]) > 0.95 * sum(drawn[:20])
    members = powersgd(2, (30, 30), rank=2, error_feedback=False)
    ours = [float((moved(members, [[m], [m]]) - m).norm()) for _ in range(40)]
    assert ours[-1] < 1.001 * best < 0.95 * ours[0]


def test_two_ranks_in_two_places_lose_a_part_of_the_gradient() -> None:
    """The compressor sends rank 1, the memory subtracts rank 2: applied + residual is not what was to be sent."""
    m, q = normal(1, 20, 15), normal(1, 15, 2, seed=1)
    sent, _ = by_hooks_rule(m, q[..., :1].clone(), 0)
    subtracted, _ = by_hooks_rule(m, q.clone(), 0)
    assert float((sent + (m - subtracted) - m).norm()) > 0.1 * float(m.norm())
    members = powersgd(1 + 1, (20, 15), rank=1)
    applied = moved(members, [[m[0]], [m[0]]])
    kept = members.state(0, "error")[0]["0"].view(20, 15)
    torch.testing.assert_close(applied + kept, m[0], rtol=0, atol=1e-13)


def test_a_q_of_ones_own_on_every_rank_is_a_projection_of_nothing() -> None:
    """Unless seeded alike, ranks draw different Q: a mean of rank 1 is no longer found exactly."""
    n, mean = 3, normal(20, 1) @ normal(1, 15, seed=1)
    noise = normal(n, 20, 15, seed=2)
    grads = mean + noise - noise.mean(0)
    p = sum(g @ normal(15, 1, seed=r) for r, g in enumerate(grads))[None]
    _orthogonalize(p, 0)
    assert float((p[0] @ (p[0].T @ mean) - mean).norm()) > 0.3 * float(mean.norm())
    torch.testing.assert_close(moved(powersgd(n, (20, 15), rank=1), [[g] for g in grads]), mean)


def test_a_world_size_of_one_makes_a_mean_a_sum() -> None:
    """The factory of its distributed flavour builds PowerSGD with world_size=1, and divides by it."""
    m = normal(20, 1) @ normal(1, 15, seed=1)
    p = (4 * m)[None] @ normal(1, 15, 1, seed=2)
    _orthogonalize(p, 0)
    answer = p[0] @ (4 * m.T @ p[0]).T / 1
    torch.testing.assert_close(answer, 4 * m)
    torch.testing.assert_close(moved(powersgd(4, (20, 15), rank=1), [[m]] * 4), m)


# ---- torch's hook --------------------------------------------------------------------------------------------------


def test_a_zero_matrix_without_epsilon_is_nan() -> None:
    zero = torch.zeros(1, 6, 1)
    _orthogonalize(zero, 0)
    assert zero.isnan().all()
    assert torch.equal(orthonormal(torch.zeros(1, 6)), torch.zeros(1, 6))
    members = powersgd(2, (6, 4), rank=1)
    assert torch.equal(
        moved(members, [[torch.zeros(6, 4, dtype=torch.float64)]] * 2), torch.zeros(6, 4).double()
    )


@pytest.mark.parametrize("r", [1, 2])
def test_with_epsilon_a_matrix_that_was_zero_once_is_dead(r: int) -> None:
    """Q = M^T P becomes zero, P = M Q stays zero, and no later gradient gets through."""
    zero, m = torch.zeros(1, 12, 9, dtype=torch.float64), normal(1, 12, 9)
    _, q = by_hooks_rule(zero, normal(1, 9, r), 1e-8)
    for _ in range(3):
        _orthogonalize(q, 1e-8)
        answer, q = by_hooks_rule(m, q, 1e-8)
        assert torch.equal(answer, zero)
    members = powersgd(2, (12, 9), rank=r, error_feedback=False)
    assert torch.equal(moved(members, [[zero[0]]] * 2), zero[0])
    assert float(moved(members, [[m[0]]] * 2).norm()) > 0.2 * float(m.norm())


def test_state_by_bucket_does_not_survive_other_buckets() -> None:
    """The hook keeps residuals by bucket index, so it may not start before DDP has rebuilt its buckets. Ours has names."""
    shapes = [(8, 6), (5, 4), (7, 9)]
    sizes = [math.prod(s) for s in shapes]
    residual_of_bucket = {0: torch.zeros(sum(sizes)), 1: None}
    with pytest.raises(RuntimeError):
        torch.zeros(sizes[0]).add_(residual_of_bucket[0])  # bucket 0, after it was rebuilt

    def grads(t: int) -> list[list[Tensor]]:
        return [[normal(*s, seed=9 * t + i) for s in shapes] for i in range(2)]

    one, other = powersgd(2, *shapes, bucket_bytes=1 << 20), powersgd(2, *shapes, bucket_bytes=64)
    one.step(grads(0))
    other.load_state_dict(one.state_dict())
    for members in (one, other):
        members.step(grads(1))
    assert all(torch.equal(x, y) for x, y in zip(one.parameters(1), other.parameters(1), strict=True))


def test_gradients_that_are_not_contiguous() -> None:
    """A published aggregator calls view (which fails) or reshape (a copy: what is written into it is lost)."""
    g = normal(6, 10).T
    with pytest.raises(RuntimeError):
        g.view(-1)
    g.reshape(-1).zero_()
    assert float(g.norm()) > 1
    plain = moved(powersgd(2, (10, 6), rank=2), [[g.contiguous()]] * 2)
    assert torch.equal(moved(powersgd(2, (10, 6), rank=2), [[g]] * 2), plain)


# ---- DQSGD ---------------------------------------------------------------------------------------------------------


def test_one_bit_leaves_no_level() -> None:
    """s = 2^(B-1) - 1 is 0 for B = 1, and decoding divides by it."""
    g, s = torch.tensor([0.3, -1.0, 0.0]), 2 ** (1 - 1) - 1
    decoded = g.abs().amax() * g.sign() * (g.abs() / g.abs().amax() * s).floor() / s
    assert decoded.isnan().all()
    with pytest.raises(ValueError, match="at least 2"):
        levels(1)
    with pytest.raises(UnsupportedError, match="min_bits"):
        SimulatedCluster("dq-sgd", [torch.zeros(3)], 2, min_bits=1, max_bits=1)


@pytest.mark.parametrize(("s", "stated", "true"), [(1, 3333, 112), (3, 370, 37)])
def test_the_noise_that_is_stated_does_not_hold_for_two_norms(s: int, stated: float, true: float) -> None:
    """d |g|^2 / (6 s^2) takes |g_j| s / |g| for spread over its cell; with 2-norms and large d it is near its floor."""
    d = 20_000
    g = normal(d).float()
    g /= g.norm()
    assert d / (6 * s**2) == pytest.approx(stated, rel=2e-3)
    p = (g.abs().double() * s).frac()
    assert float((p * (1 - p)).sum()) / s**2 == pytest.approx(true, rel=0.02)
    codec, out, lost = UniformLevels(s, "l2", 0), torch.empty(d), []
    wire = torch.empty(codec.wire_bytes(d), dtype=torch.uint8)
    for step in range(20):
        codec.encode(g, Key.of(seed=0, step=step, stage="noise", rank=0), wire)
        codec.decode(wire, out)
        lost.append(float((out - g).double().square().sum()))
    assert sum(lost) / 20 == pytest.approx(true, rel=0.05)
    even = UniformLevels(7, "linf", 0)  # with the largest magnitude as the scale it does hold
    wire = torch.empty(even.wire_bytes(d), dtype=torch.uint8)
    x = torch.linspace(-1, 1, d)
    even.encode(x, Key.of(seed=0, step=0, stage="noise", rank=0), wire)
    even.decode(wire, out)
    assert float((out - x).double().square().sum()) == pytest.approx(d / (6 * 49), rel=0.03)


# ---- THC -----------------------------------------------------------------------------------------------------------


def test_nine_tables_of_thirty_overflow_a_byte() -> None:
    """8 x 30 = 240 fits; 9 x 30 = 270 comes back as 14, near the other end of the scale."""
    top = torch.tensor([PUBLISHED[-1]], dtype=torch.uint8)
    assert int(sum([top] * 7, top)) == 240
    assert int(sum([top] * 8, top)) == 14
    with pytest.raises(UnsupportedError, match="at most 8 ranks"):
        SimulatedCluster("thc", [torch.zeros(50)], 9)


def test_tables_on_norms_of_their_own_do_not_add_up() -> None:
    """Values add up because all ranks divide by the largest norm; decoded with their mean norm they mean something else."""
    small, large = torch.full((64,), 0.01), normal(64).float()
    values = torch.stack([x / x.norm() for x in (small, large)])
    wrong = values.mean(0) * (small.norm() + large.norm()) / 2
    truth = (small + large) / 2
    assert float((wrong - truth).norm()) > 0.2 * float(truth.norm())
    members = SimulatedCluster("thc", [torch.zeros(64)], 2, lr=1.0, error_feedback=False)
    members.step([[small], [large]])
    assert float((members.parameters(0)[0] + truth).norm()) < 0.2 * float(truth.norm())
