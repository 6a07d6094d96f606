"""DeMo: what is sent and what is kept, special cases, bytes."""

from __future__ import annotations

import pytest
import torch

from reference_impls import SimulatedCluster
from reference_impls.compressors.transforms import dct_matrix
from tests.reference_impls.averages import held, normal
from tests.reference_impls.local_training import RATE, advance, cluster, gradient, noise, point, sent, start


def test_sending_all_coefficients_is_sign_descent_on_the_mean() -> None:
    """k = a whole block: nothing stays in the momentum, so x <- (1 - lr decay) x - lr sign(mean g)."""
    ours = cluster("demo", 3, side=64, k=4096, weight_decay=0.5)
    x = start()
    for step in range(10):
        mean = torch.stack([gradient(x, step, r) for r in range(3)]).mean(0)
        assert mean.abs().min() > 1e-4  # far from where rounding could turn a sign
        x = x * (1 - RATE * 0.5) - RATE * mean.sign()
        advance(ours, step, step + 1)
        torch.testing.assert_close(point(ours), x, rtol=0, atol=1e-12)
    assert held(ours, "momentum").abs().max() < 1e-6


def test_what_is_sent_leaves_the_momentum() -> None:
    """d_new = b d_old + lr g - decoded; of a block at most k coefficients go, and the largest."""
    ours = SimulatedCluster("demo", [torch.zeros(8, 8)], 2, lr=0.1, side=8, k=4, decay=0.9)
    kept = [torch.zeros(64), torch.zeros(64)]
    for step in range(6):
        grads = normal(2, 8, 8, seed=step)
        ours.step([[g] for g in grads])
        for rank in range(2):
            before = 0.9 * kept[rank] + 0.1 * grads[rank].view(-1)
            kept[rank] = held(ours, "momentum")[rank]
            went = before - kept[rank]
            assert went.norm() > 0
            assert kept[rank].norm() ** 2 <= (1 - 4 / 64) * before.norm() ** 2 + 1e-9
            assert float(went @ kept[rank]) == pytest.approx(0, abs=1e-5)  # orthogonal parts
    assert not torch.equal(kept[0], kept[1])


def test_a_coefficient_is_averaged_over_its_senders() -> None:
    """Two workers send one cosine, one another: its signs at the end would be those of the first if the mean were over all."""
    waves = dct_matrix(4)[:2] * torch.tensor([[1.2], [1.5]])
    ours = SimulatedCluster("demo", [torch.zeros(4)], 3, lr=1.0, side=4, k=1)
    ours.step([[waves[0].clone()], [waves[0].clone()], [waves[1].clone()]])
    assert not torch.equal((waves[0] + waves[1]).sign(), (2 * waves[0] + waves[1]).sign())
    assert torch.equal(ours.parameters(1)[0], -(waves[0] + waves[1]).sign())
    assert float(held(ours, "momentum").abs().max()) < 1e-6  # nothing stays


@pytest.mark.parametrize("n", [2, 4])
def test_demo_sends_44_bits_a_coefficient_every_step(n: int) -> None:
    ours = SimulatedCluster("demo", [torch.zeros(128, 192)], n, lr=0.1)
    for step in range(3):
        ours.step([[noise(step, r, 128 * 192).float().view(128, 192)] for r in range(n)])
        assert sent(ours, step) == {"coefficients": (n - 1) * 6 * 32 * 44 / 8}
