"""Properties that hold for every method, over the literal table."""

from __future__ import annotations

import pytest
import torch

from reference_impls import list_algorithms
from reference_impls.optimizers import local_optimizer
from tests.reference_impls.problem import LR, Net, gradients, learning_rate, names
from tests.reference_impls.table import FIRST, ROWS, STEPS, Row, tiered
from tests.reference_impls.trajectories import advance, build, parameters_of, trajectory

SIZED = [
    pytest.param(row, n, id=f"{row.id}-{n}", marks=() if row in FIRST and n == 3 else pytest.mark.full)
    for row in ROWS
    for n in (2, 3, 8)
]


def test_the_table_names_every_algorithm() -> None:
    assert {row.algorithm for row in ROWS} >= set(list_algorithms()) - {"allreduce", "qsr"}


@pytest.mark.parametrize(("row", "world_size"), SIZED)
def test_replicas_are_equal_where_the_method_says_so(row: Row, world_size: int) -> None:
    world_size = min(world_size, row.largest)
    trained = trajectory(row, world_size)
    compared = 0
    for step, (kind, parameters) in enumerate(zip(trained.kinds, trained.parameters, strict=True)):
        met = kind in ("average", "step") if row.replicas == "average" else step == STEPS - 1
        if row.replicas == "step" or (met and row.replicas != "never"):
            compared += 1
            for rank in range(1, world_size):
                for ours, theirs in zip(parameters[0], parameters[rank], strict=True):
                    assert torch.equal(ours, theirs), f"step {step}, rank {rank}"
    assert compared >= 2 or row.replicas in ("end", "never") or row.algorithm.startswith("control")
    last = trained.parameters[-1]
    if row.replicas == "never" and world_size > 2:  # two that gossip have the mean at once
        assert not torch.equal(last[0][0], last[1][0])
    assert compared >= 1 or row.replicas == "never"
    assert all(torch.isfinite(p).all() for p in last[0])


@pytest.mark.parametrize("row", tiered(row for row in ROWS if row.plain))
def test_one_worker_is_the_plain_optimizer(row: Row) -> None:
    """n = 1: the same bits as torch's own optimizer (Lion: as ours) stepped on the same gradients."""
    cluster = build(row, 1)
    model = Net()
    name, hyper = row.plain
    optimizer = local_optimizer(name).build([{"params": list(model.parameters()), "lr": LR, **hyper}])
    for step in range(STEPS):
        advance(cluster, step, step + 1)
        optimizer.param_groups[0]["lr"] = learning_rate(step)
        for own, gradient, name in zip(
            model.parameters(), gradients(list(model.parameters()), 0, step), names(), strict=True
        ):  # one that was used once has a gradient of zeros afterwards
            own.grad = torch.zeros_like(own) if gradient is None and name != "unused" else gradient
        optimizer.step()
    for own, simulated, name in zip(model.parameters(), cluster.parameters(0), names(), strict=True):
        assert torch.equal(own, simulated), name


@pytest.mark.parametrize("row", tiered())
def test_nothing_depends_on_the_default_dtype_of_torch(row: Row) -> None:
    n, usual = min(3, row.largest), torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        cluster = build(row, n)
        advance(cluster, 0, 3)
    finally:
        torch.set_default_dtype(usual)
    for own, expected in zip(parameters_of(cluster), trajectory(row, n).parameters[2], strict=True):
        assert all(torch.equal(*pair) for pair in zip(own, expected, strict=True))
