"""Full precision within nodes, a codec across: the same mean, fewer bytes between nodes, errors that telescope."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from reference_impls import DataParallelOptimizer, SimulatedCluster, wire
from reference_impls.codecs.scaled_signs import ScaledSigns
from tests.reference_impls.gloo import run_ranks
from tests.reference_impls.problem import LR, Net, batch, gradients, names

D = 203


def cluster(algorithm: str, n: int, node_size: int, d: int = D, **options: Any) -> SimulatedCluster:
    return SimulatedCluster(
        algorithm,
        [torch.zeros(d, dtype=torch.float64)],
        n,
        lr=1.0,
        node_size=node_size,
        hierarchical=True,
        **options,
    )


def draws(n: int, step: int, d: int = D) -> Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(step), dtype=torch.float64)


def total_error(simulated: SimulatedCluster, n: int, node_size: int, form: str, d: int = D) -> Tensor:
    """E, by pieces: place p of every node keeps the errors of piece p of the vector; servers serve pieces of that."""
    nodes, size = n // node_size, wire.piece(d, node_size)
    found = torch.zeros(d, dtype=torch.float64)
    for place in range(node_size):
        first, last = min(place * size, d), min((place + 1) * size, d)
        ranks = range(place, n, node_size)
        for rank in ranks:
            found[first:last] += simulated.state(rank, "worker_error")[0][first:last] / nodes
        if form == "two-phase":
            part = wire.piece(size, nodes)
            for served, rank in enumerate(ranks):
                low, high = min(first + served * part, last), min(first + (served + 1) * part, last)
                found[low:high] += simulated.state(rank, "server_error")[0][: high - low]
    return found


@pytest.mark.parametrize("form", ["gather", "two-phase"])
@pytest.mark.parametrize(("n", "node_size"), [(4, 2), (6, 2), (6, 3), (8, 4), (4, 1)])
def test_what_is_applied_is_the_mean_plus_the_change_of_the_error(form: str, n: int, node_size: int) -> None:
    simulated = cluster("ef-signsgd", n, node_size, form=form, granularity="bucket")
    for step in range(5):
        before, error = simulated.parameters(0)[0].clone(), total_error(simulated, n, node_size, form)
        g = draws(n, step)
        simulated.step([[row] for row in g])
        expected = g.mean(0) + error - total_error(simulated, n, node_size, form)
        torch.testing.assert_close(before - simulated.parameters(0)[0], expected, rtol=0, atol=1e-12)
        assert all(torch.equal(simulated.parameters(0)[0], simulated.parameters(r)[0]) for r in range(1, n))
    assert total_error(simulated, n, node_size, form).abs().max() > 0


@pytest.mark.parametrize("algorithm", ["qsgd", "natural-compression", "top-k", "nuqsgd"])
@pytest.mark.parametrize("d", [1, 5, D])
def test_replicas_stay_equal_also_with_random_codecs_and_pieces_of_nothing(algorithm: str, d: int) -> None:
    simulated = cluster(algorithm, 8, 4, d)
    for step in range(3):
        simulated.step([[row] for row in draws(8, step, d)])
    assert all(torch.equal(simulated.parameters(0)[0], simulated.parameters(r)[0]) for r in range(1, 8))


def test_one_node_compresses_nothing() -> None:
    simulated = cluster("ef-signsgd", 4, 4, granularity="bucket")
    g = draws(4, 0)
    simulated.step([[row] for row in g])
    torch.testing.assert_close(simulated.parameters(2)[0], -g.mean(0), rtol=0, atol=1e-15)


def test_what_crosses_between_nodes_is_one_message_of_a_piece() -> None:
    """Within the node fp32: (m-1)/m pieces out, m-1 pieces to the others; across: 1/m of what it were without nodes."""
    simulated = SimulatedCluster(
        "ef-signsgd", [torch.zeros(D)], 6, lr=1.0, node_size=3, hierarchical=True, granularity="bucket"
    )
    simulated.step([[row.float()] for row in draws(6, 0)])
    frame = simulated.ledger.frame(rank=4).set_index("stage")
    piece = wire.piece(D, 3)
    assert frame["group"].to_dict() == {
        "gradient-scatter": "node",
        "gradient": "cross",
        "gradient-node": "node",
    }
    assert frame.loc["gradient", "wire_bytes"] == wire.all_gather(ScaledSigns().wire_bytes(piece), 2)
    assert frame.loc["gradient-scatter", "wire_bytes"] == wire.all_to_all(4 * 3 * piece, 3)
    assert frame.loc["gradient-node", "wire_bytes"] == wire.all_gather(4 * piece, 3)


def _train(rank: int, size: int) -> list[Tensor]:
    model = Net()
    optimizer = DataParallelOptimizer(
        model.named_parameters(), "ef-signsgd", lr=LR, seed=3, bucket_bytes=256, check="each",
        node_size=2, hierarchical=True, form="two-phase", granularity="bucket",
    )  # fmt: skip
    for step in range(6):
        optimizer.zero_grad()
        x, y = batch(rank, step)
        (model(x) - y).square().mean().backward()
        optimizer.step()
    optimizer.release()
    return [p.detach().clone() for p in model.parameters()]


@pytest.mark.gloo
@pytest.mark.full
def test_on_gloo_as_in_the_simulation() -> None:
    simulated = SimulatedCluster(
        "ef-signsgd", list(Net().parameters()), 4, lr=LR, seed=3, names=names(), bucket_bytes=256,
        node_size=2, hierarchical=True, form="two-phase", granularity="bucket",
    )  # fmt: skip
    for step in range(6):
        simulated.step([gradients(simulated.parameters(r), r, step) for r in range(4)])
    for rank, found in enumerate(run_ranks(_train, 4)):
        for real, expected in zip(found, simulated.parameters(rank), strict=True):
            assert torch.equal(real, expected)
