"""Dion written out, what is no thin matrix, and numbers of any kind."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from reference_impls import SimulatedCluster, create
from reference_impls.core.compute import Key
from reference_impls.core.errors import UnsupportedError
from tests.reference_impls.averages import by_adamw, normal, normals
from tests.support import each

SHAPES = {
    "tall": (24, 10),
    "wide": (8, 30),
    "square": (8, 8),
    "narrow": (12, 1),
    "bias": (7,),
    "kernel": (2, 3, 4),
    "head.weight": (6, 16),
}
"""At a fraction of 0.4, factors of `square` and `narrow` would be no smaller than they are."""
THIN = {"tall": 4, "wide": 4}
FULL = {"square": 4, "narrow": 1}
FRACTION, RATE, DECAY, MU = 0.4, 0.05, 0.3, 0.9


def draw(step: int, rank: int = 0) -> list[Tensor]:
    return normals(SHAPES.values(), 100 * step + rank, torch.float64)


def cluster(size: int, **options: Any) -> SimulatedCluster:
    """Buckets of some parameters each."""
    given = {
        "rank_fraction": FRACTION,
        "momentum": MU,
        "weight_decay": DECAY,
        "bucket_bytes": 2000,
        **options,
    }
    return SimulatedCluster("dion", draw(99), size, lr=RATE, names=list(SHAPES), **given)


def matrices(
    size: int, *shapes: tuple[int, ...], dtype: torch.dtype = torch.float64, **options: Any
) -> SimulatedCluster:
    start = [torch.zeros(shape, dtype=dtype) for shape in shapes]
    return SimulatedCluster("dion", start, size, lr=1.0, weight_decay=0.0, **options)


def slot(own: SimulatedCluster, rank: int, name: str) -> dict[str, Tensor]:
    """State per tensor of a rank, over all buckets."""
    return {key: value for part in own.state(rank, name) for key, value in part.items()}


def upright(x: Tensor) -> Tensor:
    return x if x.shape[0] >= x.shape[1] else x.T


# ---- the method written out ------------------------------------------------------------------------------------------------


def columns_made_orthonormal(p: Tensor) -> Tensor:
    """Modified Gram-Schmidt, column by column."""
    found: list[Tensor] = []
    for column in p.T:
        for _ in range(2):
            for other in found:
                column = column - other * (other @ column)
        found.append(column / column.norm())
    return torch.stack(found, dim=1)


def first_q(name: str, b: int, r: int) -> Tensor:
    """[b, r], the columns one after another in the parameter's stream."""
    stream = Key.of(seed=0, step=0, stage="factors-r", name=name).uniform(r * b)
    return (2 * stream - 1).double().view(r, b).T


@each("fraction", [FRACTION, 1.0])
def test_dion_written_out(fraction: float) -> None:
    """Three workers, by the box: momenta a worker for what is thin, of the mean gradient for other matrices, else AdamW."""
    ours, x = cluster(3, rank_fraction=fraction), draw(99)
    memory = [[torch.zeros_like(p) for p in x] for _ in range(3)]
    m, v = ([torch.zeros_like(p) for p in x] for _ in range(2))
    q: dict[str, Tensor] = {}
    for step in range(1, 6):
        grads = [draw(step, rank) for rank in range(3)]
        ours.step(grads)
        for i, (name, shape) in enumerate(SHAPES.items()):
            g = (grads[0][i] + grads[1][i] + grads[2][i]) / 3
            if name in ("tall", "wide", "square", "narrow"):
                r = math.ceil(fraction * min(shape))
                thin = name in THIN and fraction < 1
                for rank in range(3):
                    memory[rank][i] = memory[rank][i] + (grads[rank][i] if thin else g)
                own = [upright(memory[rank][i]) for rank in range(3)]
                wide = shape[0] < shape[1]
                start = q.get(name, first_q(name, min(shape), r))
                p = columns_made_orthonormal(torch.stack([b @ start for b in own]).mean(0))
                back = torch.stack([b.T @ p for b in own]).mean(0)
                for rank in range(3):
                    left = own[rank] - (1 - MU) * p @ back.T
                    memory[rank][i] = left.T if wide else left
                q[name] = back / (back.norm(dim=0) + 1e-8)
                direction = math.sqrt(shape[0] / shape[1]) * (q[name] @ p.T if wide else p @ q[name].T)
            else:
                m[i], v[i], direction = by_adamw(m[i], v[i], g, step, 0.95)
            x[i] = x[i] * (1 - RATE * DECAY) - RATE * direction
            for rank in range(3):
                torch.testing.assert_close(ours.parameters(rank)[i], x[i], rtol=0, atol=1e-11)
    for rank in range(3):
        kept = {**slot(ours, rank, "momentum"), **slot(ours, rank, "mean_momentum")}
        assert set(slot(ours, rank, "momentum")) == (set(THIN) if fraction < 1 else set())
        assert set(kept) == {*THIN, *FULL}
        for name, value in kept.items():
            torch.testing.assert_close(value, memory[rank][list(SHAPES).index(name)], rtol=0, atol=1e-11)
    for name, value in slot(ours, 1, "q").items():
        torch.testing.assert_close(value.T.abs(), q[name].abs(), rtol=0, atol=1e-11)  # signs are those of P


