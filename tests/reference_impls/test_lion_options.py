"""Options of Lion Cub around the vote: clipping."""

from __future__ import annotations

import pytest
import torch

from reference_impls import create
from reference_impls.optimizers import Lion
from tests.reference_impls.lion_training import (
    DECAY,
    RATE,
    cluster,
    gradient,
    parameters,
    vector,
)


@pytest.mark.parametrize("name", ["lion-cub-1bit", "distributed-lion-mavo", "lion-update-mean"])
@pytest.mark.parametrize("bucket_bytes", [64, 1 << 20])
def test_a_clipped_worker_is_lion_on_the_clipped_gradient_of_the_whole_model(
    name: str, bucket_bytes: int
) -> None:
    norm = 3.0
    own = [torch.nn.Parameter(p) for p in parameters()]
    plain = Lion(own, lr=RATE, weight_decay=DECAY)
    ours = cluster(name, 1, local_clip_norm=norm, bucket_bytes=bucket_bytes)
    free = cluster(name, 1)
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
