"""Muon and Dion2 as local optimizers, and MuLoCo: what Newton-Schulz does to singular values, who gets it, coded rounds."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from reference_impls import SimulatedCluster, create
from reference_impls.core.errors import UnsupportedError
from reference_impls.core.optimizers import Dion2, Muon, local_optimizer
from reference_impls.core.registry import Method
from reference_impls.frontends.sharded import _refuse_whole
from tests.reference_impls.averages import by_adamw, normals, point
from tests.reference_impls.local_training import sent
from tests.support import each

SHAPES = {"tall": (12, 5), "wide": (4, 9), "bias": (7,), "head.weight": (6, 6)}
RATE, DECAY = 0.05, 0.3


def draw(step: int, rank: int = 0) -> list[Tensor]:
    return normals(SHAPES.values(), 100 * step + rank, torch.float64)


def cluster(algorithm: str | Method, size: int, **options: Any) -> SimulatedCluster:
    """Buckets so small that each parameter is one."""
    names = list(SHAPES)
    return SimulatedCluster(algorithm, draw(99), size, lr=RATE, names=names, bucket_bytes=64, **options)


def advance(own: SimulatedCluster, first: int, last: int) -> None:
    """Gradients that pull to a drawn point."""
    for step in range(first, last):
        own.step(
            [
                [p - x for p, x in zip(own.parameters(rank), draw(step, rank), strict=True)]
                for rank in range(own.world_size)
            ]
        )


# ---- the optimizer written out ---------------------------------------------------------------------------------------------


def orthogonalised(m: Tensor) -> Tensor:
    """Five times s <- 3.4445 s - 4.775 s^3 + 2.0315 s^5 on the singular values of m over its norm."""
    u, s, v = torch.linalg.svd(m, full_matrices=False)
    s = s / s.square().sum().sqrt()
    for _ in range(5):
        s = 3.4445 * s - 4.775 * s**3 + 2.0315 * s**5
    return u @ torch.diag(s) @ v


@each("nesterov", [True, False])
@each("adjust", ["match_rms_adamw", "original"])
def test_all_reduced_muon_written_out(adjust: str, nesterov: bool) -> None:
    """Matrices by singular values, to bfloat16; the rest and the output layer by AdamW, to the last bits. Three workers."""
    ours = cluster("allreduce-muon", 3, adjust_lr_fn=adjust, nesterov=nesterov, weight_decay=DECAY)
    x = draw(99)
    b, v = ([torch.zeros_like(p) for p in x] for _ in range(2))
    for step in range(1, 5):
        grads = [draw(step, rank) for rank in range(3)]
        ours.step(grads)
        for i, (name, shape) in enumerate(SHAPES.items()):
            g = (grads[0][i] + grads[1][i] + grads[2][i]) / 3
            before, x[i] = x[i] * (1 - RATE * DECAY), ours.parameters(1)[i].clone()
            if name in ("tall", "wide"):
                b[i] = 0.95 * b[i] + 0.05 * g
                larger, ratio = max(shape), shape[0] / shape[1]
                scale = 0.2 * larger**0.5 if adjust == "match_rms_adamw" else max(1, ratio) ** 0.5
                wanted = orthogonalised(0.95 * b[i] + 0.05 * g if nesterov else b[i])
                moved = (before - x[i]) / (RATE * scale)
                assert torch.dist(moved, wanted) < 0.04 * wanted.norm()
            else:
                b[i], v[i], step_ = by_adamw(b[i], v[i], g, step, 0.999)
                torch.testing.assert_close(x[i], before - RATE * step_, rtol=0, atol=1e-12)
    for i in (0, 1):  # Newton-Schulz, in place, has not reached the average
        torch.testing.assert_close(state(ours)[i]["momentum_buffer"], b[i], rtol=0, atol=1e-15)


def state(own: SimulatedCluster) -> list[dict[str, Any]]:
    """What the local optimizer of rank 0 keeps, by parameter."""
    optimizer = own._workers[0].optimizer
    return [optimizer.state[p] for p in optimizer.param_groups[0]["params"]]


# ---- Dion2: what is not chosen, special cases ------------------------------------------------------------------------------

MU = 0.8


@each("fraction", [0.25, 0.5, 1.0])
def test_all_reduced_dion2_written_out(fraction: float) -> None:
    """Moves by singular values, to bfloat16; the momentum and what is not chosen to the last bits. Three workers."""
    ours = cluster("allreduce-dion2", 3, submatrix_fraction=fraction, ef_decay=MU, weight_decay=DECAY)
    x = draw(99)
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
                b[i], v[i], step_ = by_adamw(b[i], v[i], g, step, 0.95)
                torch.testing.assert_close(x[i], before - RATE * step_, rtol=0, atol=1e-12)
    for i in (0, 1):
        torch.testing.assert_close(state(ours)[i]["momentum_buffer"], b[i], rtol=0, atol=1e-14)


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


# ---- who gets it -----------------------------------------------------------------------------------------------------------


def by_muon(params: dict[str, Tensor], **options: Any) -> set[str]:
    """Names of the parameters that Muon has stepped."""
    for p in params.values():
        p.grad = torch.ones_like(p)
    optimizer = Muon(params.items(), **options)
    optimizer.step()
    return {name for name, p in params.items() if "momentum_buffer" in optimizer.state[p]}


def test_matrices_that_are_no_table_and_no_output_layer_get_muon() -> None:
    hidden = ("h.0.attn.c_attn.weight", "multihead.weight", "attn.out_proj.weight", "mlp.fc_in", "embedder")
    others = (
        "bytes", "positions", "head.weight", "lm_head.weight", "transformer.wte.weight", "wpe", "model.embed_tokens.weight",
        "tok_embeddings.weight", "token_embedding.weight", "table",
    )  # fmt: skip
    matrices = {name: torch.zeros(3, 2) for name in (*hidden, *others)}
    assert by_muon({**matrices, "bias": torch.zeros(3), "kernel": torch.zeros(2, 2, 3, 3)}) == {*hidden}
    assert by_muon(matrices, adamw_for=["fc"]) == {*hidden, *others} - {"mlp.fc_in"}
    assert by_muon(matrices, adamw_for=()) == {*hidden, *others}


@each("optimizer", ["muon", "dion2"])
def test_parameters_without_names_are_refused(optimizer: str) -> None:
    with pytest.raises(
        UnsupportedError, match=rf"^{optimizer} knows tables .* give \(name, parameter\) pairs"
    ):
        local_optimizer(optimizer).build([{"params": [torch.zeros(2, 2)]}])


# ---- MuLoCo ----------------------------------------------------------------------------------------------------------------


def coded(e: Tensor, bits: int, levels: str) -> Tensor:
    """What a worker's message of one tensor says, element by element."""
    x, count = e.flatten().float(), 2**bits
    if levels == "linear":
        step = (x.max() - x.min()) / (count - 1)
        return (x.min() + ((x - x.min()) / step + 0.5).floor() * step).view(e.shape).double()
    width = 6 * (x.double().std() if len(x) > 1 else 0.0) / count
    places = ((x - x.mean()) / (width or 1.0) + count / 2).round().clamp(0, count - 1)
    out = torch.empty_like(x)
    for place in places.unique():
        out[places == place] = x[places == place].mean()
    return out.view(e.shape).double()


