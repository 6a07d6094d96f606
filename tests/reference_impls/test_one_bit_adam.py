"""1-bit Adam: the rule of APMSqueeze with a mask, DeepSpeed's padding, and a freeze that comes by itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from reference_impls import SimulatedCluster
from tests.reference_impls.test_apmsqueeze import (
    BETA1,
    BETA2,
    EPS,
    RATE,
    D,
    gradient,
    mean_gradient,
    start,
)


def cluster(size: int, name: str = "one-bit-adam", **options: Any) -> SimulatedCluster:
    return SimulatedCluster(name, [start()], size, lr=RATE, seed=2, **options)


def advance(own: SimulatedCluster, first: int, last: int) -> None:
    for step in range(first, last):
        own.step([[gradient(step, rank)] for rank in range(own.world_size)])


def test_where_all_has_variance_it_is_apmsqueeze_with_one_scale_a_shard() -> None:
    ours = cluster(4, warmup_steps=5)
    theirs = SimulatedCluster("apmsqueeze", [start()], 4, lr=RATE, seed=2, warmup_steps=5, scale="shard")
    for own in (ours, theirs):
        advance(own, 0, 15)
    assert torch.equal(ours.parameters(0)[0], theirs.parameters(0)[0])


@pytest.mark.parametrize("size", [1, 4])
@pytest.mark.parametrize("name", ["one-bit-adam", "one-bit-adam-deepspeed"])
def test_with_an_exact_mean_it_is_momentum_in_a_frozen_metric(size: int, name: str) -> None:
    """Exactly `warmup_steps` steps of Adam, the first of them moving the parameters."""
    own = cluster(size, name, warmup_steps=5, compressor="none", weight_decay=0.1)
    x, m, v = start(), torch.zeros(D, dtype=torch.float64), torch.zeros(D, dtype=torch.float64)
    for step in range(12):
        advance(own, step, step + 1)
        g = mean_gradient(step, size)
        m = BETA1 * m + (1 - BETA1) * g
        v = BETA2 * v + (1 - BETA2) * g * g if step < 5 else v
        x = x * (1 - RATE * 0.1) - RATE * m / (v.sqrt() + EPS)
        torch.testing.assert_close(own.parameters(0)[0], x, rtol=0, atol=1e-12)


def test_the_mask_is_where_the_variance_is_nothing() -> None:
    """The agreed momentum there is 0; errors are kept as they are; elsewhere it is one magnitude."""
    dead, own = slice(30, 50), cluster(4, warmup_steps=4)
    for step in range(12):
        rows = [gradient(step, rank) for rank in range(4)]
        for row in rows:
            row[dead] = 0
        own.step([[row] for row in rows])
    m = own.state(0, "momentum")[0]
    assert torch.equal(m[dead], torch.zeros(20, dtype=torch.float64))
    assert (m != 0).sum() == D - 20
    assert torch.equal(own.parameters(0)[0][dead], start()[dead])
    assert own.state(0, "worker_error")[0][dead].abs().max() > 0


# ---- the freeze that comes by itself -----------------------------------------------------------------------------------


def scaled(step: int, rank: int, size: Tensor | float) -> Tensor:
    return size * gradient(step, rank) / gradient(step, rank).norm()


def frozen_at(norms: Any, steps: int, **options: Any) -> int | None:
    """The first compressed step when gradients have these norms."""
    own = cluster(2, freeze="auto", betas=(0.9, 0.5), **options)
    for step in range(steps):
        own.step([[scaled(step, rank, norms(step))] for rank in range(2)])
        if own.kind == "compressed":
            return step
    return None


def test_it_freezes_when_the_variance_stands_still_and_not_while_it_grows_or_falls() -> None:
    assert frozen_at(lambda step: 1.0, 40, auto_window=5, auto_ratio=0.8) in (11, 16, 21)
    assert frozen_at(lambda step: 1.5**step, 40, auto_window=5) is None
    assert frozen_at(lambda step: 1.5**-step, 40, auto_window=5) is None
    falls_then_stands = frozen_at(lambda step: 1.5 ** -min(step, 20), 60, auto_window=5, auto_ratio=0.8)
    assert falls_then_stands is not None
    assert falls_then_stands > 25


def test_it_does_not_freeze_before_the_learning_rate_has_warmed_up() -> None:
    early = frozen_at(lambda step: 1.0, 40, auto_window=5, auto_ratio=0.8)
    assert early is not None
    assert frozen_at(lambda step: 1.0, 60, auto_window=5, auto_ratio=0.8, lr_warmup_steps=31) == 31
