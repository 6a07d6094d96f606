"""Which methods estimate the mean gradient without bias."""

from __future__ import annotations

import copy
import dataclasses

import pytest
import torch
from torch import Tensor

from reference_impls import SimulatedCluster, create
from reference_impls.core.algorithm import Algorithm, Bucket
from reference_impls.core.registry import Method
from tests.reference_impls.problem import observed
from tests.reference_impls.table import FIRST, ROWS, Row, tiered

DRAWS, MORE_DRAWS, RANKS, BEFORE = 200, 400, 3, 4
CLASSES = 6
"""Coordinates of one class have one value a rank, so that means over a class are draws of one number."""
PARTS = ((16, 12), (12,), (5,))
TOTAL = 209


def fixed_gradients(ranks: int) -> tuple[list[list[Tensor]], Tensor]:
    """Gradients a rank of shapes PARTS, and the class of each coordinate. Values from 0.3 to 1 of either sign, and 0."""
    generator = torch.Generator().manual_seed(11)
    classes = torch.randperm(TOTAL, generator=generator) % CLASSES
    values = 0.3 + 0.7 * torch.rand(ranks, CLASSES, generator=generator)
    values *= torch.where(torch.rand(ranks, CLASSES, generator=generator) < 0.3, -1.0, 1.0)
    values[0, 0] = 0.0
    flat = values[:, classes]
    sizes = [torch.Size(shape).numel() for shape in PARTS]
    split = [[x.view(s) for x, s in zip(row.split(sizes), PARTS, strict=True)] for row in flat]
    return split, classes


def recording(own: Algorithm, seen: list[Tensor]) -> Algorithm:
    """The same method; what rank 0's `reduce` answers is kept."""

    class Recording(type(own)):  # type: ignore[misc]
        def update(self, bucket: Bucket, reduced: Tensor) -> None:
            if bucket.world.rank == 0:
                seen.append(reduced.clone())
            super().update(bucket, reduced)

    fields = {f.name: getattr(own, f.name) for f in dataclasses.fields(own)}
    made: Algorithm = Recording(**fields)
    return made


def draws(row: Row, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """[count, TOTAL] answers of `reduce` to one gradient from one state, with the random streams of as many seeds.

    The state is the one after some steps with the same gradient, so errors carried along and memories are not zero.
    Answers, the mean gradient, the class of each coordinate.
    """
    own, seen = create(row.algorithm, **row.options), []
    ranks = min(RANKS, row.largest)
    grads, classes = fixed_gradients(ranks)
    method = Method(own.name, recording(own.algorithm, seen), own.hyperparameters)
    cluster = SimulatedCluster(method, [torch.zeros(shape) for shape in PARTS], ranks, lr=1e-6)
    while cluster.steps < BEFORE or cluster.kind == "warm-up":
        cluster.observe(**observed(cluster.steps))
        cluster.step(grads)
    assert len(cluster._workers[0].buckets) == 1
    state = copy.deepcopy(cluster.state_dict())
    seen.clear()
    for draw in range(count):
        cluster.load_state_dict(state)
        for worker in cluster._workers:
            worker.train_state.seed = draw
        cluster.step(grads)
    mean = torch.stack([torch.cat([x.reshape(-1) for x in rank]) for rank in grads]).mean(0)
    return torch.stack(seen).to(torch.float64), mean.to(torch.float64), classes


def refuted(answers: Tensor, mean: Tensor, classes: Tensor) -> bool:
    """Whether the draws show that their expectation is not `mean`.

    Per class of equal coordinates: |mean deviation| > 5 standard errors. Per coordinate: above 8 standard errors and
    an eighth of the largest deviation seen, since what is rarely sent may not have been sent at all. Deviations of
    single-precision rounding do not count.
    """
    off = answers - mean
    rounding = 2e-6 * float(mean.abs().max())
    by_class = torch.stack([off[:, classes == c].mean(1) for c in range(CLASSES)], dim=1)
    error = by_class.std(0) / len(answers) ** 0.5
    if bool((~(by_class.mean(0).abs() <= 5 * error + rounding)).any()):
        return True
    error = off.std(0) / len(answers) ** 0.5
    return bool((~(off.mean(0).abs() <= 8 * error + off.abs().max() / 8 + rounding)).any())


UNBIASED = frozenset(
    {
        "allreduce", "allreduce-sgd", "allreduce-adamw", "allreduce-lion", "global-qsgd", "qsgd", "qsgd-published",
        "qsgd-maxnorm", "terngrad", "natural-compression", "natural-dithering", "nuqsgd", "cgx", "intsgd",
        "dq-sgd", "adaqs", "random-k",
    }
)  # fmt: skip
BIASED = frozenset(
    {
        "allreduce-bf16", "allreduce-fp16", "ef-sign-adam", "ef-signsgd", "intsgd-heuristic", "powersgd", "thc", "l-greco",
        "sdp4bit-gradients", "loco", "top-k", "gtop-k", "dgc", "sketched-sgd", "sketched-sgd-theory", "gs-sgd",
        "control-random-k", "dynamiq",
    }
)  # fmt: skip
"""Methods whose `reduce` estimates the mean gradient; others take local steps, or vote."""
OTHERWISE = frozenset(
    {
        "terngrad-clipped", "cgx-nearest-gather", "intsgd-nearest", "random-k-feedback", "top-k-all",
        "sdp4bit-gradients-stochastic", "dynamiq-independent-3",
    }
)  # fmt: skip
"""Rows whose options turn it round."""


ESTIMATORS = [row for row in ROWS if row.algorithm in UNBIASED | BIASED]
DRAWN = ("allreduce-fp16", "qsgd", "random-k")
"""A method of every way to round or to choose; draws take long."""


@pytest.mark.parametrize("row", tiered(ESTIMATORS, [row for row in FIRST if row.id in DRAWN]))
def test_bias_is_as_said(row: Row) -> None:
    count = DRAWS if row.id in DRAWN else MORE_DRAWS
    answers, mean, classes = draws(row, count)
    assert answers.shape == (count, TOTAL)
    unbiased = not refuted(answers, mean, classes)
    assert unbiased == ((row.algorithm in UNBIASED) != (row.id in OTHERWISE))
