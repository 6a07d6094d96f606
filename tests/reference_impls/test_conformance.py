"""What `bandwise test-method` holds an author's method to holds for every name, in every configuration of the table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from bandwise import method_checks
from bandwise.method_checks import CHECKS, check_method
from reference_impls import create
from tests.reference_impls.table import FIRST, SOME, Row, tiered

NAN = "a NaN is seen by all"
ALONE = "a rank alone sends the same"
DECIDED_LATE = {
    "lion-cub-1bit-selective",
    "global-qsgd-sparse",
    "lag",
    "lag-short-memory",
    "control-random-k",
}
"""Rows whose bytes gradients or draws decide: the check tells nothing of them."""


def _outcomes(row: Row) -> tuple[Mapping[str, bool | None], Mapping[str, str]]:
    """Whether each check holds, and what was seen."""
    # at the checks' rate, a momentum of 0.9 on gradients that are not fresh diverges
    options = {**row.options, **({"momentum": 0.0} if row.id == "lag" else {})}
    found = list(check_method(row.algorithm, **options))
    return {one.check: one.holds for one in found}, {one.check: one.seen for one in found if not one.holds}


def _expected(row: Row) -> dict[str, Any]:
    """What a row does not hold, and what it does not declare."""
    expected: dict[str, Any] = {NAN: False} if row.deaf else {}
    if row.replicas == "never":
        expected["replicas are equal"] = None
    if create(row.algorithm, **row.options).algorithm.plans_from_data:
        expected["what is asked does not depend on data"] = None
    if row.id in DECIDED_LATE:
        expected[ALONE] = None
    if row.options.get("inner_state") == "average":  # of a parameter that nobody uses there is none
        expected[ALONE] = False
    return expected


@pytest.fixture(autouse=True)
def _no_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """`test_gloo.py` holds the check on real processes for all rows, on processes that live on."""
    monkeypatch.setattr(method_checks, "_real", lambda options, method: "elsewhere")


@pytest.mark.parametrize("row", tiered(fast=SOME))
def test_every_check_holds(row: Row) -> None:
    holds, seen = _outcomes(row)
    assert holds == dict.fromkeys(holds, True) | _expected(row), seen


@pytest.mark.parametrize("row", [pytest.param(row, id=row.id) for row in FIRST if row not in SOME])
def test_a_nan_is_seen_by_all(row: Row, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check that mechanisms leave to this file, of the names that the fast tests do not hold to all."""
    monkeypatch.setattr(method_checks, "CHECKS", {NAN: CHECKS[NAN]})
    holds, seen = _outcomes(row)
    assert holds[NAN] is not bool(row.deaf), seen
