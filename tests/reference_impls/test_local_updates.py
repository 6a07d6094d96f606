"""Local SGD, local AdamW and QSR: what equals data-parallel training, when parameters meet, what that costs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from reference_impls import SimulatedCluster, create
from reference_impls.algorithm import Clock
from reference_impls.collectives import Group
from reference_impls.optimizers import local_optimizer
from reference_impls.schedules import QSR, LearningRate, sync_steps

D, RATE = 60, 0.05


def start() -> Tensor:
    return torch.randn(D, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


def curvature() -> Tensor:
    return torch.linspace(0.1, 2, D, dtype=torch.float64)


def noise(step: int, rank: int) -> Tensor:
    return (
        torch.randn(D, generator=torch.Generator().manual_seed(1000 * step + rank), dtype=torch.float64)
        + 0.2 * rank
    )


def gradient(x: Tensor, step: int, rank: int) -> Tensor:
    """Of a quadratic with noise: linear in x, so that averages of gradients are gradients of averages."""
    return curvature() * x + noise(step, rank)


def cluster(algorithm: str, size: int, **options: Any) -> SimulatedCluster:
    return SimulatedCluster(algorithm, [start()], size, lr=RATE, **options)


def advance(
    trained: SimulatedCluster, first: int, last: int, same_data: bool = False, lr: LearningRate | None = None
) -> None:
    for step in range(first, last):
        grads = [
            [gradient(trained.parameters(r)[0], step, 0 if same_data else r)]
            for r in range(trained.world_size)
        ]
        trained.step(grads, lr=None if lr is None else lr(step))


# ---- what equals what -------------------------------------------------------------------------------------------------

SGD = [
    {},
    {"momentum": 0.9},
    {"momentum": 0.9, "nesterov": True},
    {"momentum": 0.9, "weight_decay": 0.1},
    {"momentum": 0.9, "dampening": 0.5, "weight_decay": 0.1},
]


@pytest.mark.parametrize("size", [1, 2, 5, 8])
@pytest.mark.parametrize("options", SGD, ids=str)
def test_averaging_after_each_step_of_sgd_is_data_parallel_sgd(size: int, options: dict[str, Any]) -> None:
    """The update is linear in the buffers, so this holds although they stay local."""
    local, parallel = (
        cluster("local-sgd", size, period=1, **options),
        cluster("allreduce-sgd", size, **options),
    )
    advance(local, 0, 30)
    advance(parallel, 0, 30)
    torch.testing.assert_close(local.parameters(0)[0], parallel.parameters(0)[0], rtol=0, atol=1e-13)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw", "lion"])
def test_between_averages_each_worker_trains_alone(optimizer: str) -> None:
    """The round of 5 steps: lone optimizers, then the mean; after that they start from the mean with their own states."""
    size, hyper = 3, {"sgd": {"momentum": 0.9}, "adamw": {}, "lion": {"betas": (0.9, 0.99)}}[optimizer]
    trained = cluster("qsr", size, optimizer=optimizer, h_base=5, alpha=0.0, **hyper)
    own = [torch.nn.Parameter(start()) for _ in range(size)]
    alone = [local_optimizer(optimizer).build([{"params": [p], "lr": RATE, **hyper}]) for p in own]
    for step in range(15):
        for rank in range(size):
            own[rank].grad = gradient(own[rank].detach(), step, rank)
            alone[rank].step()
        if step % 5 == 4:
            mean = torch.stack([p.detach() for p in own]).sum(0) / size
            for p in own:
                p.data.copy_(mean)
        advance(trained, step, step + 1)
        assert trained.kind == ("average" if step % 5 == 4 else "local")
        for rank in range(size):
            torch.testing.assert_close(trained.parameters(rank)[0], own[rank].detach(), rtol=0, atol=1e-13)


def test_all_parameters_are_averaged_also_those_without_gradient() -> None:
    """A worker that had a gradient for one shares it with those that had none."""
    trained = SimulatedCluster("local-sgd", [start(), start()], 2, lr=RATE, period=2)
    for _ in range(2):
        trained.step([[noise(0, 0), noise(0, 1)], [noise(0, 2), None]])
    assert torch.equal(trained.parameters(0)[1], trained.parameters(1)[1])
    torch.testing.assert_close(trained.parameters(1)[1], start() - RATE * noise(0, 1), rtol=0, atol=1e-13)


# ---- when they meet ---------------------------------------------------------------------------------------------------


def averages(algorithm: str, total: int, lr: LearningRate, **options: Any) -> list[int]:
    """Completed steps at which parameters meet, by the method's own `plan`."""
    method, clock, found = create(algorithm, **options).algorithm, Clock(Group("world", 0, 4)), []
    for step in range(total):
        clock.step, clock.lr = step, lr(step)
        if method.plan(clock) == "average":
            found.append(step + 1)
    return found


@pytest.mark.parametrize("schedule", ["cosine", "linear", "step", "cosine_step", "constant"])
def test_the_method_meets_when_its_rule_says(schedule: str) -> None:
    total, warmup = 900, 60
    lr = LearningRate(schedule, peak=0.4, min=1e-4, warmup=warmup, total=total, milestones=(300, 600))
    found = averages("qsr-sgd", total, lr, alpha=0.2, h_base=3, lr_warmup_steps=warmup, total_steps=total)
    assert found == sync_steps(QSR(0.2, 3, warmup=warmup, total=total), lr, total)
    assert found[-1] == total


def test_the_rate_of_the_first_step_of_a_round_decides_also_when_a_scheduler_moves_it() -> None:
    """Rates 0.1, 0.1, then 0.05: H = (0.1 / lr)^2 asked before steps 0, 1 and 2."""
    trained = cluster("qsr-sgd", 2, alpha=0.1, h_base=1, total_steps=20)
    kinds = []
    for step in range(8):
        trained.step(
            [[noise(step, 0)], [noise(step, 1)]], lr=0.1 if step < 2 else 0.05 if step == 2 else 1e-3
        )
        kinds.append(trained.kind)
    assert kinds == ["average", "average", "local", "local", "local", "average", "local", "local"]


# ---- bytes ------------------------------------------------------------------------------------------------------------


# ---- refusals ---------------------------------------------------------------------------------------------------------
