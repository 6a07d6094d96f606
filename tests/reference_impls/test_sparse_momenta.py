"""SparseLoCo and DeMo: what is sent and what is kept, special cases, bytes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from reference_impls import SimulatedCluster
from reference_impls.codecs.dct import dct_matrix
from tests.reference_impls.local_training import (
    RATE,
    advance,
    close,
    cluster,
    gradient,
    point,
    sent,
    start,
    trained,
)

# ---- SparseLoCo ----------------------------------------------------------------------------------------------------


def state(found: SimulatedCluster, rank: int, slot: str) -> Tensor:
    return torch.cat(found.state(rank, slot))


@pytest.mark.parametrize("lr", [1.0, 0.7])
def test_sending_everything_is_diloco_with_sgd_outside(lr: float) -> None:
    ours = trained("sparseloco", 3, 13, period=4, k=16, chunk=16, value_bits=32, outer_lr=lr)
    other = trained("diloco", 3, 13, period=4, outer="sgd", outer_lr=lr, outer_momentum=0.0)
    close(ours, other, atol=1e-6)  # values travel as float32


@pytest.mark.parametrize("bits", [2, 32])
def test_sent_and_kept_add_up(bits: int) -> None:
    """sent + e_new = b e_old + D on every rank, where the mean of what was sent is the anchor's move."""
    ours = cluster("sparseloco-sgd", 3, period=2, k=3, chunk=16, value_bits=bits, error_decay=0.9)
    for step in range(0, 10, 2):
        advance(ours, step, step + 1)
        old = [state(ours, r, "compression_error").clone() for r in range(3)]
        anchor = state(ours, 0, "anchor").clone()
        x = [point(ours, r) - RATE * gradient(point(ours, r), step + 1, r) for r in range(3)]
        advance(ours, step + 1, step + 2)
        went = [0.9 * old[r] + (anchor - x[r]) - state(ours, r, "compression_error") for r in range(3)]
        moved = torch.stack(went).mean(0)
        torch.testing.assert_close(anchor - point(ours), moved, rtol=0, atol=1e-6)
        for own in went:
            assert (own.abs() > 1e-6).sum() <= 4 + 8  # 20 elements: 3 + 1; 40 elements: 3 + 3 + 2
    assert state(ours, 1, "compression_error").abs().max() > 1e-3


def test_the_mean_is_over_all_workers_where_few_sent() -> None:
    """Two of four workers send place 0: 1 / 4 of their sum."""
    ours = SimulatedCluster(
        "sparseloco-sgd", [torch.zeros(8)], 4, lr=1.0, period=1, k=1, chunk=8, value_bits=32
    )
    grads = torch.zeros(4, 8)
    grads[0, 0], grads[1, 0], grads[2, 5], grads[3, 6] = 3.0, 1.0, 1.0, 1.0
    ours.step([[g] for g in grads])
    assert (-ours.parameters(0)[0]).tolist() == [1.0, 0, 0, 0, 0, 0.25, 0.25, 0]


@pytest.mark.parametrize("n", [2, 5])
def test_sparseloco_sends_14_bits_a_value(n: int) -> None:
    d = 3 * 4096
    ours = SimulatedCluster("sparseloco", [torch.zeros(d)], n, lr=0.1, period=2)
    for step in range(4):
        ours.step(
            [[torch.randn(d, generator=torch.Generator().manual_seed(10 * step + r))] for r in range(n)]
        )
    for step in range(4):
        bits = 8 * sum(sent(ours, step).values()) / (n - 1)
        assert bits == (3 * 64 * 14 + 16 * 8 if step % 2 else 0)
    fp32 = 32 * d
    assert fp32 / (3 * 64 * 14) == pytest.approx(146.3, abs=0.05)


# ---- DeMo ----------------------------------------------------------------------------------------------------------


def test_sending_all_coefficients_is_sign_descent_on_the_mean() -> None:
    """k = a whole block: nothing stays in the momentum, so x <- x - lr sign(mean g)."""
    ours = cluster("demo", 3, side=64, k=4096)
    x = start()
    for step in range(10):
        mean = torch.stack([gradient(x, step, r) for r in range(3)]).mean(0)
        assert mean.abs().min() > 1e-4  # far from where rounding could turn a sign
        x = x - RATE * mean.sign()
        advance(ours, step, step + 1)
        torch.testing.assert_close(point(ours), x, rtol=0, atol=1e-12)
    assert state(ours, 0, "momentum").abs().max() < 1e-6


def test_what_is_sent_leaves_the_momentum() -> None:
    """d_new = b d_old + lr g - decoded; of a block at most k coefficients go, and the largest."""
    ours = SimulatedCluster("demo", [torch.zeros(8, 8)], 2, lr=0.1, side=8, k=4, decay=0.9)
    generator = torch.Generator().manual_seed(0)
    kept = [torch.zeros(64), torch.zeros(64)]
    for _ in range(6):
        grads = torch.randn(2, 8, 8, generator=generator)
        ours.step([[g] for g in grads])
        for rank in range(2):
            before = 0.9 * kept[rank] + 0.1 * grads[rank].view(-1)
            kept[rank] = state(ours, rank, "momentum").clone()
            went = before - kept[rank]
            assert went.norm() > 0
            assert kept[rank].norm() ** 2 <= (1 - 4 / 64) * before.norm() ** 2 + 1e-9
            assert float(went @ kept[rank]) == pytest.approx(0, abs=1e-5)  # orthogonal parts
    assert not torch.equal(kept[0], kept[1])


def test_a_coefficient_of_one_sender_is_its_own() -> None:
    """Two workers whose gradients are one cosine each: both in full, so that nothing stays."""
    waves = dct_matrix(4)[:2]
    ours = SimulatedCluster("demo", [torch.zeros(4)], 2, lr=1.0, side=4, k=1)
    ours.step([[waves[0].clone()], [waves[1].clone()]])
    assert torch.equal(ours.parameters(1)[0], -(waves[0] + waves[1]).sign())
    assert max(float(state(ours, rank, "momentum").abs().max()) for rank in range(2)) < 1e-6


@pytest.mark.parametrize("n", [2, 4])
def test_demo_sends_44_bits_a_coefficient_every_step(n: int) -> None:
    ours = SimulatedCluster("demo", [torch.zeros(128, 192)], n, lr=0.1)
    for step in range(3):
        ours.step(
            [
                [torch.randn(128, 192, generator=torch.Generator().manual_seed(10 * step + r))]
                for r in range(n)
            ]
        )
        assert sent(ours, step) == {"coefficients": (n - 1) * 6 * 32 * 44 / 8}


def test_weight_decay_is_decoupled() -> None:
    ours = SimulatedCluster("demo", [torch.full((4,), 2.0)], 2, lr=0.1, weight_decay=0.5)
    ours.step([[torch.tensor([1.0, -1.0, 2.0, -3.0])]] * 2)
    expected = 2.0 * (1 - 0.05) - 0.1 * torch.tensor([1.0, -1.0, 1.0, -1.0])
    torch.testing.assert_close(ours.parameters(0)[0], expected)
