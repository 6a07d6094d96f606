"""Lion against its definition: arXiv 2302.06675, in double precision."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from reference_impls.errors import UnsupportedError
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


def test_the_first_step_is_the_sign_of_the_gradient() -> None:
    (gradient,) = draws(1)
    param, optimizer = lion(start())
    before = step(param, optimizer, gradient)
    assert torch.equal(param.detach(), before * (1 - RATE * DECAY) - RATE * gradient.sign())


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


def test_no_coordinate_moves_by_more_than_the_rate() -> None:
    param, optimizer = lion(start())
    for gradient in draws(50):
        before = step(param, optimizer, 1e6 * gradient)
        moved = (param.detach() - before * (1 - RATE * DECAY)).abs()
        assert moved.max() <= RATE * (1 + 1e-12)


def test_without_gradient_and_momentum_there_is_only_decay() -> None:
    param, optimizer = lion(start())
    before = step(param, optimizer, torch.zeros(D, dtype=torch.float64))
    assert torch.equal(param.detach(), before * (1 - RATE * DECAY))


def test_the_scale_of_all_gradients_does_not_matter() -> None:
    one, of_one = lion(start())
    other, of_other = lion(start())
    for gradient in draws(50):
        step(one, of_one, gradient)
        step(other, of_other, 2.0**-20 * gradient)  # a power of two, so that rounding is the same
    assert torch.equal(one, other)


def test_parameters_outside_the_box_come_back_at_the_rate_of_the_decay() -> None:
    """dist(x_t, |lam x| <= 1) <= (1 - lr lam)^t dist(x_0, .), whatever the gradients are."""
    param, optimizer = lion(100 * start())

    def distance() -> float:
        return float((param.detach().abs() - 1 / DECAY).clamp(min=0).max())

    first = distance()
    for t, gradient in enumerate(draws(300), start=1):
        step(param, optimizer, gradient)
        assert distance() <= (1 - RATE * DECAY) ** t * first + 1e-12


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


def test_saving_and_loading_goes_on_to_the_bit() -> None:
    whole, of_whole = lion(start())
    half, of_half = lion(start())
    gradients = list(draws(20))
    for gradient in gradients:
        step(whole, of_whole, gradient)
    for gradient in gradients[:10]:
        step(half, of_half, gradient)
    again, of_again = lion(half.detach())
    of_again.load_state_dict(of_half.state_dict())
    for gradient in gradients[10:]:
        step(again, of_again, gradient)
    assert torch.equal(whole, again)


def test_a_closure_is_called_once_with_gradients_enabled() -> None:
    param, optimizer = lion(start())
    calls = []

    def closure() -> float:
        optimizer.zero_grad()
        loss = param.square().sum()
        loss.backward()
        calls.append(loss.item())
        return calls[-1]

    assert optimizer.step(closure) == calls[0]
    assert len(calls) == 1
    assert torch.equal(param.detach(), start() * (1 - RATE * DECAY) - RATE * start().sign())


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_finite_does_not_pass_in_silence(bad: float) -> None:
    """sign(NaN) is 0 in torch: the coordinate would stand still for ever and nobody would know."""
    gradients = list(draws(3))
    gradients[0][7] = bad
    param, optimizer = lion(start())
    for gradient in gradients:
        step(param, optimizer, gradient)
    assert torch.isnan(param[7])
    assert torch.isfinite(param).sum() == D - 1


@pytest.mark.parametrize(
    "options",
    [
        {"lr": -1e-3},
        {"lr": float("nan")},
        {"betas": (1.0, 0.99)},
        {"betas": (0.9, -0.1)},
        {"weight_decay": -1.0},
    ],
)
def test_impossible_options_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(UnsupportedError, match="Lion wants"):
        Lion([torch.nn.Parameter(torch.zeros(2))], **options)
