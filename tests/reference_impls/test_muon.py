"""Muon as a local optimizer, and MuLoCo: what Newton-Schulz does to singular values, who gets it, coded rounds written out."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from reference_impls import SimulatedCluster, create
from reference_impls.algorithms.four_bit import SDP4Bit
from reference_impls.core.errors import UnsupportedError
from reference_impls.core.optimizers import ByName, Dion2, Muon, local_optimizer
from reference_impls.core.registry import Method
from reference_impls.frontends.attached import takes_any_optimizer
from reference_impls.frontends.sharded import _refuse_whole
from suite.workloads.code import GPT
from tests.reference_impls.local_training import sent
from tests.reference_impls.table import FIRST
from tests.support import each

SHAPES = {"tall": (12, 5), "wide": (4, 9), "bias": (7,), "head.weight": (6, 6)}
RATE, DECAY = 0.05, 0.3


def draw(step: int, rank: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(100 * step + rank)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in SHAPES.values()]


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


def flat(own: SimulatedCluster, rank: int = 0) -> Tensor:
    return torch.cat([p.flatten() for p in own.parameters(rank)])


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
                b[i] = 0.9 * b[i] + 0.1 * g
                v[i] = 0.999 * v[i] + 0.001 * g * g
                step_ = b[i] / (1 - 0.9**step) / ((v[i] / (1 - 0.999**step)).sqrt() + 1e-8)
                torch.testing.assert_close(x[i], before - RATE * step_, rtol=0, atol=1e-12)
    for i in (0, 1):  # Newton-Schulz, in place, has not reached the average
        torch.testing.assert_close(state(ours)[i]["momentum_buffer"], b[i], rtol=0, atol=1e-15)


def state(own: SimulatedCluster) -> list[dict[str, Any]]:
    """What the local optimizer of rank 0 keeps, by parameter."""
    optimizer = own._workers[0].optimizer
    return [optimizer.state[p] for p in optimizer.param_groups[0]["params"]]


@each("own", [Muon, Dion2])
def test_a_rate_that_nobody_may_read_gives_the_step_of_the_number(own: type[ByName]) -> None:
    """Two steps on the same gradients, matrices of both shapes and what AdamW has; one has no gradient, and stays."""
    by_number, by_tensor = (
        {name: p.float() for name, p in zip(SHAPES, draw(9), strict=True)} for _ in range(2)
    )
    still = torch.ones(3, 2)
    for params, rate in ((by_number, RATE), (by_tensor, torch.tensor(RATE))):
        optimizer = own([*params.items(), ("still", still)], weight_decay=DECAY)
        optimizer.param_groups[0]["lr"] = rate
        for step in range(2):
            for p, found in zip(params.values(), draw(step), strict=True):
                p.grad = found.float()
            optimizer.step()
    for name, p in by_number.items():
        assert not torch.equal(p, draw(9)[list(SHAPES).index(name)].float())
        torch.testing.assert_close(by_tensor[name], p, rtol=1e-5, atol=1e-6)
    assert torch.equal(still, torch.ones(3, 2))


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


def test_of_the_gpt_that_ships_the_blocks_get_muon() -> None:
    params = {name: torch.zeros(p.shape) for name, p in GPT(2, 8).named_parameters()}
    assert len(by_muon(params)) == 2 * 4
    assert by_muon(params) == {n for n, p in params.items() if p.dim() == 2 and n.startswith("blocks.")}


def of_matrices() -> dict[str, Method]:
    """One configured method of every class that has a local optimizer, with Muon, or Dion2, in its place; not where ranks own
    pieces."""
    found = {}
    for row in FIRST:
        own = create(row.algorithm, **row.options).algorithm
        if takes_any_optimizer(own) and not isinstance(own, SDP4Bit):
            for optimizer in ("muon", "dion2"):
                algorithm = replace(own, optimizer=optimizer)
                method = Method(row.algorithm, algorithm, algorithm.hyperparameters())
                found[f"{type(own).__name__}-{optimizer}"] = method
    return found


OF_MATRICES = of_matrices()


@each("name", OF_MATRICES)
def test_every_method_with_a_local_optimizer_takes_it(name: str) -> None:
    ours = cluster(OF_MATRICES[name], 2)
    ours.observe(loss=1.0, accuracy=0.0)
    advance(ours, 0, 2)
    assert ["momentum_buffer" in kept for kept in state(ours)] == [True, True, False, False]
    assert flat(ours).isfinite().all()


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
            torch.testing.assert_close(flat(ours, rank), wanted, rtol=0, atol=2e-6)
    sizes = [math.prod(shape) for shape in SHAPES.values()]
    table = 8 if levels == "linear" else 4 * 2**bits
    assert sent(ours, 7) == {"progress": 2 * sum(-(-size * bits // 8) + table for size in sizes)}


@each(("name", "optimizer"), [("muloco", "muon"), ("allreduce-muon", "muon"), ("allreduce-dion2", "dion2")])
def test_parts_of_matrices_are_refused(name: str, optimizer: str) -> None:
    with pytest.raises(UnsupportedError, match=f"^{name} steps {optimizer} on whole matrices"):
        _refuse_whole(create(name))
