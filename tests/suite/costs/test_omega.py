"""omega is measured in turns with an fp32 addition, and a byte is a byte."""

from __future__ import annotations

import pytest

from suite.analysis.tables import number, rows_of, to_csv
from suite.costs import papers
from suite.costs.columns import OMEGA
from suite.costs.papers import omega_table
from suite.micro.pairs import Pairs


def test_bytes_of_codes_are_compared_with_bytes_of_floats(monkeypatch: pytest.MonkeyPatch) -> None:
    """Codes of a quarter of the bytes that take as long: a byte is added four times as slowly."""
    monkeypatch.setattr(papers, "in_turns", lambda *given, **more: Pairs((1e-3,) * 20, (1e-3,) * 20))
    rows = rows_of(omega_table(threads=1, numel=1000))
    assert {row["dithering"] for row in rows} == {"standard", "exponential"}
    for row in rows:
        assert row["omega"] == 4.0
        assert row["gamma"] == 4 * 1000 / 1e-3
        assert row["break_even"] is None  # codes that are no slower an element always pay
    to_csv(OMEGA, rows)


def test_slow_additions_have_a_break_even(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(papers, "in_turns", lambda *given, **more: Pairs((1e-3,) * 20, (4e-3,) * 20))
    row = rows_of(omega_table(threads=1, numel=1000))[0]
    assert row["omega"] == 16.0
    assert number(row, "break_even") == pytest.approx(6 * number(row, "gamma") / 12)


def test_a_real_measurement_orders_the_two() -> None:
    found = {
        row["dithering"]: number(row, "omega")
        for row in rows_of(omega_table(threads=1, numel=200_000, budget_s=0.2))
    }
    assert found["exponential"] > found["standard"] > 0
