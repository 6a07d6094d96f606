"""The job that times whole steps on a GPU, carried out on a CPU with a small model."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from suite.gpu.steps import ARMS, BASE, COLUMNS, TORCH, Size, measure
from suite.gpu.tables import write


@pytest.fixture
def alone() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("alone")
def test_every_arm_takes_its_steps_and_has_a_row(tmp_path: Path) -> None:
    arms = [arm for arm in ARMS if arm != "torch: bf16 hook"]  # which needs NCCL
    rows = measure(torch.device("cpu"), Size(16, 1, 2, 8, 2), arms, block=1, rounds=3, warm=3)
    table = tmp_path / "gpu" / "steps.csv"
    for device in ("H100", "H200", "H100"):  # again: in the place of its own rows alone
        write(
            table, [{**row, "device": device, "torch": "2.11.0", "triton": "3.6.0"} for row in rows], COLUMNS
        )
    with table.open(newline="", encoding="utf-8") as file:
        every = list(csv.DictReader(file))
    assert [row["device"] for row in every] == ["H200"] * len(arms) + ["H100"] * len(arms)
    found = {row["arm"]: row for row in every}
    assert list(found) == arms
    assert tuple(found[BASE]) == COLUMNS
    assert float(found[BASE]["kappa"]) == 0
    assert float(found[BASE]["own_s"]) == 0
    own, theirs = "hook: powersgd", TORCH["hook: powersgd"]
    bar = 1.1 * float(found[theirs]["own_s"])
    assert float(found[own]["bar_s"]) == pytest.approx(bar, rel=1e-3)
    assert (found[own]["met"] == "yes") == (float(found[own]["own_s"]) <= bar)
