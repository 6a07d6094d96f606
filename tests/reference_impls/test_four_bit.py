"""SDP4Bit and LoCo against their formulas in float64: codes of pieces, masters that owners keep, errors in 8 bits."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from reference_impls import SimulatedCluster
from tests.reference_impls.averages import hadamard, normal, point
from tests.support import each

SIZES = (50, 91, 3)
D, WORKERS, LR, MOMENTUM = sum(SIZES), 3, 0.1, 0.9
PIECE = 48  # of 144 elements on 3 ranks


# ---- the formulas ------------------------------------------------------------------------------------------------------------


def coded(x: Tensor, levels: int, block: int) -> Tensor:
    """What codes of -levels to levels decode to: the nearest of them times |max| / levels of each block."""
    parts = []
    for part in x.double().split(block):
        top = part.abs().max()
        z = part.abs() / (top if top > 0 else 1.0) * levels
        parts.append(torch.ceil(z - 0.5) * part.sign() * top / levels)  # half a level goes towards 0
    return torch.cat(parts)


def rotated_code(x: Tensor, size: int, block: int) -> Tensor:
    """H of chunks, the last one filled up to a power of two; coded; H again, by the length of each chunk."""
    chunks = [part.double() for part in x.split(size)]
    padded = [torch.cat([c, c.new_zeros(2 ** math.ceil(math.log2(len(c))) - len(c))]) for c in chunks]
    turned = torch.cat([hadamard(len(c)) @ c for c in padded])
    found = coded(turned, 7, block).split([len(c) for c in padded])
    return torch.cat(
        [(hadamard(len(c)) @ c / len(c))[: len(own)] for c, own in zip(found, chunks, strict=True)]
    )


def pieces(x: Tensor) -> list[Tensor]:
    return list(x.split(PIECE))


def gradients(step: int, scale: float = 1.0) -> Tensor:
    """[WORKERS, D]: every rank its own, with tensors of unequal size."""
    rows = normal(WORKERS, D, seed=100 + step) + torch.linspace(-1, 1, D)
    rows[:, SIZES[0] : SIZES[0] + SIZES[1]] *= 0.05
    return rows * scale


def cluster(name: str, **options: Any) -> SimulatedCluster:
    start = list(normal(D, seed=7).split(SIZES))
    return SimulatedCluster(name, start, WORKERS, **{"lr": LR, "bucket_bytes": 1 << 30, **options})


def advance(members: SimulatedCluster, steps: int, scale: float = 1.0) -> SimulatedCluster:
    for _ in range(steps):
        members.step([list(row.clone().split(SIZES)) for row in gradients(members.steps, scale)])
    return members


def master(members: SimulatedCluster) -> Tensor:
    """What owners keep, bucket by bucket, in the order of the parameters."""
    by_rank = [members.state(rank, "master") for rank in range(members.world_size)]
    return torch.cat([torch.cat(bucket) for bucket in zip(*by_rank, strict=True)])


# ---- SDP4Bit -------------------------------------------------------------------------------------------------------------------


@each("rotation", [1, 16])
def test_sdp4bit_is_its_formula(rotation: int) -> None:
    """Six steps of SGD with momentum on three ranks, whose last piece is the shortest."""
    members = cluster("sdp4bit", rotation=rotation, block_size=16, weight_block_size=32, momentum=MOMENTUM)
    shared, u = point(members).double(), torch.zeros(D, dtype=torch.float64)
    own, plain = shared.clone(), shared.clone()
    plain_u = u.clone()
    for step in range(6):
        advance(members, 1)
        rows = gradients(step)
        g = torch.cat(
            [
                torch.stack([rotated_code(pieces(row)[r], rotation, 16) for row in rows]).mean(0)
                for r in range(WORKERS)
            ]
        )
        u = MOMENTUM * u + g
        own = own - LR * u
        change = torch.cat([coded(part, 7, 32) for part in pieces(own - shared)])
        shared = shared + change
        plain_u = MOMENTUM * plain_u + rows.double().mean(0)
        plain = plain - LR * plain_u
        for rank in range(WORKERS):
            torch.testing.assert_close(point(members, rank).double(), shared, rtol=0, atol=2e-6)
            assert torch.equal(point(members, rank), point(members))
        torch.testing.assert_close(master(members).double(), own, rtol=0, atol=2e-6)
        assert float((own - shared).abs().max()) > 1e-3
        assert float((own - plain).abs().max()) > 1e-3


@each("optimizer", ["sgd", "adamw"])
def test_of_gradients_that_lose_nothing_it_is_plain_training_to_the_bit(optimizer: str) -> None:
    """Whole numbers of -7 to 7 times a power of two, with a 7 in each block: the owners' states and masters suffice."""
    ours = SimulatedCluster(
        "sdp4bit", [torch.ones(96)], 4, lr=0.1, optimizer=optimizer, block_size=8, rotation=1
    )
    plain = SimulatedCluster(f"allreduce-{optimizer}", [torch.ones(96)], 4, lr=0.1)
    for step in range(6):
        rows = torch.randint(-7, 8, (4, 96), generator=torch.Generator().manual_seed(step)).float() / 8
        rows[:, ::8] = 7 / 8
        for members in (ours, plain):
            members.step([[row.clone()] for row in rows])
        assert torch.equal(master(ours), point(plain))
        assert torch.equal(point(ours, 3), point(ours))  # though each decays all of it


