"""Properties that hold for every method, over the literal table."""

from __future__ import annotations

import io

import pytest
import torch

from reference_impls import SimulatedCluster, list_algorithms
from reference_impls.optimizers import local_optimizer
from tests.reference_impls.problem import LR, Net, at_probes, gradients, learning_rate, names, told
from tests.reference_impls.table import FIRST, ROWS, STEPS, Row

# their updates of a parameter without gradient are zero, which one bit cannot say: the policy for zeros moves it
ONE_BIT = (
    "lion-cub-1bit",
    "distributed-lion-mavo",
    "distributed-lion-avg",
    "lion-sign-gather",
    "control-one-rank-sign",
)
every_row = pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
SIZED = [
    pytest.param(row, n, id=f"{row.id}-{n}", marks=() if row in FIRST or n == 3 else pytest.mark.slow)
    for row in ROWS
    for n in (2, 3, 8)
]
"""Every method with 2, 3 and 8 workers; its other rows with 3, and with all in the long tests."""


def build(row: Row, world_size: int, bucket_bytes: int = 256) -> SimulatedCluster:
    """The small bucket cuts the model into several shards."""
    parameters = list(Net().parameters())
    return SimulatedCluster(
        row.algorithm,
        parameters,
        world_size,
        lr=LR,
        seed=3,
        names=names(),
        bucket_bytes=bucket_bytes,
        **row.options,
    )


def advance(cluster: SimulatedCluster, first: int, last: int) -> None:
    for step in range(first, last):
        grads = [gradients(cluster.parameters(r), r, step) for r in range(cluster.world_size)]
        cluster.observe(**told(step))
        cluster.step(grads, lr=learning_rate(step), probes=at_probes(cluster, step))


def test_the_table_names_every_algorithm() -> None:
    assert {row.algorithm for row in ROWS} >= set(list_algorithms()) - {"allreduce", "qsr"}


@pytest.mark.parametrize(("row", "world_size"), SIZED)
def test_replicas_are_equal_where_the_method_says_so(row: Row, world_size: int) -> None:
    world_size = min(world_size, row.largest)
    cluster = build(row, world_size)
    compared = 0
    for step in range(STEPS):
        advance(cluster, step, step + 1)
        met = cluster.kind in ("average", "step") if row.replicas == "average" else step == STEPS - 1
        if row.replicas == "step" or (met and row.replicas != "never"):
            compared += 1
            for rank in range(1, world_size):
                for ours, theirs in zip(cluster.parameters(0), cluster.parameters(rank), strict=True):
                    assert torch.equal(ours, theirs)
    assert compared >= 2 or row.replicas in ("end", "never") or row.algorithm.startswith("control")
    if row.replicas == "never" and world_size > 2:  # two that gossip have the mean at once
        assert not torch.equal(cluster.parameters(0)[0], cluster.parameters(1)[0])
    assert compared >= 1 or row.replicas == "never"
    assert all(torch.isfinite(p).all() for p in cluster.parameters(0))


@pytest.mark.parametrize("row", [row for row in ROWS if row.plain], ids=lambda row: row.id)
def test_one_worker_is_the_plain_optimizer(row: Row) -> None:
    """n = 1: the same bits as torch's own optimizer (Lion: as ours) stepped on the same gradients."""
    cluster = build(row, 1)
    model = Net()
    name, hyper = row.plain
    optimizer = local_optimizer(name).build([{"params": list(model.parameters()), "lr": LR, **hyper}])
    for step in range(STEPS):
        advance(cluster, step, step + 1)
        optimizer.param_groups[0]["lr"] = learning_rate(step)
        for own, gradient in zip(
            model.parameters(), gradients(list(model.parameters()), 0, step), strict=True
        ):
            own.grad = torch.zeros_like(own) if gradient is None else gradient
        optimizer.step()
    for own, simulated, name in zip(model.parameters(), cluster.parameters(0), names(), strict=True):
        if name == "unused" and row.algorithm in ONE_BIT:
            continue
        assert torch.equal(own, simulated), name


@every_row
def test_resuming_equals_the_uninterrupted_run_to_the_bit(row: Row) -> None:
    whole, first = build(row, 3), build(row, 3)
    advance(whole, 0, STEPS)
    advance(first, 0, 7)
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    second = build(row, 3)
    second.load_state_dict(torch.load(file, weights_only=True))
    advance(second, 7, STEPS)
    for rank in range(3):
        for expected, found in zip(whole.parameters(rank), second.parameters(rank), strict=True):
            assert torch.equal(expected, found)


@every_row
def test_draws_come_from_the_seed_and_never_from_the_global_generator(row: Row) -> None:
    """Two runs with one seed are equal to the bit, whatever else the program has drawn."""
    torch.manual_seed(1)
    a = build(row, 3)
    advance(a, 0, 4)
    torch.manual_seed(2)
    b = build(row, 3)
    advance(b, 0, 4)
    assert all(torch.equal(x, y) for x, y in zip(a.parameters(1), b.parameters(1), strict=True))


@every_row
def test_training_descends(row: Row) -> None:
    """On one common quadratic every method, the controls included, must come closer to the optimum."""
    generator = torch.Generator().manual_seed(0)
    target = torch.randn(300, generator=generator)
    options = {**row.options, **({"total_steps": 60} if "total_steps" in row.options else {})}
    options |= {"warmup_steps": 20} if row.options.get("warmup_steps") else {}
    options |= {"momentum": 0.0} if "momentum" in row.options else {}
    cluster = SimulatedCluster(row.algorithm, [torch.zeros(300)], 4, lr=0.05, **options)
    for step in range(60):
        noise = torch.randn(4, 300, generator=generator) * 0.1
        cluster.observe(**told(step))
        cluster.step(
            [[cluster.parameters(r)[0] - target + noise[r]] for r in range(4)],
            lr=0.05 * (1 - step / 60) + 1e-4,
            probes={
                probe: [[cluster.probe_parameters(r, probe)[0] - target + noise[r]] for r in range(4)]
                for probe in cluster.probes
            },
        )
    assert torch.linalg.vector_norm(cluster.parameters(0)[0] - target) < 0.97 * torch.linalg.vector_norm(
        target
    )
