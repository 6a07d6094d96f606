"""Captured gradients: the right ones, the same ones again, at three stages of one training."""

from __future__ import annotations

import pytest
import torch
from torch.func import grad

from suite.training import capture as module
from suite.training.capture import RECIPES, STAGES, Captured, Recipe, capture, first_tensors
from suite.training.train import split
from suite.workloads import get


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recipes of few steps."""
    short = {
        name: Recipe(recipe.algorithm, recipe.lr, 20 if name == "digits-mlp" else 2, recipe.options)
        for name, recipe in RECIPES.items()
    }
    monkeypatch.setattr(module, "RECIPES", short)


def rows(found: Captured) -> dict[str, torch.Tensor]:
    return split(found.gradients, found.shapes)


@pytest.mark.parametrize("name", list(RECIPES))
def test_three_stages_of_a_training(name: str) -> None:
    found = capture(name, workers=6)
    assert tuple(stage.stage for stage in found) == STAGES
    steps = [stage.step for stage in found]
    assert steps[0] == 0
    assert steps[1] * 2 == steps[2]
    sizes = sum(parameter.numel() for parameter in get(name).build().parameters())
    for stage in found:
        assert stage.gradients.shape == (6, sizes)
        assert stage.gradients.isfinite().all()
        assert len({tuple(row[:2000].tolist()) for row in stage.gradients}) == 6
    assert float(found[2].losses.mean()) < float(found[0].losses.mean())


def test_the_first_stage_is_the_gradient_at_the_start() -> None:
    found = capture("digits-mlp", workers=5, seed=3)[0]
    task = get("digits-mlp").task(3, 5)
    batch = task.batch(0)
    for worker in (0, 4):
        expected = grad(task.loss)(task.initial(), *(part[worker] for part in batch))
        for name, values in rows(found).items():
            torch.testing.assert_close(values[worker], expected[name], rtol=1e-4, atol=1e-6)


def test_the_same_bits_again_and_others_for_another_seed() -> None:
    once, again, other = capture("digits-mlp", 4), capture("digits-mlp", 4), capture("digits-mlp", 4, seed=1)
    for a, b, c in zip(once, again, other, strict=True):
        assert torch.equal(a.gradients, b.gradients)
        assert not torch.equal(a.gradients, c.gradients)


def test_stages_do_not_depend_on_the_number_of_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """One training leads to all of them: what differs along a curve over n is n."""
    seen: list[torch.Tensor] = []
    take = module._take

    def watch(stage: str, step: int, params: torch.Tensor, *rest: object) -> Captured:
        seen.append(params.clone())
        return take(stage, step, params, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "_take", watch)
    capture("digits-mlp", workers=2)
    capture("digits-mlp", workers=9)
    for few, many in zip(seen[:3], seen[3:], strict=True):
        assert torch.equal(few, many)
    assert not torch.equal(seen[0], seen[1])


def test_by_class_gradients_belong_to_their_shards() -> None:
    assert not torch.equal(
        capture("digits-mlp", 4)[2].gradients, capture("digits-mlp", 4, sharding="by-class")[2].gradients
    )


def test_a_workload_without_a_recipe_is_refused() -> None:
    with pytest.raises(ValueError, match='no recipe to train "quadratic" for a capture: use byte-mlm or'):
        capture("quadratic")


def test_the_first_tensors_that_fit() -> None:
    shapes = {"a": (40, 30), "b": (17,), "c": (9, 5)}
    whole = Captured("start", 0, shapes, torch.arange(2 * 1262.0).view(2, 1262), torch.zeros(2))
    for elements, expected in ((1, 1200), (1216, 1200), (1217, 1217), (5000, 1262)):
        part = first_tensors(whole, elements)
        assert torch.equal(part.gradients, whole.gradients[:, :expected])
        assert sum(torch.Size(shape).numel() for shape in part.shapes.values()) == expected
