"""The job that times simulated training on a GPU, carried out on a CPU with a small model."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import torch

from suite.gpu.simulation import ARMS, BARS, COLUMNS, Shape, measure, timed
from suite.workloads.base import skeleton
from suite.workloads.code import SIZES


def test_every_arm_has_a_row_at_every_size_and_is_not_measured_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for size in BARS:
        monkeypatch.setitem(SIZES, size, (1, 32))
    skeleton.cache_clear()
    table, facts = tmp_path / "gpu" / "simulation.csv", {"device": "a CPU", "torch": "2", "triton": ""}
    asked = []

    def row(size: str, arm: str) -> dict[str, object]:
        asked.append((size, arm))
        return timed(size, arm, torch.device("cpu"), Shape(2, 2, 1), block=1, rounds=2, warm=1)

    assert not measure(table, row, facts, budget_s=-1)
    assert not asked
    assert measure(table, row, facts)
    assert measure(table, row, facts)
    skeleton.cache_clear()
    assert asked == [(size, arm) for size in BARS for arm in ARMS]
    with table.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == COLUMNS
    assert [(found["size"], found["arm"]) for found in rows] == asked
    parameters = 32 * (256 + 128) + 12 * 32 * 32 + 13 * 32 + 2 * 32 + 33 * 256
    for found in rows:
        assert int(found["parameters"]) == parameters
        operations = 6 * parameters * 2 * 2 * 1 * 128
        rate = operations / float(found["gradients_s"]) / 1e12
        assert float(found["tflops"]) == pytest.approx(rate, rel=1e-3)
        own, share = float(found["own_s"]), float(found["share"])
        assert share == pytest.approx(own / (own + float(found["gradients_s"])), rel=1e-2)
        assert (found["met"], found["share_met"]) == ("no", "yes" if share <= 0.25 else "no")
