"""Lion Cub's codes against the sign of the mean update: how often a vote moves as exact Lion would, and in how many bits.

    python -m suite.analysis.sign_agreement           # results/tables/sign-agreement.csv

Updates u = b1 m + (1 - b1) g are those of trainings by exact Lion (the sign of the mean u in fp32, momenta never averaged,
n workers, `RECIPES`) at their first step, where m = 0 and u is the gradient, in the middle and at the end. Each code is
asked once about the same u, so that a share says what a code loses and not where its own training would have led.
Coordinates whose mean update is exactly 0 (weights of pixels that are never lit) are left out: they have no sign.

Shards by class exist for as many workers as there are classes at most. Only the first tensors are asked about, as in
`suite.analysis.rate_distortion`. A code that has no room for n workers has no row: 4 bits hold the sum of 7 votes.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from reference_impls import SimulatedCluster
from reference_impls.errors import UnsupportedError
from reference_impls.registry import create
from suite.analysis.claim_columns import SIGN_AGREEMENT, interval_cells
from suite.analysis.exchange import Quantiser, step, wire_bits
from suite.analysis.rate_distortion import ELEMENTS, SEEDS, say
from suite.analysis.tables import Row, table_path, write_table
from suite.training.capture import STAGES, Captured, first_tensors
from suite.training.train import BatchedGradients, flatten, shapes_of, split
from suite.workloads import get

BETAS: Final = (0.9, 0.99)


@dataclass(frozen=True)
class Recipe:
    """A training by exact Lion, for each of `sizes` workers."""

    workload: str
    sharding: str
    sizes: tuple[int, ...]
    lr: float
    steps: int


RECIPES: Final = (
    Recipe("digits-mlp", "iid", (4, 8, 32), 1e-3, 60),
    Recipe("digits-mlp", "by-class", (4, 8), 1e-3, 60),
    Recipe("byte-mlm", "iid", (4, 8, 32), 1e-3, 30),
)
_SCALES: Final = ("l1", "l0", "linf", "l2-stochastic")
_OWN: Final = {"form": "two-phase-sign", "levels": "code"}


def _code(bits: int, scale: str, own: bool = False, shared: bool = False) -> Quantiser:
    options = {"bits": bits, "scale": scale, "shared_scale": shared, **(_OWN if own else {})}
    label = f"{'own' if own else 'sum'}-{bits}-{scale}{'-shared' if shared else ''}"
    return Quantiser(label, "lion-cub-pbit", options)


CODES: Final = (
    Quantiser("1bit", "lion-cub-1bit", {"momentum_sync": "never"}),
    *(_code(bits, scale) for bits in (4, 8, 16) for scale in _SCALES),
    *(_code(bits, scale, own=True) for bits in (3, 4) for scale in _SCALES),
    *(_code(bits, scale, shared=True) for bits in (8, 16) for scale in ("l1", "linf")),
    *(_code(4, scale, own=True, shared=True) for scale in ("l1", "linf")),
)
"""sum-p: p bits hold the sum of all votes, added on the way. own-p: p bits hold one worker's votes, two bits come back.
shared: workers share the scale of a tensor, where each has its own otherwise."""


def updates(recipe: Recipe, workers: int, seed: int) -> list[Captured]:
    """Every worker's u at the three stages of a training, as `gradients` [workers, elements]."""
    task = get(recipe.workload).task(seed, workers, recipe.sharding)
    initial = task.initial()
    shapes, size = shapes_of(initial), flatten(initial).numel()
    params, grads = flatten(initial).expand(workers, size).clone(), torch.zeros(workers, size)
    cluster = SimulatedCluster(
        "lion-update-mean",
        list(initial.values()),
        workers,
        lr=recipe.lr,
        seed=seed,
        names=list(initial),
        storage=(params, grads),
        dtype="fp32",
        betas=BETAS,
    )
    gradients, rows, found = BatchedGradients(task), split(grads, shapes), []
    stops = dict(zip((0, recipe.steps // 2, recipe.steps), STAGES, strict=True))
    for now in range(recipe.steps + 1):
        values, losses = gradients(split(params, shapes), task.batch(now))
        for name, gradient in values.items():
            rows[name].copy_(gradient)
        if now in stops:
            momenta = torch.stack([torch.cat(cluster.state(rank, "momentum")) for rank in range(workers)])
            found.append(Captured(stops[now], now, shapes, momenta.lerp(grads, 1 - BETAS[0]), losses))
        cluster.step()
    return found


def direction(code: Quantiser, u: Tensor, shapes: Mapping[str, tuple[int, ...]], seed: int) -> Tensor:
    """What all workers agree on for the updates `u` [n, d]: -1, 0 or 1. A Lion without memory takes its gradient for u."""
    method = create(code.algorithm, **code.options, betas=(0.0, BETAS[1]))
    return -step(method, u, shapes, seed)


def shares(taken: Tensor, u: Tensor) -> tuple[float, float]:
    """(agreement, opposite) of a direction with the sign of the mean of `u`; see the columns."""
    exact = u.double().mean(0).sign()
    moves = (taken.double() * exact)[exact != 0]
    return float((moves > 0).double().mean()), float((moves < 0).double().mean())


def table(
    recipes: Sequence[Recipe] = RECIPES,
    seeds: int = SEEDS,
    elements: int = ELEMENTS,
    report: Callable[[str], None] = lambda line: None,
) -> list[Row]:
    """The rows. A code that cannot serve n workers has none there."""
    made: list[Row] = []
    for recipe in recipes:
        for n in recipe.sizes:
            found: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
            shapes: Mapping[str, tuple[int, ...]] = {}
            for seed in range(seeds):
                for whole in updates(recipe, n, seed):
                    part = first_tensors(whole, elements)
                    shapes = part.shapes
                    for code in CODES:
                        try:
                            taken = direction(code, part.gradients, shapes, seed)
                        except UnsupportedError:
                            continue
                        found[part.stage, code.label].append(shares(taken, part.gradients))
                report(f"{recipe.workload}, {recipe.sharding}, {n} workers, seed {seed}")
            labelled = {code.label: code for code in CODES}
            made += [
                {
                    "workload": recipe.workload, "sharding": recipe.sharding, "stage": stage, "world_size": n,
                    "code": label, "algorithm": labelled[label].algorithm,
                    "wire_bits": wire_bits(labelled[label], shapes, n), "n": len(values),
                    **interval_cells("agreement", [a for a, _ in values]),
                    **interval_cells("opposite", [o for _, o in values]),
                }
                for (stage, label), values in found.items()
            ]  # fmt: skip
    return made


def main() -> None:
    """Measure and write the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--results", type=Path, default=Path(__file__).resolve().parents[2] / "results")
    given = parser.parse_args()
    torch.set_num_threads(1)  # as in training: bits do not depend on the machine's cores
    say(str(write_table(table_path(given.results, SIGN_AGREEMENT), SIGN_AGREEMENT, table(report=say))))


if __name__ == "__main__":
    main()
