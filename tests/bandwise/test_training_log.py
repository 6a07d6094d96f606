"""A training's bytes in trackers of every kind that is known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from bandwise import SimulatedCluster, TrainingLog
from bandwise.training_log import TrackerError
from reference_impls.core.errors import UsageError
from tests.support import blocks

STEPS = 3


class Scalars:
    """As tensorboard's SummaryWriter."""

    def __init__(self) -> None:
        self.values: list[tuple[str, float, int]] = []

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None:
        self.values.append((tag, scalar_value, global_step))


class Run:
    """As a run of wandb."""

    def __init__(self) -> None:
        self.steps: list[tuple[int, dict[str, float]]] = []

    def log(self, data: dict[str, Any], step: int) -> None:
        self.steps.append((step, data))


class Metrics:
    """As the module mlflow, and Lightning's loggers."""

    def __init__(self) -> None:
        self.steps: list[tuple[int, dict[str, float]]] = []

    def log_metrics(self, metrics: dict[str, float], step: int) -> None:
        self.steps.append((step, metrics))


def train(*trackers: Any) -> tuple[list[dict[str, float]], pd.DataFrame]:
    """What a log answers at each step of a training that warms up for one step, and the ledger of the same without a log."""
    found: list[dict[str, float]] = []
    frames = []
    for logged in (True, False):
        cluster = SimulatedCluster("apmsqueeze", [torch.zeros(4, 3), torch.zeros(3)], 2, warmup_steps=1)
        log = TrainingLog(cluster.ledger, *trackers) if logged else None
        for step in range(STEPS):
            cluster.step([[torch.full((4, 3), 0.1), torch.full((3,), 0.2)]] * 2)
            if log:
                found.append(log(step, loss=1.0 / (step + 1)))
        frames.append(cluster.ledger.frame())
    assert frames[0].empty  # a long training keeps no rows
    return found, frames[1]


def test_what_is_written_is_what_the_ledger_counts(tmp_path: Path) -> None:
    scalars, run, metrics, plain = Scalars(), Run(), Metrics(), []
    found, ledger = train(
        scalars,
        run,
        metrics,
        lambda values, step: plain.append((step, dict(values))),
        tmp_path / "new" / "a.csv",
    )
    for step, values in enumerate(found):
        own = ledger[ledger["step"] == ledger["step"].unique()[step]]
        assert values["wire_bytes"] == own["wire_bytes"].sum() > 0
        assert values["calls"] == own["calls"].sum()
        for stage, sent in own.groupby("stage")["wire_bytes"].sum().items():
            assert values[f"wire_bytes/{stage}"] == sent
    assert found[-1]["wire_bytes_total"] == ledger["wire_bytes"].sum()
    assert found[0].keys() != found[-1].keys()  # the stages of a warm-up are not those of one bit
    steps = list(enumerate(found))
    assert run.steps == metrics.steps == plain == steps
    expected = [(name, value, step) for step, values in steps for name, value in values.items()]
    assert scalars.values == expected
    table = pd.read_csv(tmp_path / "new" / "a.csv")
    assert list(table[["name", "value", "step"]].itertuples(index=False, name=None)) == expected


def test_the_page_s_own_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (block,) = [block for block in blocks("docs/in-your-training.md", "python") if "TrainingLog" in block]
    cluster, run = SimulatedCluster("allreduce-sgd", [torch.zeros(2)], 2), Run()
    exec(compile(block, "page", "exec"), {"state": cluster, "trackers": [run], "losses": [0.5, 0.25]})
    table = pd.read_csv("bytes.csv").pivot(index="step", columns="name", values="value")
    assert table["loss"].tolist() == [values["loss"] for _, values in run.steps] == [0.5, 0.25]


def test_what_takes_no_values_is_refused() -> None:
    with pytest.raises(TrackerError, match="a SummaryWriter, the module mlflow"):
        TrainingLog(SimulatedCluster("allreduce-sgd", [torch.zeros(2)], 2).ledger, 3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int64])
def test_a_tensor_of_one_element_is_its_number(dtype: torch.dtype, tmp_path: Path) -> None:
    run, steps = Run(), []
    cluster = SimulatedCluster("allreduce-sgd", [torch.zeros(2)], 2)
    log = TrainingLog(
        cluster.ledger, run, lambda values, _: steps.append(json.dumps(values)), tmp_path / "a.csv"
    )
    loss = torch.tensor(3, dtype=dtype, requires_grad=dtype.is_floating_point)
    log(0, loss=loss, rows=loss.reshape(1, 1), epoch=2)
    cluster.observe(loss=loss)
    assert [type(value) for value in run.steps[0][1].values()].count(torch.Tensor) == 0
    assert (run.steps[0][1]["loss"], run.steps[0][1]["rows"], run.steps[0][1]["epoch"]) == (3, 3, 2)
    assert "0,loss,3" in (tmp_path / "a.csv").read_text()
    assert json.dumps(cluster.state_dict()["workers"][0]["observed"]) in ('{"loss": 3.0}', '{"loss": 3}')


def test_a_tensor_of_several_elements_is_named_and_no_byte_is_lost() -> None:
    cluster = SimulatedCluster("allreduce-sgd", [torch.zeros(2)], 2)
    cluster.step([[torch.ones(2)]] * 2)
    log = TrainingLog(cluster.ledger)
    for action in (log, lambda step, **values: cluster.observe(**values)):
        with pytest.raises(UsageError, match=r"losses has 4 elements of shape \(2, 2\)"):
            action(0, losses=torch.ones(2, 2))
    assert log(0)["wire_bytes"] > 0
