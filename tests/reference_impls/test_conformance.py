"""What `bandwise test-method` holds an author's method to holds for every name, in every configuration of the table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch

from bandwise import method_checks
from bandwise.method_checks import CHECKS, check_method
from reference_impls import create, list_algorithms
from reference_impls.core.optimizers import local_optimizer
from tests.reference_impls.problem import LR, Net, advance, gradients, learning_rate, names
from tests.reference_impls.table import A_CLASS, FIRST, ROWS, SOME, STEPS, Row, tiered
from tests.reference_impls.trajectories import build, trajectory

NAN = "a NaN is seen by all"
EQUAL = "replicas are equal"
ALONE = "a rank alone sends the same"
RESUMED = "a checkpoint changes no bit"
DECIDED_LATE = {
    "lion-cub-1bit-selective",
    "global-qsgd-sparse",
    "lag",
    "lag-short-memory",
    "control-random-k",
    "pulse-loco",
}
"""Rows whose bytes gradients or draws decide: the check tells nothing of them."""


def _check(row: Row) -> None:
    # at the checks' rate, a momentum of 0.9 on gradients that are not fresh diverges
    options = {**row.options, **({"momentum": 0.0} if row.id == "lag" else {})}
    found = list(check_method(row.algorithm, **options))
    holds = {one.check: one.holds for one in found}
    expected = {check: what for check, what in _expected(row).items() if check in holds}
    assert holds == dict.fromkeys(holds, True) | expected, {
        one.check: one.seen for one in found if not one.holds
    }


def _expected(row: Row) -> Mapping[str, Any]:
    """What a row does not hold, and what it does not declare."""
    expected: dict[str, Any] = {NAN: False} if row.deaf else {}
    if row.replicas == "never":
        expected[EQUAL] = None
    if create(row.algorithm, **row.options).algorithm.plans_from_data:
        expected["what is asked does not depend on data"] = None
    if row.id in DECIDED_LATE:
        expected[ALONE] = None
    if row.options.get("inner_state") == "average" or row.id == "pulse-loco-average":
        expected[ALONE] = False  # of a parameter that nobody uses there is none
    if row.algorithm == "des-loc":  # nor here, and what an average sends changes besides
        expected[ALONE] = None
    return expected


@pytest.fixture(autouse=True)
def _no_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """`test_gloo.py` holds the check on real processes for all rows, on processes that live on."""
    monkeypatch.setattr(method_checks, "_real", lambda options, method: "elsewhere")


def test_the_table_names_every_algorithm() -> None:
    assert {row.algorithm for row in ROWS} >= set(list_algorithms()) - {"allreduce", "qsr"}


@pytest.mark.parametrize("row", tiered(fast=SOME))
def test_every_check_holds(row: Row) -> None:
    _check(row)


@pytest.mark.parametrize("row", tiered((row for row in FIRST if row not in SOME), A_CLASS))
def test_replicas_are_equal_a_checkpoint_changes_no_bit_and_a_nan_is_seen_by_all(
    row: Row, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checks that mechanisms leave to this file, of the names that the fast tests do not hold to all."""
    monkeypatch.setattr(method_checks, "CHECKS", {check: CHECKS[check] for check in (EQUAL, RESUMED, NAN)})
    _check(row)


@pytest.mark.parametrize("row", tiered(row for row in ROWS if row.replicas != "step"))
def test_workers_that_part_meet_when_the_method_says_so(row: Row) -> None:
    """After every step of kind `average`, at the end of a training whose length is told, or never."""
    n = min(3, row.largest)
    trained = trajectory(row, n)
    met = [
        all(torch.equal(*pair) for rank in range(1, n) for pair in zip(after[0], after[rank], strict=True))
        for after in trained.parameters
    ]
    kinds = ("average", "step") if row.replicas == "average" else ()
    assert all(now for now, kind in zip(met, trained.kinds, strict=True) if kind in kinds)
    if row.options.get("total_steps", STEPS) is not None:  # else nobody says which step is the last
        assert met[-1] == (row.replicas != "never")
    assert not all(met)


@pytest.mark.parametrize("row", tiered(row for row in ROWS if row.plain))
def test_one_worker_is_the_plain_optimizer(row: Row) -> None:
    """n = 1: the same bits as torch's own optimizer (Lion: as ours) stepped on the same gradients."""
    cluster = build(row, 1)
    model = Net()
    name, hyper = row.plain
    optimizer = local_optimizer(name).build([{"params": list(model.named_parameters()), "lr": LR, **hyper}])
    for step in range(STEPS):
        advance(cluster, 1)
        optimizer.param_groups[0]["lr"] = learning_rate(step)
        for own, gradient, name in zip(
            model.parameters(), gradients(list(model.parameters()), 0, step), names(), strict=True
        ):  # one that was used once has a gradient of zeros afterwards
            own.grad = torch.zeros_like(own) if gradient is None and name != "unused" else gradient
        optimizer.step()
    for own, simulated, name in zip(model.parameters(), cluster.parameters(0), names(), strict=True):
        assert torch.equal(own, simulated), name
