"""Count-Sketch: hashes that are exact, estimates of the variance of theory, what is not finite."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from reference_impls.compressors import count_sketch
from reference_impls.compressors.count_sketch import CountSketch
from tests.reference_impls import averages
from tests.support import each

P = (1 << 31) - 1


def table_of(sketch: CountSketch, x: Tensor) -> Tensor:
    table = torch.full((*x.shape[:-1], sketch.rows, sketch.columns), 5.0, dtype=x.dtype)
    sketch.encode(x, table)
    return table


def estimate(sketch: CountSketch, table: Tensor, d: int) -> Tensor:
    out = torch.full((*table.shape[:-2], d), 9.0, dtype=table.dtype)
    sketch.decode(table, out)
    return out


normal = partial(averages.normal, dtype=torch.float64)


@each("start", [0, 12345, (1 << 30) - 300])
def test_hashes_are_those_of_exact_integers(start: int) -> None:
    """Python's integers have no limit; the last coordinates that are admitted come closest to overflow."""
    sketch = CountSketch(3, 1000003, seed=7, start=start)
    for row in range(3):
        a = count_sketch.coefficients(7, row)
        columns, signs = torch.empty(300, dtype=torch.int32), torch.empty(300)
        count_sketch._hash(columns, signs, sketch._words(row, slice(0, 300), columns.device))
        for i in range(0, 300, 7):
            h = sum(c * (start + i) ** power for power, c in enumerate(a)) % P
            assert columns[i] == ((h // 2) * 1000003) >> 30
            assert signs[i] == (1 if h % 2 else -1)


def test_one_row_has_the_variance_of_theory() -> None:
    """E (estimate - x_j)^2 = (|x|^2 - x_j^2) / c for pairwise independent columns."""
    d, c, seeds = 200, 25, 400
    x = normal(d, seed=2)
    errors = torch.stack(
        [estimate(s, table_of(s, x), d) - x for s in (CountSketch(1, c, seed=k) for k in range(seeds))]
    )
    expected = ((x.square().sum() - x.square()) / c).mean()
    assert abs(float(errors.square().mean() / expected) - 1) < 0.06


@each("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_stays_so_in_table_and_estimate(bad: float) -> None:
    sketch, x = CountSketch(3, 50), normal(100)
    x[33] = bad
    table = table_of(sketch, x)
    assert int((~torch.isfinite(table)).sum()) == 3
    assert not torch.isfinite(estimate(sketch, table, 100)[33])
