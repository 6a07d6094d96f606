"""Lion against its definition: arXiv 2302.06675, in double precision."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from reference_impls.optimizers import Lion

D = 101
RATE, DECAY = 0.01, 0.3


def draws(steps: int, seed: int = 0) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        yield torch.randn(D, generator=generator, dtype=torch.float64)


def start(seed: int = 9) -> Tensor:
    return torch.randn(D, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def lion(x: Tensor, **options: float) -> tuple[torch.nn.Parameter, Lion]:
    param = torch.nn.Parameter(x.clone())
    return param, Lion([param], lr=RATE, weight_decay=DECAY, **options)


def step(param: torch.nn.Parameter, optimizer: Lion, gradient: Tensor) -> Tensor:
    before = param.detach().clone()
    param.grad = gradient.clone()
    optimizer.step()
    return before


def test_the_whole_trajectory_and_the_order_of_its_lines() -> None:
    """Against the definition; with the momentum updated first, the trajectory is another one."""
    param, optimizer = lion(start())
    right, wrong = start(), start()
    m_right, m_wrong = torch.zeros_like(right), torch.zeros_like(right)
    for gradient in draws(50):
        step(param, optimizer, gradient)
        right = right * (1 - RATE * DECAY) - RATE * (0.9 * m_right + (1 - 0.9) * gradient).sign()
        m_right = 0.99 * m_right + (1 - 0.99) * gradient
        m_wrong = 0.99 * m_wrong + (1 - 0.99) * gradient
        wrong = wrong * (1 - RATE * DECAY) - RATE * (0.9 * m_wrong + (1 - 0.9) * gradient).sign()
    torch.testing.assert_close(param.detach(), right, rtol=0, atol=1e-13)
    torch.testing.assert_close(optimizer.state[param]["momentum"], m_right, rtol=0, atol=1e-14)
    assert (param.detach() - wrong).abs().max() > RATE


def test_groups_schedules_and_parameters_without_gradient() -> None:
    (gradient,) = draws(1)
    params = [torch.nn.Parameter(start()) for _ in range(3)]
    groups = [{"params": params[:2], "weight_decay": 0.5}, {"params": params[2:], "lr": 1e-3}]
    optimizer = Lion(groups, lr=RATE, weight_decay=0.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.1)
    params[0].grad, params[2].grad = gradient.clone(), gradient.clone()
    optimizer.step()
    scheduler.step()
    once = [p.detach().clone() for p in params]
    optimizer.step()
    assert torch.equal(once[0], start() * (1 - RATE * 0.5) - RATE * gradient.sign())
    assert torch.equal(once[2], start() - 1e-3 * gradient.sign())
    torch.testing.assert_close(params[2].detach(), once[2] - 1e-4 * gradient.sign(), rtol=0, atol=1e-16)
    assert torch.equal(params[1].detach(), start())
    assert params[1] not in optimizer.state
