"""Options of Lion Cub around the vote: small tensors, clipping, which momenta are synchronised."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from reference_impls import SimulatedCluster, create
from reference_impls.optimizers import Lion
from tests.reference_impls.lion_training import (
    DECAY,
    RATE,
    SHAPES,
    advance,
    cluster,
    gradient,
    parameters,
    vector,
)

PBIT = "lion-cub-pbit"


def sent(name: str, size: int, **options: Any) -> float:
    """Bytes that rank 0 sends in its first step."""
    found = cluster(name, size, **options)
    advance(found, 1)
    return sum(row["wire_bytes"] for row in found.ledger.totals() if row["rank"] == 0)


# ---- small tensors, clipping, names ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["lion-cub-1bit", PBIT])
def test_small_tensors_follow_the_exact_sign_and_the_others_do_not_notice(name: str) -> None:
    """Parameter 1 has 11 elements, 2 has 27 (not fewer), 0 has 35."""
    plain, mixed = cluster(name, 4), cluster(name, 4, fp32_below=27)
    whole = cluster("lion-update-mean", 4, dtype="fp32")
    for each in (plain, mixed, whole):
        advance(each, 15)
    assert torch.equal(mixed.parameters(3)[1], whole.parameters(0)[1])
    assert not torch.equal(mixed.parameters(0)[1], plain.parameters(0)[1])
    for other in (0, 2):
        assert torch.equal(mixed.parameters(0)[other], plain.parameters(0)[other])
    assert sent(name, 4, fp32_below=27) - sent(name, 4) == pytest.approx(2 * 3 / 4 * 4 * 11)
    everything = cluster(name, 4, fp32_below=1000)
    advance(everything, 15)
    assert torch.equal(vector(everything.parameters(0)), vector(whole.parameters(0)))


@pytest.mark.parametrize("name", ["lion-cub-1bit", PBIT, "distributed-lion-mavo", "lion-update-mean"])
@pytest.mark.parametrize("bucket_bytes", [64, 1 << 20])
def test_a_clipped_worker_is_lion_on_the_clipped_gradient_of_the_whole_model(
    name: str, bucket_bytes: int
) -> None:
    norm = 3.0
    own = [torch.nn.Parameter(p) for p in parameters()]
    plain = Lion(own, lr=RATE, weight_decay=DECAY)
    options = {"fp32_below": 1000} if name == PBIT else {}
    ours = cluster(name, 1, local_clip_norm=norm, bucket_bytes=bucket_bytes, **options)
    free = cluster(name, 1, **options)
    for step in range(12):
        g = [x * (0.1 if step % 3 == 0 else 1.0) for x in gradient(step, 0)]
        for param, value in zip(own, g, strict=True):
            param.grad = value.clone()
        total = torch.nn.utils.clip_grad_norm_(own, norm)
        assert (total > norm) == (step % 3 != 0)
        plain.step()
        ours.step([g])
        free.step([g])
    expected = vector([p.detach() for p in own])
    torch.testing.assert_close(vector(ours.parameters(0)), expected, rtol=0, atol=1e-5)
    assert not torch.equal(vector(ours.parameters(0)), vector(free.parameters(0)))
    assert create(name, local_clip_norm=norm).algorithm.scope == "model"
    assert create(name).algorithm.scope == "bucket"


def test_clipping_is_each_worker_s_own() -> None:
    """A worker that is a thousand times louder does not weigh more in the mean of updates once all are clipped."""
    g = [[1000.0 * x if rank == 0 else x for x in gradient(0, rank)] for rank in range(3)]
    clipped = cluster("lion-update-mean", 3, dtype="fp32", local_clip_norm=0.1)
    clipped.step(g)
    units = torch.stack([vector(own) / vector(own).norm() for own in g])
    expected = vector(parameters()) * (1 - RATE * DECAY) - RATE * units.mean(0).sign()
    torch.testing.assert_close(vector(clipped.parameters(0)), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("mode", ["periodic", "selective"])
def test_only_named_tensors_are_synchronised(mode: str) -> None:
    """Names are "0", "1" and "2"."""
    options = {"momentum_sync": mode, "sync_every": 2, "sync_measure_every": 4, "sync_fraction": 0.5}
    named = cluster("lion-cub-1bit", 4, sync_names="[02]", **options)
    free = cluster("lion-cub-1bit", 4)
    advance(named, 1)
    advance(free, 1)  # a synchronisation, or a measurement, is at step 0
    lengths = [math.prod(shape) for shape in SHAPES]

    def momenta(each: SimulatedCluster, rank: int) -> tuple[Tensor, ...]:
        return vector(each.state(rank, "momentum")).split(lengths)

    synchronised = set()
    for i in range(3):
        own = [momenta(named, rank)[i] for rank in range(4)]
        mean = torch.stack([momenta(free, rank)[i] for rank in range(4)]).mean(0)
        if torch.equal(own[0], own[1]):
            synchronised.add(i)
            torch.testing.assert_close(own[3], mean)
        else:
            assert all(torch.equal(own[rank], momenta(free, rank)[i]) for rank in range(4))
    assert synchronised == {0, 2} if mode == "periodic" else synchronised in ({0}, {2})
    rows = named.ledger.frame(0)
    elements = rows[rows.stage.str.startswith("momentum")].payload_bytes.sum() / 4
    assert elements == (lengths[0] + lengths[2]) * (1 if mode == "periodic" else 2)
    nobody = cluster("lion-cub-1bit", 4, sync_names="nobody", **options)
    advance(nobody, 6)
    advance(free, 5, first=1)
    assert torch.equal(vector(nobody.parameters(0)), vector(free.parameters(0)))
    assert not nobody.ledger.frame(0).stage.str.startswith("momentum").any()