# ---- error feedback ------------------------------------------------------------------------------------------------------


def test_a_matrix_of_zeros_stays_and_is_followed_when_it_moves() -> None:
    ours = matrices(2, (20, 12), rank_fraction=0.25)
    zero = torch.zeros(20, 12, dtype=torch.float64)
    for _ in range(2):
        ours.step([[zero], [zero]])
        assert torch.equal(ours.parameters(1)[0], zero)
    a, b = torch.linspace(1, 2, 20).double(), torch.linspace(-1, 1, 12).double()
    ours.step([[torch.outer(a, b)], [torch.outer(a, b)]])
    # of rank 1, as is what is captured: both ways unit vectors, the other two columns are noise and dropped
    expected = -math.sqrt(20 / 12) * torch.outer(a / a.norm(), b / b.norm())
    torch.testing.assert_close(ours.parameters(0)[0], expected, rtol=0, atol=1e-7)
    assert [bool(row.any()) for row in slot(ours, 0, "q")["0"]] == [True, False, False]
    ours.step([[normal(20, 12, seed=rank).double()] for rank in (1, 2)])
    assert all(bool(row.any()) for row in slot(ours, 0, "q")["0"]), (
        "columns of Q that were dropped are drawn anew"
    )


# ---- who is a hidden matrix, and numbers of any kind -----------------------------------------------------------------------


def test_words_in_names_say_what_adamw_steps() -> None:
    assert set(slot(cluster(2, adamw_for=["wide"]), 0, "q")) == {"tall", "square", "narrow", "head.weight"}
    assert set(slot(cluster(2), 0, "q")) == {*THIN, *FULL}


def test_a_group_has_no_words_of_its_own() -> None:
    method = create("dion")
    own = {"params": [torch.nn.Parameter(torch.zeros(16, 16))], **method.group(lr=0.1, adamw_for=("w",))}
    with pytest.raises(UnsupportedError, match="in all groups"):
        method.algorithm.inner_optimizer([own])


def test_any_magnitude_is_followed() -> None:
    """Squares neither over- nor underflow; what is far below eps hardly moves, as its norm + eps says."""
    gradient = normal(20, 12)
    moves = []
    for scale in (1e-20, 1.0, 1e30):
        ours = matrices(2, (20, 12), dtype=torch.float32, rank_fraction=0.25)
        for _ in range(4):
            ours.step([[scale * gradient]] * 2)
        moves.append(ours.parameters(0)[0].double())
        assert moves[-1].isfinite().all()
        assert torch.equal(ours.parameters(0)[0], ours.parameters(1)[0])
    assert moves[0].norm() < 1e-9
    assert torch.dist(moves[1], moves[2]) < 1e-4 * moves[1].norm()
    assert moves[1].norm() > 1
