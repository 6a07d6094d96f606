"""Gradients at further points: what the closure sees, what the optimizer leaves behind, and what is refused."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from reference_impls import DataParallelOptimizer, SimulatedCluster, create
from reference_impls.core.errors import LayoutError, UsageError
from tests.reference_impls.frontends import values
from tests.reference_impls.problem import LR, Net, at_reference_points, gradients, loss, names
from tests.reference_impls.states import equal

pytestmark = [pytest.mark.gloo, pytest.mark.usefixtures("one_rank")]
METHOD = create("root-sgd", burn_in=1)
"""From the second step on it wants the gradient of the same samples at the parameters before the last step."""


def optimizer_of(model: nn.Module) -> DataParallelOptimizer:
    return DataParallelOptimizer(model.named_parameters(), METHOD, lr=LR, bucket_bytes=256)


def expected(steps: int) -> list[Tensor]:
    cluster = SimulatedCluster(METHOD, values(Net()), 1, lr=LR, names=names())
    for step in range(steps):
        own = gradients(cluster.parameters(0), 0, step)
        cluster.step([own], reference_points=at_reference_points(cluster, step))
    return cluster.parameters(0)


def test_the_closure_is_called_at_each_probe_and_last_at_the_parameters() -> None:
    model = Net()
    optimizer, seen = optimizer_of(model), []
    history = [values(model)]
    for step in range(5):
        seen.clear()

        def closure(step: int = step) -> Tensor:
            seen.append(values(model))
            optimizer.zero_grad(set_to_none=step % 2 == 0)
            answer = loss(model, 0, step)
            answer.backward()
            return answer.detach()

        answer = optimizer.step(closure)
        assert len(seen) == (2 if step else 1)
        assert equal(seen[-1], history[-1])
        assert not step or equal(seen[0], history[-2])
        net = Net()
        for own, there in zip(net.parameters(), seen[-1], strict=True):
            own.data.copy_(there)
        assert torch.equal(answer, loss(net, 0, step))
        history.append(values(model))
    assert equal(values(model), expected(5))


def test_a_simulated_step_without_them_is_refused_and_changes_nothing() -> None:
    cluster = SimulatedCluster(METHOD, values(Net()), 1, lr=LR, names=names())
    cluster.step([gradients(cluster.parameters(0), 0, 0)])
    before = [p.clone() for p in cluster.parameters(0)]
    grads = [gradients(cluster.parameters(0), 0, 1)]
    with pytest.raises(UsageError, match="also wants the gradients at previous"):
        cluster.step(grads)
    with pytest.raises(LayoutError, match="at reference point 'previous'"):
        cluster.step(grads, reference_points={"previous": [[torch.zeros(2)] * 5]})
    assert equal(before, cluster.parameters(0))
    cluster.step(grads, reference_points={"previous": grads})
    assert cluster.steps == 2


def test_without_a_closure_it_is_refused_before_anything_is_sent() -> None:
    model = Net()
    optimizer = optimizer_of(model)
    with pytest.raises(UsageError, match="into a closure"):
        loss(model, 0, 0).backward()
    with pytest.raises(UsageError, match="into a closure"):
        optimizer.step()
    assert optimizer.ledger.totals() == []
    optimizer.zero_grad()
    optimizer.step(lambda: loss(model, 0, 0).backward())
    assert equal(values(model), expected(1))


def test_all_calls_draw_the_same_random_numbers_and_the_generator_moves_on_once() -> None:
    model = nn.Linear(4, 3)
    optimizer, drawn = optimizer_of(model), []

    def closure() -> None:
        optimizer.zero_grad()
        mask = torch.rand(4)
        drawn.append(mask)
        model(mask).sum().backward()

    torch.manual_seed(7)
    for _ in range(3):
        optimizer.step(closure)
    torch.manual_seed(7)
    plain = [torch.rand(4) for _ in range(3)]
    assert len(drawn) == 5
    assert equal(drawn, [plain[0], plain[1], plain[1], plain[2], plain[2]])


@pytest.mark.parametrize("at", ["probe", "parameters"])
def test_a_closure_that_fails_leaves_the_parameters_where_they_were(at: str) -> None:
    model = Net()
    optimizer, calls = optimizer_of(model), []

    def closure(step: int, fail: bool) -> None:
        calls.append(fail)
        if fail and len(calls) == (1 if at == "probe" else 2):
            raise InterruptedError
        optimizer.zero_grad()
        loss(model, 0, step).backward()

    optimizer.step(lambda: closure(0, False))
    optimizer.step(lambda: closure(1, False))
    before = values(model)
    calls.clear()
    with pytest.raises(InterruptedError):
        optimizer.step(lambda: closure(2, True))
    assert equal(values(model), before)
    calls.clear()
    optimizer.step(lambda: closure(2, False))
    assert equal(values(model), expected(3))