@each(
    ("name", "levels"),
    [("muloco-4bit", "statistical"), ("muloco-2bit", "statistical"), ("muloco-4bit", "linear")],
)
def test_coded_rounds_written_out(name: str, levels: str) -> None:
    """e <- 0.9 e + (A - x), sent = q(e), e <- e - sent, tensor by tensor; the outer step along the mean of what was sent."""
    ours, bits = cluster(name, 3, period=2, levels=levels), int(name[-4])
    own = [dict(zip(SHAPES, draw(99), strict=True)) for _ in range(3)]
    alone = [Muon(params.items(), lr=RATE) for params in own]
    anchor = draw(99)
    errors = [[torch.zeros_like(a) for a in anchor] for _ in range(3)]
    u = [torch.zeros_like(a) for a in anchor]
    for step in range(8):
        for rank, optimizer in enumerate(alone):
            for p, x in zip(own[rank].values(), draw(step, rank), strict=True):
                p.grad = p - x
            optimizer.step()
        if step % 2:
            for i in range(len(SHAPES)):
                went = []
                for rank in range(3):
                    e = 0.9 * errors[rank][i] + (anchor[i] - list(own[rank].values())[i])
                    went.append(coded(e, bits, levels))
                    errors[rank][i] = e - went[-1]
                d = torch.stack(went).mean(0)
                u[i] = 0.6 * u[i] + d
                anchor[i] = anchor[i] - 0.7 * (d + 0.6 * u[i])
                for rank in range(3):
                    list(own[rank].values())[i].copy_(anchor[i])
        advance(ours, step, step + 1)
        for rank, params in enumerate(own):
            wanted = torch.cat([p.flatten() for p in params.values()])
            torch.testing.assert_close(point(ours, rank), wanted, rtol=0, atol=2e-6)
    sizes = [math.prod(shape) for shape in SHAPES.values()]
    table = 8 if levels == "linear" else 4 * 2**bits
    assert sent(ours, 7) == {"progress": 2 * sum(-(-size * bits // 8) + table for size in sizes)}


@each(("name", "optimizer"), [("muloco", "muon"), ("allreduce-muon", "muon"), ("allreduce-dion2", "dion2")])
def test_parts_of_matrices_are_refused(name: str, optimizer: str) -> None:
    with pytest.raises(UnsupportedError, match=f"^{name} steps {optimizer} on whole matrices"):
        _refuse_whole(create(name))
