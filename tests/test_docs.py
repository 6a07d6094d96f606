"""The code in the documentation runs and does what it says."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from bandwise.cli import main
from reference_impls import SimulatedCluster
from reference_impls.registry import Method, registry

ROOT = Path(__file__).parents[1]


def blocks(path: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / path).read_text(encoding="utf-8"), flags=re.DOTALL)


def test_the_method_of_the_tutorial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    method, use, *_ = blocks("docs/adding-a-method.md", "python")
    (tmp_path / "byte_vote.py").write_text(method)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        registry, "_entries", dict(registry._entries)
    )  # the tutorial's is not for other tests
    names: dict[str, Any] = {"torch": torch}
    exec(use, names)
    frame = names["cluster"].ledger.frame(rank=0)
    assert (frame["payload_bytes"][0], frame["wire_bytes"][0]) == (1000, 1500.0)
    assert str(frame["payload_bytes"][0]) in capsys.readouterr().out


def test_the_method_with_two_kinds_of_step_of_the_tutorial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    method, *_, kinds = blocks("docs/adding-a-method.md", "python")
    module = types.ModuleType("byte_vote")
    monkeypatch.setitem(sys.modules, "byte_vote", module)
    exec(method.partition("registry.add(")[0], module.__dict__)
    names = dict(vars(module))
    exec(kinds, names)
    algorithm = names["MomentumVote"](scale=2.0, every=4)
    assert {kind: one.every for kind, one in algorithm.steady().items()} == {"step": 0, "sync": 1}
    for wanted, one in {"step step step": 0, "sync sync sync": 1, "sync step step step sync": 4}.items():
        cluster = SimulatedCluster(
            Method("momentum-vote", names["MomentumVote"](every=one), {"weight_decay": 0.0}),
            [torch.zeros(9)],
            world_size=3,
        )
        seen = []
        for _ in wanted.split():
            cluster.step([[torch.randn(9)] for _ in range(3)])
            seen.append(cluster.kind)
            same = torch.equal(cluster.state(0, "momentum")[0], cluster.state(2, "momentum")[0])
            assert same == (cluster.kind == "sync")
        assert seen == wanted.split()


def test_the_codec_of_the_tutorial_is_the_one_in_the_code() -> None:
    """Shortened by its docstring and the check of its option; every line of it stands in the file."""
    _, _, shown, _ = blocks("docs/adding-a-method.md", "python")
    source = (ROOT / "reference_impls" / "algorithms" / "ef_signsgd.py").read_text(encoding="utf-8")
    assert [line for line in shown.splitlines() if line.strip() and line not in source.splitlines()] == []


def test_the_simulated_example_of_the_readme() -> None:
    example = next(block for block in blocks("README.md", "python") if "SimulatedCluster" in block)
    names: dict[str, Any] = {"torch": torch, "grads": [[torch.randn(1000)] for _ in range(4)]}
    exec(example, names)
    assert names["cluster"].ledger.frame(rank=0)["payload_bytes"].sum() == 128 + 32


def test_the_simulation_of_the_readme(capsys: pytest.CaptureFixture[str]) -> None:
    example = next(block for block in blocks("README.md", "python") if "simulate(" in block)
    names: dict[str, Any] = {
        "model": torch.nn.Linear(3, 2),
        "loss": lambda model, batch: model(batch).square().mean(),
        "data": lambda rank, workers, step: torch.randn(4, 3),
    }
    exec(example, names)
    assert "wire_bytes" in capsys.readouterr().out
    assert len(names["result"].frame) == 200


@pytest.mark.gloo
def test_the_training_example_of_the_readme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    example = next(block for block in blocks("README.md", "python") if "DataParallelOptimizer" in block)
    start = dist.init_process_group
    monkeypatch.setattr(
        dist,
        "init_process_group",
        lambda backend: start(backend, init_method=f"file://{tmp_path}/r", rank=0, world_size=1),
    )
    model = torch.nn.Linear(3, 2)
    before = model.weight.detach().clone()
    batches = [(torch.randn(4, 3), torch.randn(4, 2)) for _ in range(3)]
    try:
        exec(
            example,
            {"torch": torch, "model": model, "batches": batches, "loss": torch.nn.functional.mse_loss},
        )
    finally:
        dist.destroy_process_group()
    assert not torch.equal(model.weight, before)


def test_the_commands_of_the_readme_are_understood() -> None:
    shell = "\n".join(blocks("README.md", "sh"))
    commands = [line.split("#")[0].strip() for line in shell.splitlines() if line.startswith("bandwise ")]
    assert len(commands) >= 8
    for command in commands:
        verb = shlex.split(command)[1]
        found = subprocess.run(
            [sys.executable, "-m", "bandwise", verb, "--help"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
        for word in shlex.split(command)[2:]:
            if word.startswith("--"):
                assert word in found.stdout, (command, word)


def test_the_schedule_of_the_readme(capsys: pytest.CaptureFixture[str]) -> None:
    (command,) = [line for line in "\n".join(blocks("README.md", "sh")).splitlines() if "schedule" in line]
    assert main(shlex.split(command)[1:]) == 0
    assert "9711" in capsys.readouterr().out.replace(",", "")
