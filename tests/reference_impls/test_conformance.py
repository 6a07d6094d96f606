"""What `bandwise test-method` holds an author's method to holds for every name, in every configuration of the table."""

from __future__ import annotations

from typing import Any

import pytest

from bandwise import method_checks
from bandwise.method_checks import check_method
from reference_impls import create
from tests.reference_impls.table import SOME, Row, tiered


@pytest.mark.parametrize("row", tiered(fast=SOME))
def test_every_check_holds(row: Row, monkeypatch: pytest.MonkeyPatch) -> None:
    """But for the one on real processes: `test_gloo.py` holds it for all rows on processes that live on."""
    monkeypatch.setattr(method_checks, "_real", lambda options, method: "elsewhere")
    # at the checks' rate, a momentum of 0.9 on gradients that are not fresh diverges
    options = {**row.options, **({"momentum": 0.0} if row.id == "lag" else {})}
    found = {outcome.check: outcome for outcome in check_method(row.algorithm, **options)}
    expected: dict[str, Any] = dict.fromkeys(found, True)
    if row.deaf:
        expected["a NaN is seen by all"] = False
    if row.replicas == "never":
        expected["replicas are equal"] = None
    if create(row.algorithm, **row.options).algorithm.plans_from_data:
        expected["what is asked does not depend on data"] = None
    assert {check: outcome.holds for check, outcome in found.items()} == expected, found
