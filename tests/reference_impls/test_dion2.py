"""Dion2 as a local optimizer: written out, as Muon where all rows are chosen, what is not chosen, special cases."""

from __future__ import annotations

import math
from typing import Any

import torch

from reference_impls import SimulatedCluster
from reference_impls.core.optimizers import Dion2
from tests.reference_impls.test_muon import DECAY, RATE, SHAPES, draw, orthogonalised, state
from tests.support import each

MU = 0.8


def cluster(size: int, **options: Any) -> SimulatedCluster:
    """Buckets so small that each parameter is one."""
    given = {"ef_decay": MU, "weight_decay": DECAY, **options}
    return SimulatedCluster(
        "allreduce-dion2", draw(99), size, lr=RATE, names=list(SHAPES), bucket_bytes=64, **given
    )


@each("fraction", [0.25, 0.5, 1.0])
def test_all_reduced_dion2_written_out(fraction: float) -> None:
    """Moves by singular values, to bfloat16; the momentum and what is not chosen to the last bits. Three workers."""
    ours, x = cluster(3, submatrix_fraction=fraction), draw(99)
    b, v = ([torch.zeros_like(p) for p in x] for _ in range(2))
    for step in range(1, 6):
        grads = [draw(step, rank) for rank in range(3)]
        ours.step(grads)
        for i, (name, shape) in enumerate(SHAPES.items()):
            g = (grads[0][i] + grads[1][i] + grads[2][i]) / 3
            before, x[i] = x[i] * (1 - RATE * DECAY), ours.parameters(1)[i].clone()
            if name in ("tall", "wide"):
                b[i] = b[i] + g
                # along the shorter side: rows of what is wide, columns of what is tall
                lines, was, now = (t if shape[0] <= shape[1] else t.T for t in (b[i], before, x[i]))
                norms = [float(line.abs().sum()) for line in lines]
                count = math.ceil(fraction * min(shape))
                chosen = sorted(range(len(norms)), key=lambda at: -norms[at])[:count]
                others = [at for at in range(len(norms)) if at not in chosen]
                wanted = orthogonalised(lines[chosen])
                moved = (was - now)[chosen] / (RATE * math.sqrt(shape[0] / shape[1]))
                assert torch.dist(moved, wanted) < 0.08 * wanted.norm()
                assert torch.equal(now[others], was[others]), "decay only"
                lines[chosen] *= MU
                assert len(others) == len(norms) - count
            else:
                b[i] = 0.9 * b[i] + 0.1 * g
                v[i] = 0.95 * v[i] + 0.05 * g * g
                step_ = b[i] / (1 - 0.9**step) / ((v[i] / (1 - 0.95**step)).sqrt() + 1e-8)
                torch.testing.assert_close(x[i], before - RATE * step_, rtol=0, atol=1e-12)
    for i in (0, 1):
        torch.testing.assert_close(state(ours)[i]["momentum_buffer"], b[i], rtol=0, atol=1e-14)


def test_of_all_rows_it_is_muon_without_nesterov() -> None:
    """B <- mu B + g at mu = 1/2, where torch's mean of gradients is B / 2, and so is M after a step."""
    shapes = {"tall": (12, 5), "wide": (4, 9)}
    params = {name: torch.ones(shape, dtype=torch.float64) for name, shape in shapes.items()}
    ours = SimulatedCluster(
        "allreduce-dion2", list(params.values()), 2, lr=RATE, names=list(params),
        submatrix_fraction=1.0, ef_decay=0.5, weight_decay=0.0,
    )  # fmt: skip
    for p in params.values():
        p.grad = torch.zeros_like(p)
    muon = [
        torch.optim.Muon([p], lr=RATE * math.sqrt(p.shape[0] / p.shape[1]) / math.sqrt(max(1, p.shape[0] / p.shape[1])),
                         weight_decay=0.0, momentum=0.5, nesterov=False)
        for p in params.values()
    ]  # fmt: skip
    for step in range(1, 8):
        grads = draw(step)[:2]
        ours.step([grads, grads])
        for p, g, own in zip(params.values(), grads, muon, strict=True):
            p.grad = g.clone()
            own.step()  # type: ignore[no-untyped-call]
    for i, (p, own) in enumerate(zip(params.values(), muon, strict=True)):
        torch.testing.assert_close(ours.parameters(1)[i], p, rtol=0, atol=1e-12)
        kept = own.state[p]["momentum_buffer"]  # (1 - mu) B, which is mu B
        torch.testing.assert_close(state(ours)[i]["momentum_buffer"], kept, rtol=0, atol=1e-12)


def test_of_equal_norms_the_first_are_taken_and_what_is_not_a_number_is_largest() -> None:
    for broken, chosen in ((None, [0, 1]), (3, [0, 3])):
        x = torch.zeros(4, 6)
        x.grad = torch.ones(4, 6) * torch.tensor([[1.0], [-1.0], [1.0], [1.0]])
        if broken is not None:
            x.grad[broken, 2] = torch.nan
        Dion2([("w", x)], submatrix_fraction=0.5).step()
        assert x.ne(0).any(1).nonzero().flatten().tolist() == chosen
        assert bool(x[chosen].isnan().all()) == (broken is not None)


def test_a_gradient_of_zeros_leaves_decay_alone() -> None:
    x = torch.ones(4, 6)
    x.grad = torch.zeros(4, 6)
    Dion2([("w", x)], lr=0.5, weight_decay=0.1).step()
    torch.testing.assert_close(x, torch.full((4, 6), 0.95))


def test_in_bfloat16_the_momentum_is_not_normalised() -> None:
    x, g = torch.zeros(4, 6, dtype=torch.bfloat16), torch.arange(24.0).view(4, 6).bfloat16()
    x.grad = g.clone()
    optimizer = Dion2([("w", x)], submatrix_fraction=0.5, ef_decay=0.5)
    optimizer.step()
    assert torch.equal(optimizer.state[x]["momentum_buffer"], torch.cat([g[:2], g[2:] / 2]))
    assert torch.equal(x.grad, g)
