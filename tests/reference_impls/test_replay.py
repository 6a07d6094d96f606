"""Steps that are repeated from a recording, as CUDA graphs are: to the bit what carrying them out anew gives."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from reference_impls import SimulatedCluster
from reference_impls.algorithms.all_reduce import AllReduce
from reference_impls.core import compute
from reference_impls.core.algorithm import Bucket
from reference_impls.core.collectives import Exchange
from reference_impls.core.optimizers import Lion
from reference_impls.core.registry import Method
from reference_impls.frontends.simulated import side_by_side
from reference_impls.runtime.replay import CudaGraphs, Replays, Work
from tests.reference_impls.problem import LR, Net, gradients, learning_rate, names, observed
from tests.reference_impls.recorded import Logged, Rehearsed, replayed
from tests.reference_impls.states import equal
from tests.reference_impls.table import FIRST, ROWS, SOME, Row, tiered

WORKERS, LENGTH = 2, 20
ASKING = {
    "adaqs": {"3-bit", "4-bit"},
    "adaqs-warm-up": {"warm-up"},
    "control-random-k": {"step"},
    "dq-sgd": {"4-bit", "5-bit"},
    "dq-sgd-convex": {"2-bit", "3-bit", "4-bit", "5-bit"},
    "eager-diloco": {"average"},
    "eager-diloco-bf16": {"average"},
    "global-qsgd-sparse": {"step"},
    "gtop-k": {"step"},
    "gtop-k-doubling": {"step"},
    "gtop-k-mask": {"step"},
    "l-greco": {"measure"},
    "l-greco-warm-up": {"measure"},
    "lag": {"step"},
    "lag-short-memory": {"step"},
    "lion-cub-1bit-selective": {"measure", "sync"},
    "one-bit-adam-auto": {"warm-up"},
    "pulse-loco": {"average"},
    "pulse-loco-average": {"average"},
    "root-sgd-inverse": {"burn-in", "step"},
    "sketched-sgd-theory": {"step"},
    "slowmo-adamw": {"average"},
    "streaming-diloco": {"average"},
    "streaming-diloco-sequential": {"average"},
    "streaming-diloco-sgd": {"average"},
}
"""Row -> kinds of which some steps are carried out as ever: they ask for values, or exchange over steps."""
CLOSE = (
    *(f"allreduce-{optimizer}" for optimizer in ("sgd", "adamw", "lion", "muon", "dion2")),
    "powersgd", "diloco", "root-sgd",
)  # fmt: skip
"""Rows in which no sign and no draw turns on the last bit."""
NEVER = {
    "slowmo-adamw-osgp-no-average": "an exchange is under way in most steps",
    "slowmo-sgd": "its state moves to other memory in every round",
    "slowmo-sgd-no-average": "its state moves to other memory in every round",
    "slowmo-sgd-osgp": "an exchange is under way in most steps",
    "slowmo-sgd-sgp": "its state moves to other memory in every round",
    "streaming-diloco-sequential": "an exchange is under way in most steps",
    "streaming-diloco-sgd": "an exchange is under way in most steps",
}
"""Rows of which no step is repeated so early."""


@pytest.fixture(autouse=True)
def _as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody looks at values because they are at hand."""
    monkeypatch.setattr(compute, "at_hand", lambda x: False)


def cluster_of(row: Row, device: str = "cpu") -> SimulatedCluster:
    parameters = list(Net().to(device).parameters())
    rows = torch.zeros(2, WORKERS, sum(p.numel() for p in parameters), device=device)
    options = row.options | ({"total_steps": LENGTH} if row.options.get("total_steps") else {})
    return SimulatedCluster(
        row.algorithm, parameters, WORKERS, lr=LR, seed=3, names=names(), bucket_bytes=512, storage=(rows[0], rows[1]), **options
    )  # fmt: skip


def advance(cluster: SimulatedCluster, step: int) -> None:
    def given(parameters: list[Tensor], rank: int) -> list[Tensor | None]:
        pairs = zip(gradients([p.cpu() for p in parameters], rank, step), parameters, strict=True)
        return [torch.zeros_like(own) if found is None else found.to(own.device) for found, own in pairs]

    there = {
        point: [given(cluster.reference_parameters(rank, point), rank) for rank in range(WORKERS)]
        for point in cluster.reference_points
    }
    cluster.observe(**observed(step))
    here = [given(cluster.parameters(rank), rank) for rank in range(WORKERS)]
    cluster.step(here, lr=learning_rate(step), reference_points=there)


@pytest.mark.parametrize("row", tiered(ROWS, SOME))
def test_a_step_that_is_repeated_is_the_step(row: Row) -> None:
    ours, anew = cluster_of(row), cluster_of(row)
    replays, _ = replayed(ours), replayed(anew, Rehearsed)
    kinds = Counter[str]()
    for step in range(LENGTH):
        advance(ours, step)
        advance(anew, step)
        kinds[ours.kind] += 1
    assert equal(ours.state_dict(), anew.state_dict())
    assert ours.ledger.totals() == anew.ledger.totals()
    assert replays.asking.keys() == ASKING.get(row.id, set()), replays.asking
    repeated = {kind for kind, recordings in replays.recorded.items() if recordings}
    often = {kind for kind, count in kinds.items() if count > 4} - ASKING.get(row.id, set())
    assert row.id in NEVER or often <= repeated, (kinds, replays.recorded)


