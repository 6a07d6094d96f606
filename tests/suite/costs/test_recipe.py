"""What a step asks for is what the method declares and what the ledger counts, bucket by bucket."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from reference_impls import SimulatedCluster, create
from reference_impls.registry import Method
from suite.costs.recipe import recipe_of
from suite.costs.step import FORMS, OF_PROBE, Recipe, RecipeError, measured_as, transformer_shapes

SHAPES = [(64, 48), (48,), (96, 64), (128,)]
METHODS: list[tuple[str, dict[str, Any], str]] = [
    ("allreduce-sgd", {}, "step"),
    ("allreduce-bf16", {"optimizer": "sgd"}, "step"),
    ("global-qsgd", {"dithering": "standard"}, "step"),
    ("global-qsgd", {"dithering": "exponential"}, "step"),
    ("qsgd", {}, "compressed"),
    ("lion-cub-1bit", {"momentum_sync": "never"}, "step"),
    ("lion-cub-pbit", {"bits": 8}, "step"),
    ("powersgd", {}, "compressed"),
    ("apmsqueeze", {}, "compressed"),
    ("apmsqueeze", {}, "warm-up"),
]


def _steady(name: str, options: dict[str, Any], kind: str) -> Method:
    method = create(name, **options)
    return Method(name, method.algorithm.steady()[kind], method.hyperparameters)


def _sent(recipe: Recipe) -> float:
    return sum(
        FORMS[OF_PROBE[measured_as(request)]].sent(request.ranks) * request.nbytes
        for step in recipe.steps
        for request in step.requests()
    )


@pytest.mark.parametrize("n", [2, 4])
@pytest.mark.parametrize(("name", "options", "kind"), METHODS)
def test_bytes_are_those_of_a_cluster_of_so_many_workers(
    name: str, options: dict[str, Any], kind: str, n: int
) -> None:
    """The ledger of a real simulation, the same kind of step, rank 0."""
    method = _steady(name, options, kind)
    recipe = recipe_of(method, SHAPES, n, kind=kind, bucket_bytes=16384)
    params = [torch.randn(shape) for shape in SHAPES]
    cluster = SimulatedCluster(method, params, world_size=n, lr=1e-6, bucket_bytes=16384)
    counted = 0.0
    for _ in range(6):
        cluster.ledger.clear()
        cluster.step([[torch.randn(shape) for shape in SHAPES] for _ in range(n)])
        if cluster.kind == kind:
            rows = [row for row in cluster.ledger.totals() if row["rank"] == 0]
            counted = sum(row["wire_bytes"] for row in rows)
    assert counted > 0
    assert _sent(recipe) == pytest.approx(counted, rel=1e-12)


def test_buckets_come_last_layers_first_and_share_the_elements() -> None:
    step = recipe_of(create("allreduce-sgd"), SHAPES, 4, bucket_bytes=16384).steps[0]
    sizes = [sum(request.nbytes for request in bucket.requests) for bucket in step.buckets]
    assert sizes == [4 * 128, 4 * 96 * 64, 4 * (64 * 48 + 48)]
    assert sum(bucket.share for bucket in step.buckets) == pytest.approx(1.0)
    assert [request.dtype for request in step.requests()] == ["float32"] * 3


def test_a_round_has_its_steps_and_communicates_in_the_last() -> None:
    method = create("local-sgd", period=4)
    method = Method(method.name, method.algorithm.steady()["round-4"], method.hyperparameters)
    recipe = recipe_of(method, SHAPES, 4, kind="round-4")
    assert [step.kind for step in recipe.steps] == ["local", "local", "local", "average"]
    assert not list(recipe.steps[0].requests())
    assert sum(request.nbytes for request in recipe.steps[-1].after) == 4 * sum(map(math.prod, SHAPES))


@pytest.mark.parametrize("kind", ["round-4", "round-16"])
@pytest.mark.parametrize("bucket_bytes", [1 << 30, 64])
def test_a_unit_of_a_model_in_fragments_sends_the_whole_of_it_once(kind: str, bucket_bytes: int) -> None:
    """Also where the model is one bucket, so that one of two fragments is all of it and the other empty."""
    streaming = _steady("streaming-diloco", {"fragments": 2}, kind)
    recipe = recipe_of(streaming, SHAPES, 4, kind=kind, bucket_bytes=bucket_bytes)
    assert len(recipe.steps) == 2 * int(kind.removeprefix("round-"))
    nbytes = sum(request.nbytes for step in recipe.steps for request in step.after)
    assert nbytes == 4 * sum(map(math.prod, SHAPES))


def test_a_scaled_recipe_sends_so_many_times_as_much_in_as_many_messages() -> None:
    recipe = recipe_of(_steady("qsgd", {}, "compressed"), SHAPES, 4, kind="compressed")
    larger = recipe.scaled(10.0)
    assert _sent(larger) == pytest.approx(10 * _sent(recipe))
    assert len(list(larger.steps[0].requests())) == len(list(recipe.steps[0].requests()))


def test_any_number_of_workers_needs_no_network() -> None:
    recipe = recipe_of(_steady("lion-cub-1bit", {"momentum_sync": "never"}, "step"), [(1000, 100)], 1024)
    assert {request.ranks for request in recipe.steps[0].requests()} == {1024}


def test_steps_that_do_not_come_are_refused() -> None:
    with pytest.raises(RecipeError, match="no steps of kind 'sync'"):
        recipe_of(create("allreduce-sgd"), SHAPES, 4, kind="sync")


@pytest.mark.parametrize("parameters", [1, 1000, 3.3e6, 110e6])
def test_a_stand_in_has_as_many_parameters(parameters: float) -> None:
    total = sum(map(math.prod, transformer_shapes(parameters)))
    assert total == int(parameters)


def test_a_model_has_parameters() -> None:
    with pytest.raises(RecipeError, match="at least 1"):
        transformer_shapes(float("nan"))


def test_halving_and_doubling_talk_with_one_rank_both_ways_and_a_tree_does_not() -> None:
    recipe = recipe_of(_steady("global-qsgd", {"dithering": "exponential"}, "step"), SHAPES, 4)
    sent = [request for request in recipe.steps[0].requests() if request.collective == "send-recv"]
    assert sent
    assert all(request.mutual for request in sent)
    recipe = recipe_of(_steady("global-qsgd", {"dithering": "exponential"}, "step"), SHAPES, 3)
    sent = [request for request in recipe.steps[0].requests() if request.collective == "send-recv"]
    assert sent
    assert not any(request.mutual for request in sent)
