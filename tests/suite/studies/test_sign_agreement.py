"""Agreement with the sign of the mean update: the vote is the method's own, the updates those of Lion, shares by hand."""

from __future__ import annotations

import pytest
import torch

from reference_impls import SimulatedCluster
from suite.analysis.tables import to_csv
from suite.studies import sign_agreement as module
from suite.studies.sign_agreement import CODES, SIGN_AGREEMENT, Recipe, direction, shares, updates
from suite.training.train import BatchedGradients, flatten, shapes_of, split
from suite.workloads import get

SHAPES = {"a": (40, 30), "b": (17,), "c": (9, 5)}
LENGTHS = (1200, 17, 45)
SHORT = Recipe("digits-mlp", "iid", (4,), 1e-3, 4)


@pytest.fixture(autouse=True)
def _eager(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BANDWISE_COMPILE", "0")


def vectors(n: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(n)
    found = torch.randn(n, 1262, generator=generator) * torch.rand(1262, generator=generator) ** 4
    found[:, ::7] = 0.0
    return found


@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize("code", CODES, ids=lambda code: code.label)
def test_the_direction_is_the_one_that_training_takes(code: module.Quantiser, n: int) -> None:
    """Of an ordinary Lion in its first step, whose u is half of the gradient."""
    u = vectors(n)
    cluster = SimulatedCluster(
        code.algorithm, [torch.zeros(shape) for shape in SHAPES.values()], n, lr=1.0, seed=3, names=list(SHAPES),
        betas=(0.5, 0.99), **code.options,
    )  # fmt: skip
    cut = [row.split(LENGTHS) for row in 2 * u]
    cluster.step([[g.view(s) for g, s in zip(own, SHAPES.values(), strict=True)] for own in cut])
    taken = direction(code, u, SHAPES, seed=3)
    assert torch.equal(taken, -torch.cat([p.flatten() for p in cluster.parameters(0)]))
    assert set(taken.unique().tolist()) <= {-1.0, 0.0, 1.0}
    assert torch.equal(u, vectors(n))


def test_shares_by_hand() -> None:
    u = torch.tensor([[1.0, 2.0, -1.0, 0.0, 3.0], [1.0, -1.0, -1.0, 0.0, -3.0]])  # signs + + - 0 0
    assert shares(torch.tensor([1.0, -1.0, 0.0, 1.0, -1.0]), u) == (
        pytest.approx(1 / 3),
        pytest.approx(1 / 3),
    )


def test_updates_are_lions_along_its_own_training() -> None:
    """Once more with plain tensors: momenta of each worker, one step by the sign of the mean update."""
    found = updates(SHORT, 3, seed=2)
    task = get("digits-mlp").task(2, 3, "iid")
    initial = task.initial()
    shapes, x = shapes_of(initial), flatten(initial)
    m = torch.zeros(3, len(x))
    stages = {stage.step: stage for stage in found}
    assert {step: stage.stage for step, stage in stages.items()} == {0: "start", 2: "middle", 4: "end"}
    for step in range(5):
        gradients = BatchedGradients(task)(split(x.expand(3, -1).contiguous(), shapes), task.batch(step))[0]
        g = torch.cat([gradients[name].reshape(3, -1) for name in shapes], 1)
        u = 0.9 * m + 0.1 * g
        if step in stages:
            torch.testing.assert_close(stages[step].gradients, u, rtol=1e-4, atol=1e-7)
        x, m = x - 1e-3 * u.mean(0).sign(), 0.99 * m + 0.01 * g


@pytest.mark.full
def test_rows_are_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        module, "CODES", [code for code in CODES if code.label in ("1bit", "sum-4-l1", "own-3-l1")]
    )
    rows = module.table([Recipe("digits-mlp", "by-class", (4, 8), 1e-3, 2)], seeds=6, elements=1)
    found = {(row["stage"], row["world_size"], row["code"]) for row in rows}
    codes = {
        4: ("1bit", "sum-4-l1", "own-3-l1"),
        8: ("1bit", "own-3-l1"),
    }  # the sum of 8 votes needs more than 4 bits
    assert found == {
        (stage, n, code) for stage in ("start", "middle", "end") for n, own in codes.items() for code in own
    }
    assert all(row["n"] == 6 and 0 <= row["opposite"] < 1.000001 - row["agreement"] for row in rows)
    assert to_csv(SIGN_AGREEMENT, rows).count("\n") == 16
