"""What a training consists of is what it does when it is run, and rounds between measured lengths lie on a line."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

import pytest
import torch

from reference_impls import SimulatedCluster
from suite.analysis.collect import sent_by_kind
from suite.analysis.speed import (
    CompositionError,
    composed_s,
    makeup,
    makeup_of,
    planned_kinds,
    round_s,
)
from suite.runs.spec import Rate, RunSpec, learning_rate, resolve_algorithm, resolve_workload
from suite.workloads import get
from tests.reference_impls.problem import observed
from tests.reference_impls.table import SOME, STEPS, tiered


def spec_of(algorithm: str, options: dict[str, object], steps: int = STEPS) -> RunSpec:
    rate = Rate("cosine", 0.01, 0.0001, 2)
    return RunSpec.of(
        algorithm=resolve_algorithm(algorithm, options, 2, steps, rate.warmup),
        workload=resolve_workload("digits-mlp", {}, "iid"),
        sharding="iid",
        world_size=2,
        steps=steps,
        batch_size=4,
        lr=rate,
        seed=3,
        backend="simulated",
        bucket_bytes=1 << 20,
    )


@pytest.mark.parametrize("row", tiered(fast=SOME))
def test_planned_kinds_are_those_that_are_taken(row):
    spec = spec_of(row.algorithm, row.options)
    rate = learning_rate(spec)
    cluster = SimulatedCluster(
        spec.algorithm.name,
        [torch.zeros(40)],
        world_size=2,
        lr=spec.lr.peak,
        seed=3,
        **spec.algorithm.options,
    )
    generator = torch.Generator().manual_seed(1)
    taken = []
    for step in range(spec.steps):
        cluster.observe(**observed(step))
        grads = [[torch.randn(40, generator=generator)] for _ in range(2)]
        reference_points = dict.fromkeys(cluster.reference_points, grads)
        cluster.step(grads, lr=rate(step), reference_points=reference_points)
        taken.append(cluster.kind)
    if cluster.method.algorithm.plans_from_data:
        with pytest.raises(CompositionError, match="depends on the data"):
            planned_kinds(spec)
    else:
        assert planned_kinds(spec) == taken


@pytest.mark.parametrize(("bucket_bytes", "steps"), [(1 << 20, 48), (4 << 20, 48), (1 << 18, 45)])
def test_averages_of_fragments_are_those_that_the_ledger_counts(bucket_bytes, steps):
    """As many whole models leave as are counted, whether fragments are alike, differ in size, or one is empty."""
    options = {"period": 16, "fragments": 2}
    spec = replace(spec_of("streaming-diloco", options, steps), bucket_bytes=bucket_bytes)
    model = get("digits-mlp").build().to_empty(device="cpu")
    zeros = [torch.zeros_like(param) for param in model.parameters()]
    cluster = SimulatedCluster(
        "streaming-diloco", zeros, world_size=2, bucket_bytes=bucket_bytes, **spec.algorithm.options
    )
    for _ in range(steps):
        cluster.step([zeros, zeros])
    sent = sum(row["wire_bytes"] for row in cluster.ledger.totals())
    # in a ring of two workers each sends as many bytes of float32 as it holds
    a_model = 2 * 4 * sum(param.numel() for param in zeros)
    parts = makeup_of(spec, planned_kinds(spec), ["round-4", "round-16"])
    rounds = sum(parts.units.values())
    assert (rounds + parts.more) / 2 == pytest.approx(sent / a_model, rel=1e-3)
    seconds = composed_s(parts, {"round-4": 4 * 0.1 + 3.0, "round-16": 16 * 0.1 + 3.0})
    assert seconds == pytest.approx(steps * 0.1 + 3.0 * 2 * sent / a_model, rel=1e-3)
    by_step = cluster.ledger.frame(rank=0).groupby("step")["wire_bytes"].sum()
    result = {
        "steps": steps,
        "steps_by_kind": Counter(planned_kinds(spec)),
        "bytes": {"by": cluster.ledger.totals()},
    }
    told = json.loads(sent_by_kind(spec, result) or "")
    assert Counter(round(float(by_step.get(step, 0))) for step in range(steps)) == sum(
        (Counter({round(nbytes): n}) for n, nbytes, _ in told.values()), Counter()
    )
    assert {kind.split()[0]: one[2] for kind, one in told.items()} == {"local": 1, "average": 2, "final": 1}


@pytest.mark.parametrize(
    ("kinds", "timed", "words"),
    [
        (["step", "sync"], ["step"], "no steps of the kind sync"),
        (["step"], [], "no steps of the kind step"),
        (["average", "local", "local"], ["round-1", "round-4"], "ends 2 steps into a round"),
    ],
)
def test_what_was_not_timed_makes_up_no_training(kinds, timed, words):
    with pytest.raises(CompositionError, match=words):
        makeup(kinds, timed)


def test_rounds_lie_on_the_line_between_their_neighbours():
    known = {4: 1.0, 16: 2.0, 64: 10.0}
    assert [round_s(h, known) for h in (4, 10, 16, 40, 64)] == [1.0, 1.5, 2.0, 6.0, 10.0]
    assert round_s(70, known) == pytest.approx(11.0)  # the slope of the last two
    assert round_s(1, known) == pytest.approx(0.75)  # the slope of the first two
    with pytest.raises(CompositionError, match="come out at"):
        round_s(1, {4: 0.1, 16: 2.0})
    with pytest.raises(CompositionError, match="two measured lengths"):
        round_s(5, {4: 1.0})
    assert round_s(4, {4: 1.0}) == 1.0