@pytest.mark.parametrize("row", [row for row in FIRST if row.id in CLOSE], ids=lambda row: row.id)
def test_numbers_as_tensors_change_nothing_but_the_last_bits(row: Row) -> None:
    ours, as_ever = cluster_of(row), cluster_of(row)
    replayed(ours)
    for step in range(8):
        advance(ours, step)
        advance(as_ever, step)
    _close(ours, as_ever)


def _close(ours: SimulatedCluster, other: SimulatedCluster) -> None:
    torch.testing.assert_close(ours.parameters(0), other.parameters(0), rtol=1e-5, atol=1e-6)


def test_lion_steps_all_parameters_together_to_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    def stepped(one_by_one: bool) -> list[Tensor]:
        monkeypatch.setattr(compute, "at_hand", lambda x: one_by_one)
        params = list(Net().parameters())
        optimizer = Lion(params, lr=0.03, weight_decay=0.1)
        for step in range(5):
            for param, found in zip(params, gradients(params, 0, step), strict=True):
                param.grad = found
            optimizer.step()
        return params

    assert equal(stepped(True), stepped(False))


@dataclass(frozen=True)
class Fading(AllReduce):
    """Reads the step where a recording cannot know it."""

    def reduce(self, bucket: Bucket) -> Exchange[Tensor]:
        return (yield from bucket.world.mean(bucket.grads.div_(1 + bucket.step), "gradient"))


def test_a_method_that_asks_for_the_step_is_carried_out_as_ever() -> None:
    ours, as_ever = (
        SimulatedCluster(Method("fading", Fading(), {}), [torch.zeros(5)], WORKERS, lr=0.5, unused="zeros")
        for _ in range(2)
    )
    replays = replayed(ours)
    for _ in range(6):
        for cluster in (ours, as_ever):
            cluster.step([[torch.ones(5)]] * WORKERS)
    assert replays.asking == {"step": ["the method asks for the step in a step"]}
    _close(ours, as_ever)


def _adamw() -> SimulatedCluster:
    return cluster_of(next(row for row in FIRST if row.id == "allreduce-adamw"))


def test_a_checkpoint_is_gone_on_from_to_the_bit() -> None:
    ours, anew = _adamw(), _adamw()
    replayed(ours)
    replayed(anew, Rehearsed)
    for step in range(5):
        advance(ours, step)
    state = ours.state_dict()
    for step in range(5, 8):
        advance(ours, step)
    for cluster in (ours, anew):
        cluster.load_state_dict(state)
        for step in range(5, 10):
            advance(cluster, step)
    assert equal(ours.state_dict(), anew.state_dict())


def test_what_a_device_cannot_record_is_carried_out_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, as_ever = _adamw(), _adamw()
    replays = replayed(ours)

    def record(self: Logged, work: Work) -> Work:
        ours._local_workers.launched = 1  # of two buckets
        raise RuntimeError("not permitted when a stream is capturing")

    monkeypatch.setattr(Logged, "record", record)
    for step in range(6):
        advance(ours, step)
        advance(as_ever, step)
    assert replays.asking == {"step": ["RuntimeError: not permitted when a stream is capturing"]}
    _close(ours, as_ever)


def test_what_comes_after_steps_side_by_side_waits_for_all_of_them() -> None:
    clusters, seen = [_adamw(), _adamw()], []
    for cluster in clusters:
        graphs: Any = SimpleNamespace(joins=True, join=lambda: seen.append("joined"))
        cluster._graphs = graphs
    with side_by_side(clusters):
        assert not any(cluster._graphs.joins for cluster in clusters if cluster._graphs)
        assert not seen
    assert all(cluster._graphs.joins for cluster in clusters if cluster._graphs)
    assert seen == ["joined", "joined"]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="records CUDA graphs")
@pytest.mark.parametrize("row", FIRST, ids=lambda row: row.id)
def test_graphs_of_a_gpu_repeat_the_step(row: Row) -> None:
    ours, anew = cluster_of(row, "cuda"), cluster_of(row, "cuda")
    workers, graphs = anew._local_workers, ours._local_workers.replays
    workers.replays = Rehearsed(workers.workers, workers.engine, CudaGraphs(torch.device("cuda")))
    for step in range(LENGTH):
        with side_by_side([ours]):
            advance(ours, step)
        advance(anew, step)
    _close(ours, anew)
    assert graphs is not None
    assert graphs.asking.keys() == ASKING.get(row.id, set()), graphs.asking


@pytest.mark.skipif(not torch.cuda.is_available(), reason="records CUDA graphs")
@pytest.mark.parametrize("row", SOME, ids=lambda row: row.id)
def test_graphs_of_a_gpu_hold_what_is_compiled(row: Row) -> None:
    def trained(replays: type[Replays]) -> list[Tensor]:
        draws = torch.Generator("cuda").manual_seed(1)
        start = [torch.randn(400, 300, generator=draws, device="cuda"), torch.zeros(300, device="cuda")]
        cluster = SimulatedCluster(
            row.algorithm, start, WORKERS, lr=LR, seed=3, unused="zeros", **row.options
        )
        workers = cluster._local_workers
        workers.replays = replays(workers.workers, workers.engine, CudaGraphs(torch.device("cuda")))
        for _ in range(LENGTH):
            cluster.observe(**observed(0))
            here, there = (
                [
                    [torch.randn(p.shape, generator=draws, device="cuda") for p in start]
                    for _ in range(WORKERS)
                ]
                for _ in range(2)
            )
            cluster.step(here, reference_points=dict.fromkeys(cluster.reference_points, there))
        return cluster.parameters(0)

    torch.testing.assert_close(trained(Replays), trained(Rehearsed), rtol=1e-5, atol=1e-6)