def test_the_mean_gradient_is_clipped_by_its_norm_over_all_pieces_and_buckets() -> None:
    """From zero, at a rate of 1, a step of the masters is the clipped mean; one that is short enough stays."""
    options: dict[str, Any] = {"lr": 1.0}
    for scale, clips in ((10.0, True), (1e-3, False)):
        start = [torch.zeros(size) for size in SIZES]
        ours, free = (
            SimulatedCluster("sdp4bit", start, WORKERS, bucket_bytes=256, **options, **more)
            for more in ({"max_grad_norm": 0.5}, {})
        )
        advance(ours, 1, scale)
        assert (abs(float(master(ours).norm()) - 0.5) < 1e-5) == clips
        whole = SimulatedCluster("sdp4bit", start, WORKERS, bucket_bytes=1 << 30, **options)
        advance(whole, 1, scale)
        expected = master(whole) * min(1.0, 0.5 / float(master(whole).norm()))
        torch.testing.assert_close(master(ours), expected, rtol=1e-5, atol=1e-8)
        assert free.method.clipped(0.5)[0].algorithm.max_grad_norm == 0.5  # type: ignore[attr-defined]


# ---- LoCo ----------------------------------------------------------------------------------------------------------------------


def errors(members: SimulatedCluster, rank: int, block: int = 128) -> Tensor:
    """What a rank's state decodes to, by hand: codes less 127, times the scale of the block; [D]."""
    (state,) = members.state(rank, "error")
    found = []
    for size, own in zip(SIZES, state.values(), strict=True):
        assert own.dtype == torch.uint8
        block = block or size
        assert len(own) == size + 4 * math.ceil(size / block)
        scales = own[size:].clone().view(torch.float32).double().repeat_interleave(block)[:size]
        found.append((own[:size].double() - 127) / 127 * scales)
    return torch.cat(found)


@each("beta", [0.8, 0.3, 1.0])
def test_loco_is_its_formula(beta: float) -> None:
    """Eight steps on three ranks; the error is forgotten after the fourth and the eighth."""
    members = cluster("loco", beta=beta, reset_every=4, block_size=16, momentum=MOMENTUM)
    x, u, e = (
        point(members).double(),
        torch.zeros(D, dtype=torch.float64),
        torch.zeros(WORKERS, D, dtype=torch.float64),
    )
    for step in range(8):
        advance(members, 1)
        h = gradients(step).double() + e
        q = torch.stack([torch.cat([coded(part, 7, 16) for part in pieces(row)]) for row in h])
        exact = (1 - beta) * e + beta * (h - q)
        e = torch.stack([torch.cat([coded(part, 127, 16) for part in row.split(SIZES)]) for row in exact])
        if step in (3, 7):
            e.zero_()
        u = MOMENTUM * u + q.mean(0)
        x = x - LR * u
        for rank in range(WORKERS):
            torch.testing.assert_close(point(members, rank).double(), x, rtol=0, atol=2e-6)
            torch.testing.assert_close(errors(members, rank, 16), e[rank], rtol=0, atol=2e-6)
        assert step in (3, 7) or float(e.abs().max()) > 0.01
