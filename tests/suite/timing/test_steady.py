"""What a timing session asks of a method: a configuration for every kind of step, equal where the steps are alike."""

from __future__ import annotations

from typing import Any

import pytest

from reference_impls import SimulatedCluster, create
from reference_impls.algorithms.local_updates import ROUNDS, LocalUpdates
from reference_impls.core.algorithm import Algorithm
from reference_impls.core.registry import Method
from suite.timing.cases import steady
from tests.reference_impls.problem import (
    LR,
    Net,
    at_reference_points,
    gradients,
    learning_rate,
    names,
    observed,
)
from tests.reference_impls.table import ROWS, SOME, Row, tiered
from tests.reference_impls.trajectories import trajectory

BY_GRADIENTS = {
    "control-random-k": "step",
    "global-qsgd-sparse": "step",
    "l-greco": "compressed",
    "l-greco-warm-up": "compressed",
    "lag": "step",
    "lag-short-memory": "step",
    "lion-cub-1bit-selective": "sync",
}
"""Rows of which a kind of step sends what gradients decide."""
SIZE = 3


def cluster(method: Method) -> SimulatedCluster:
    return SimulatedCluster(
        method, list(Net().parameters()), SIZE, lr=LR, seed=3, names=names(), bucket_bytes=256
    )


def kinds_of(members: SimulatedCluster, steps: int) -> list[str]:
    """Train; the kind of every step."""
    found = []
    for step in range(steps):
        grads = [gradients(members.parameters(r), r, step) for r in range(SIZE)]
        members.observe(**observed(step))
        members.step(grads, lr=learning_rate(step), reference_points=at_reference_points(members, step))
        found.append(members.kind)
    return found


def sent(members: SimulatedCluster, kind: str) -> set[tuple[Any, ...]]:
    """What rank 0 sent in steps of one kind: the distinct whole steps, each a tuple of stages with their bytes."""
    frame = members.ledger.frame()
    frame = frame[(frame["kind"] == kind) | (frame["kind"] == "plan")]
    columns = ["stage", "collective", "calls", "payload_bytes", "wire_bytes"]
    return {
        tuple(map(tuple, rows[columns].to_numpy().tolist())) for _, rows in frame.groupby("step", sort=True)
    }


def stages(members: SimulatedCluster, kind: str) -> set[str]:
    """The stages of all collectives of rank 0 in steps of one kind."""
    return {stage for step in sent(members, kind) for stage, *_ in step}


def method(row: Row) -> Method:
    return create(row.algorithm, **row.options)


def with_steady(row: Row, algorithm: Algorithm) -> Method:
    return Method(row.algorithm, algorithm, method(row).hyperparameters)


PLANNED = ("loss", "accuracy")  # what rules plan by
LOCAL = [row for row in ROWS if isinstance(method(row).algorithm, LocalUpdates)]
STEPPING = [row for row in ROWS if row not in LOCAL]
CASES = [(row, kind) for row in STEPPING for kind in steady(method(row).algorithm)]


@pytest.mark.parametrize("row", tiered(STEPPING, SOME))
def test_every_kind_of_step_that_comes_is_there(row: Row) -> None:
    assert set(trajectory(row, SIZE).kinds) <= set(steady(method(row).algorithm))


@pytest.mark.parametrize(
    ("row", "kind"),
    [
        pytest.param(row, kind, id=f"{row.id}-{kind}", marks=() if row in SOME else pytest.mark.full)
        for row, kind in CASES
    ],
)
def test_steps_of_the_kind_come_at_once_often_and_send_the_same(row: Row, kind: str) -> None:
    timed = cluster(with_steady(row, steady(method(row).algorithm)[kind]))
    seen = kinds_of(timed, 8)
    assert kind in seen[:4]
    assert seen.count(kind) >= 6
    real = trajectory(row, SIZE).cluster
    if BY_GRADIENTS.get(row.id) == kind:
        assert stages(timed, kind) & stages(real, kind)
    else:
        assert len(sent(timed, kind)) <= 1
        assert sent(timed, kind) == sent(real, kind)


def test_what_is_timed_is_timed_as_it_is() -> None:
    for row, kind in CASES:
        timed = steady(method(row).algorithm)[kind]
        assert timed.steadily(kind) == timed, (row.id, kind)


@pytest.mark.parametrize("row", tiered(LOCAL, SOME))
def test_local_updates_are_timed_by_whole_rounds(row: Row) -> None:
    seen = set(trajectory(row, SIZE).kinds)
    assert seen <= {"local", "average", "step", "final"}
    rounds = dict(steady(method(row).algorithm))
    if "step" in seen:  # data-parallel at first
        assert set(kinds_of(cluster(with_steady(row, rounds.pop("step"))), 4)) == {"step"}
    assert list(rounds) == [f"round-{h}" for h in ROUNDS]
    for h in ROUNDS[:3]:
        timed = cluster(with_steady(row, rounds[f"round-{h}"]))
        assert kinds_of(timed, 2 * h) == (["local"] * (h - 1) + ["average"]) * 2
        if not row.algorithm.startswith(
            ("streaming", "noloco")
        ):  # fragments differ; one of three stays alone
            (step,) = sent(timed, "average")
            real = trajectory(row, SIZE).cluster
            stages = {tuple(s for s in step if s[0] not in PLANNED) for step in sent(real, "average")}
            assert stages - {()} == {step}
