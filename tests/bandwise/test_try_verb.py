"""`bandwise try` and the page of docs/your-model.md: their code runs, and says no more than it knows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
import torch.distributed as dist

from bandwise.verbs.try_ import summary
from tests.bandwise.said import answer, refusal
from tests.reference_impls.gloo import run_ranks
from tests.reference_impls.states import equal
from tests.support import Capsys, Patch, blocks

PAGE = blocks("docs/your-model.md", "python")


@pytest.fixture
def script(tmp_path: Path) -> str:
    """The script of the page."""
    (tmp_path / "my_script.py").write_text(next(block for block in PAGE if "def make" in block))
    return f"{tmp_path / 'my_script.py'}:make"


# ---- the page of documentation


def follows(rank: int, size: int, code: str, names: dict[str, Any], folder: str) -> dict[str, Any]:
    """The block for real ranks, in a group that is there."""
    import os

    os.chdir(folder)
    own: dict[str, Any] = {"torch": torch, "nn": torch.nn}
    exec(names["head"], own)
    start, dist.init_process_group = dist.init_process_group, lambda backend: None  # type: ignore[assignment]
    try:
        exec(code, own)
    finally:
        dist.init_process_group = start
    return {name: value.detach().clone() for name, value in own["model"].named_parameters()}


@pytest.mark.gloo
def test_the_code_of_the_page_runs_and_goes_on_to_the_bit(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.chdir(tmp_path)
    first, by_class, pilot, real, *_ = PAGE
    seeded = f"import torch\ntorch.manual_seed(0)\n{first}"  # ranks draw the same data and model
    names: dict[str, Any] = {}
    exec(seeded, names)
    assert list(names["result"].frame.columns) == ["step", "loss", "lr", "kind", "wire_bytes", "correlation"]
    assert set(names["result"].frame["kind"]) == {"local", "average"}
    exec(by_class, names)
    assert names["apart"].correlation[0] < names["result"].correlation[0]
    exec(pilot, names)
    whole = names["simulate"](
        names["model"], names["loss"], names["dataset"], "lion-cub-1bit", workers=2, lr=1e-3, steps=40, batch_size=16, seed=7,
        state=torch.load("pilot.pt", weights_only=True),
    )  # fmt: skip
    head = seeded.partition("result = ")[0]
    for found in run_ranks(follows, 2, real, {"head": head}, str(tmp_path)):
        assert equal(found, whole.parameters), found


# ---- the verb


def test_it_compares_five_methods_and_writes_their_steps(script: str, tmp_path: Path, capsys: Capsys) -> None:
    found = answer(
        capsys, "try", script, "--batch-size", "16", "--workers", "4", "--steps", "30", "--rate", "100mbit", "--compute-ms", "2",
        "--results", str(tmp_path / "results"),
    )  # fmt: skip
    rows = {row["method"]: row for row in found["methods"]}
    assert list(rows) == [
        "allreduce-adamw", "local-adamw:period=8", "ef-sign-adam", "global-qsgd:optimizer=adamw", "top-k:optimizer=adamw",
    ]  # fmt: skip
    elements = 20 * 64 + 64 + 64 * 4 + 4
    assert rows["allreduce-adamw"]["bytes_step"] == 6.0 * elements  # 2 (n - 1) / n x 4 bytes, n = 4
    # 30 steps of period 8 are four rounds, the last of which is cut
    assert rows["local-adamw:period=8"]["bytes_step"] == pytest.approx(4 / 30 * 6.0 * elements)
    assert rows["global-qsgd:optimizer=adamw"]["fewer_bytes"] == pytest.approx(4, rel=0.01)
    assert all(row["step_ms"] >= 2 for row in rows.values())
    assert rows["allreduce-adamw"]["loss_is"] == "reference"
    assert {row["loss_is"] for row in found["methods"][1:]} == {"no verdict from 1 seed"}
    assert all(row["difference"] is None for row in found["methods"])
    assert "no verdict on accuracy" in found["caveats"][0]
    steps = pd.read_csv(tmp_path / "results" / "try-my_script.csv")
    assert len(steps) == 5 * 30
    assert steps.groupby("method")["wire_bytes"].mean()["allreduce-adamw"] == 6.0 * elements


def test_methods_of_ones_own_and_a_method_that_refuses(script: str, tmp_path: Path, capsys: Capsys) -> None:
    found = answer(
        capsys, "try", script, "--batch-size", "8", "--workers", "9", "--steps", "4", "--csv", str(tmp_path / "steps.csv"),
        "--methods", "allreduce-sgd,lion-cub-1bit:lr=1e-4:momentum_sync=never,lion-cub-pbit:bits=4", "--lr", "0.01",
    )  # fmt: skip
    refused = found["methods"][2]
    assert refused["loss_is"].startswith("refused: ")
    assert (refused["end_loss"], refused["bytes_step"], refused["speedup"]) == (None, None, None)
    assert found["methods"][1]["fewer_bytes"] > 25


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["SCRIPT"], "write FILE.py:FUNCTION"),
        (["nowhere.py:make"], "nowhere.py is no Python file here"),
        (["SCRIPT:mak"], "has no function 'mak'; did you mean 'make'?"),
        (["SCRIPT:two"], "answered 2 of 3 parts: answer a tuple (model, loss, data)"),
        (["SCRIPT:turned"], "the first is a torch.nn.Module"),
        (["SCRIPT:stream"], "data is an iterator, which the first method would use up"),
        (["SCRIPT:make", "--methods", "no-such-method"], "no algorithm called 'no-such-method'"),
        (["SCRIPT:make", "--methods", "top-k:ratio"], "write NAME:option=value"),
        (["SCRIPT:make", "--methods", "top-k:perod=8"], "has no option 'perod'"),
        (["SCRIPT:make", "--methods", "qsgd,qsgd"], "--methods names one twice"),
        (["SCRIPT:make", "--seeds", "0"], "--seeds 0: give at least 1"),
        (["SCRIPT:make", "--workers", "0"], "--workers 0: give at least 1"),
        (["SCRIPT:make", "--steps", "0"], "--steps 0: give at least 1"),
        (["SCRIPT:make", "--csv", "SCRIPT/x.csv"], "x.csv cannot be written: File exists; name another"),
        (["SCRIPT:make", "--rate", "10gbi"], "or the name of a link; did you mean '10gbe'?"),
        (["SCRIPT:make"], "give batch_size="),
    ],
)
def test_what_cannot_be_tried_is_refused_with_what_to_write(
    arguments: list[str], words: str, script: str, capsys: Capsys
) -> None:
    path = Path(script.rpartition(":")[0])
    with path.open("a") as file:
        file.write(
            "\ndef two(): return make()[:2]\ndef turned(): return make()[::-1]\n"
            "def stream(): return (*make()[:2], iter([]))\n"
        )
    assert words in refusal(capsys, "try", *(one.replace("SCRIPT", str(path)) for one in arguments))


# ---- what may be said


def made_up(seeds: int, **losses: float) -> pd.DataFrame:
    return pd.DataFrame(
        [
            {
                "method": method, "seed": seed, "step": step, "loss": loss + 0.01 * (seed % 3) + (step < 9),
                "wire_bytes": 8.0, "seconds": 0.5,
            }
            for method, loss in losses.items()
            for seed in range(seeds)
            for step in range(10)
        ]
    )  # fmt: skip


def test_only_seeds_enough_for_an_interval_give_a_word_and_who_diverged_has_no_loss() -> None:
    losses = {"plain": 1.0, "more": 1.5, "less": 0.5, "same": 1.0}
    ended = dict.fromkeys(losses, "")
    assert [row["loss_is"] for row in summary(made_up(5, **losses), ended)[1:]] == [
        "no verdict from 5 seeds"
    ] * 3
    rows = summary(made_up(6, **losses), {**ended, "same": "diverged: seed 0 at step 1"})
    assert [row["loss_is"] for row in rows] == ["reference", "higher", "lower", "diverged: seed 0 at step 1"]
    assert rows[1]["difference"] == pytest.approx([0.5, 0.5, 0.5])
    assert rows[1]["end_loss"] == pytest.approx(1.51)
    assert (rows[3]["end_loss"], rows[3]["difference"]) == (None, None)
    assert summary(made_up(6, **losses), ended)[3]["loss_is"] == "undecided"
