"""Post-local SGD, SWAP, AdaComm, the linear and the cubic rule: when workers meet, and what equals what."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from reference_impls import SimulatedCluster, create
from reference_impls.algorithms.round_rules import adacomm_period
from reference_impls.collectives import Collective
from reference_impls.drivers.worker import Worker
from reference_impls.errors import UsageError

D, N, LR = 30, 3, 0.1


def cluster(algorithm: str, **options: Any) -> SimulatedCluster:
    return SimulatedCluster(algorithm, [torch.ones(D, dtype=torch.float64)], N, lr=LR, **options)


def gradient(x: Tensor, step: int, rank: int) -> Tensor:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return x + torch.randn(D, generator=generator, dtype=torch.float64)


def train(trained: SimulatedCluster, first: int, last: int, **observed: list[float]) -> list[str]:
    """Kinds of the steps; `observed`: a value a step for `observe`."""
    kinds = []
    for step in range(first, last):
        trained.observe(**{name: values[step] for name, values in observed.items()})
        trained.step([[gradient(trained.parameters(r)[0], step, r)] for r in range(N)])
        kinds.append(trained.kind)
    return kinds


def averages(kinds: list[str]) -> list[int]:
    """Numbers of completed steps after which parameters were averaged."""
    return [step + 1 for step, kind in enumerate(kinds) if kind == "average"]


# ---- post-local SGD and SWAP ------------------------------------------------------------------------------------------


def test_before_the_switch_post_local_adamw_is_data_parallel_to_the_bit() -> None:
    """Gradients are averaged, not parameters: with AdamW that is another method."""
    post = cluster("post-local-sgd", optimizer="adamw", switch_step=10, period=4)
    parallel = cluster("allreduce-adamw")
    by_parameters = cluster("local-adamw", period=1)
    for trained in (post, parallel, by_parameters):
        train(trained, 0, 10)
    assert torch.equal(post.parameters(1)[0], parallel.parameters(1)[0])
    assert not torch.allclose(post.parameters(1)[0], by_parameters.parameters(1)[0])


def test_rounds_begin_at_the_switch() -> None:
    """Spec: N_sync = t_switch + ceil((T - t_switch) / H); with a global index the first round would be shorter."""
    kinds = train(cluster("post-local-sgd", switch_step=5, period=4, total_steps=15), 0, 15)
    assert kinds[:5] == ["step"] * 5
    assert averages(kinds) == [9, 13, 15]


def test_with_period_1_post_local_sgd_is_data_parallel_sgd_throughout() -> None:
    post = cluster("post-local-sgd", switch_step=5, period=1, momentum=0.9)
    parallel = cluster("allreduce-sgd", momentum=0.9)
    train(post, 0, 20)
    train(parallel, 0, 20)
    torch.testing.assert_close(post.parameters(0)[0], parallel.parameters(0)[0], rtol=0, atol=1e-13)


def test_swap_averages_once_at_the_end() -> None:
    trained = cluster("swap", switch_step=6, total_steps=20)
    kinds = train(trained, 0, 20)
    assert kinds == ["step"] * 6 + ["local"] * 13 + ["average"]
    assert torch.equal(trained.parameters(0)[0], trained.parameters(2)[0])


def test_swap_switches_when_the_accuracy_is_reached_and_stays_there() -> None:
    accuracy = [0.1, 0.2, 0.9, 0.3, *[0.1] * 16]
    kinds = train(cluster("swap", switch_accuracy=0.8, total_steps=20), 0, 20, accuracy=accuracy)
    assert kinds == ["step"] * 2 + ["local"] * 17 + ["average"]
    late = train(cluster("swap", switch_accuracy=2.0, total_steps=20), 0, 20, accuracy=accuracy)
    assert late.count("step") == 10  # never reached: at switch_step, half by default


def test_swap_switches_all_workers_at_once_by_their_mean_accuracy() -> None:
    """Every worker sees an accuracy of its own; by itself one would go on alone while others wait for its gradient."""
    trained = cluster("swap", switch_accuracy=0.8, total_steps=20)
    kinds = []
    for step, accuracies in enumerate([(), (0.9,), (0.9, 0.9, 0.5), (0.9, 0.9, 0.65), (0.0, 0.0, 0.0)]):
        for worker, accuracy in zip(trained._workers, accuracies, strict=False):
            worker.clock.observed["accuracy"] = accuracy
        kinds += train(trained, step, step + 1)
    assert kinds == ["step"] * 3 + ["local"] * 2
    frame = trained.ledger.frame()
    assert frame[frame["stage"] == "accuracy"]["step"].tolist() == [0, 1, 2, 3]


def test_what_was_told_between_steps_is_in_the_checkpoint() -> None:
    """After observe and before the step that plans by it."""
    whole, resumed = (cluster("swap", switch_accuracy=0.8, total_steps=20) for _ in range(2))
    train(whole, 0, 3)
    whole.observe(accuracy=0.9)
    resumed.load_state_dict(whole.state_dict())
    assert train(whole, 3, 6) == train(resumed, 3, 6) == ["local"] * 3
    assert torch.equal(whole.parameters(0)[0], resumed.parameters(0)[0])


# ---- AdaComm ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("period", "loss", "lr", "paper", "paddle"),
    [
        (16, 0.25, 1.0, 8, 2),  # half the root: 16 x 0.5 = 8; sqrt(16 x 0.25) = 2
        (16, 1.0, 1.0, 8, 4),  # the loss has not fallen: shrinks by gamma
        (8, 0.2, 1.0, 4, 2),  # ceil(16 x 0.447) = 8 is not shorter than 8
        (16, 0.01, 10.0, 6, 2),  # a smaller rate allows longer rounds: 16 sqrt(0.1) = 5.06
        (1, 1.0, 1.0, 1, 4),
        (16, 0.0, 1.0, 1, 1),
        (16, 100.0, 1.0, 8, 16),
    ],
)
def test_adacomm_rule(period: int, loss: float, lr: float, paper: int, paddle: int) -> None:
    assert adacomm_period(period, 16, loss, lr, 0.5, "paper") == paper
    assert adacomm_period(period, 16, loss, lr, 0.5, "paddle") == paddle


def test_adacomm_agrees_on_the_loss_and_wants_to_be_told_it() -> None:
    trained = cluster("adacomm", first_period=2, adapt_every=4)
    with pytest.raises(UsageError, match="observe"):
        train(trained, 0, 1)
    trained = cluster("adacomm", first_period=2, adapt_every=4)
    train(trained, 0, 9, loss=[1.0] * 9)
    frame = trained.ledger.frame()
    assert frame[frame["stage"] == "loss"]["step"].tolist() == [0, 4, 8]
    assert set(frame[frame["stage"] == "loss"]["kind"]) == {"plan"}


# ---- linear and cubic rule --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "power"), [("linear-rule", 1.0), ("cubic-rule", 3.0)])
def test_the_named_rules_are_qsr_with_another_power(name: str, power: float) -> None:
    named, qsr = cluster(name, alpha=0.3), cluster("qsr", alpha=0.3, power=power)
    assert train(named, 0, 30) == train(qsr, 0, 30)
    assert torch.equal(named.parameters(0)[0], qsr.parameters(0)[0])


@pytest.mark.parametrize(
    ("name", "options"), [("adacomm", {}), ("swap", {"switch_accuracy": 0.5, "total_steps": 9})]
)
def test_what_a_plan_sends_lies_where_the_parameters_are(name: str, options: dict[str, Any]) -> None:
    """A group of accelerators has no collective for the host's memory."""
    algorithm = create(name, **options).algorithm
    groups = [{"params": [torch.empty(3, device="meta")], "param_names": ["x"], "lr": LR, "momentum": 0.0}]
    clock = Worker(create("allreduce-sgd").algorithm, groups, rank=0, size=2).clock
    clock.observed.update(loss=1.0, accuracy=0.1)
    planning = algorithm.plan(clock)
    assert not isinstance(planning, str)
    request = next(planning)
    assert isinstance(request, Collective)
    assert request.buffer.device.type == "meta"
