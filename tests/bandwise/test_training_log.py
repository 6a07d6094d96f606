"""A training's bytes in trackers of every kind that is known."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
import torch

from bandwise import SimulatedCluster, TrainingLog
from bandwise.training_log import TrackerError
from reference_impls.core.errors import UsageError
from tests.support import blocks

STEPS = 3


def run_of(steps: list[Any], name: str = "log") -> SimpleNamespace:
    """As a run of wandb; by `log_metrics` as the module mlflow and Lightning's loggers. It keeps what it is told."""
    return SimpleNamespace(**{name: lambda values, step: steps.append((step, values))})


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
    scalars, run, metrics, plain = list[Any](), list[Any](), list[Any](), list[Any]()
    board = SimpleNamespace(
        add_scalar=lambda tag, value, global_step: scalars.append((tag, value, global_step))
    )
    found, ledger = train(
        board, run_of(run), run_of(metrics, "log_metrics"), lambda values, step: plain.append((step, dict(values))),
        tmp_path / "new" / "a.csv",
    )  # fmt: skip
    for step, values in enumerate(found):
        own = ledger[ledger["step"] == ledger["step"].unique()[step]]
        assert values["wire_bytes"] == own["wire_bytes"].sum() > 0
        assert values["calls"] == own["calls"].sum()
        for stage, sent in own.groupby("stage")["wire_bytes"].sum().items():
            assert values[f"wire_bytes/{stage}"] == sent
    assert found[-1]["wire_bytes_total"] == ledger["wire_bytes"].sum()
    assert found[0].keys() != found[-1].keys()  # the stages of a warm-up are not those of one bit
    steps = list(enumerate(found))
    assert run == metrics == plain == steps
    expected = [(name, value, step) for step, values in steps for name, value in values.items()]
    assert scalars == expected
    table = pd.read_csv(tmp_path / "new" / "a.csv")
    assert list(table[["name", "value", "step"]].itertuples(index=False, name=None)) == expected


def test_the_page_s_own_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (block,) = [block for block in blocks("docs/in-your-training.md", "python") if "TrainingLog" in block]
    cluster, run = SimulatedCluster("allreduce-sgd", [torch.zeros(2)], 2), list[Any]()
    exec(compile(block, "page", "exec"), {"state": cluster, "trackers": [run_of(run)], "losses": [0.5, 0.25]})
    table = pd.read_csv("bytes.csv").pivot(index="step", columns="name", values="value")
    assert table["loss"].tolist() == [values["loss"] for _, values in run] == [0.5, 0.25]


def test_what_takes_no_values_is_refused() -> None:
    with pytest.raises(TrackerError, match="a SummaryWriter, the module mlflow"):
        TrainingLog(SimulatedCluster("allreduce-sgd", [torch.zeros(2)], 2).ledger, 3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int64])
def test_a_tensor_of_one_element_is_its_number(dtype: torch.dtype, tmp_path: Path) -> None:
    run, steps = list[Any](), list[str]()
    cluster = SimulatedCluster("allreduce-sgd", [torch.zeros(2)], 2)
    log = TrainingLog(
        cluster.ledger, run_of(run), lambda values, _: steps.append(json.dumps(values)), tmp_path / "a.csv"
    )
    loss = torch.tensor(3, dtype=dtype, requires_grad=dtype.is_floating_point)
    log(0, loss=loss, rows=loss.reshape(1, 1), epoch=2)
    cluster.observe(loss=loss)
    ((_, values),) = run
    assert [type(value) for value in values.values()].count(torch.Tensor) == 0
    assert (values["loss"], values["rows"], values["epoch"]) == (3, 3, 2)
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
