"""Bytes of a rank that takes steps alone, by closed formulas; `test_conformance.py` holds them against what a cluster counts."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from torch import Tensor

from reference_impls import create
from reference_impls.core.algorithm import Algorithm, Bucket
from reference_impls.core.errors import UnsupportedError
from reference_impls.core.registry import Method
from reference_impls.runtime.alone import LARGEST, kinds, taken, traced

# ---- closed formulas, of papers and of the modules' own texts --------------------------------------------------------

MATRIX, OTHERS = (300, 200), [(200,), (7, 50)]
D = 300 * 200 + 200 + 350


def packed(count: int, bits: int) -> int:
    """Bytes of so many integers."""
    return -(-count * bits // 8)


def piece(count: int, n: int) -> int:
    """Elements that a rank serves, of a vector that is cut at multiples of eight."""
    return 8 * math.ceil(count / (8 * n))


def top_k(n: int) -> float:
    """k places of as many bits as the last one has, and k floats, to everybody."""
    k = int(0.01 * D)
    return (n - 1) * (packed(k, (D - 1).bit_length()) + 4 * k)


def factors(n: int, rank: int) -> float:
    """Two thin factors of each matrix, r (a + b) floats, of rank 2 for the small one, and the vector as it is."""
    return 2 * (n - 1) / n * 4 * (rank * (300 + 200) + 2 * (7 + 50) + 200)


FORMULAS = {
    # one bit up and one down; one vote more says that an update is not finite
    "lion-cub-1bit": ({"momentum_sync": "never"}, lambda n: 2 * (n - 1) * piece(D + 1, n) / 8),
    # levels of one byte under one scale, on which all agree first
    "global-qsgd": ({"dithering": "standard"}, lambda n: 2 * (n - 1) / n * (4 + D)),
    "top-k": ({"ratio": 0.01}, top_k),
    "powersgd": ({"rank": 2}, partial(factors, rank=2)),
    "dion": ({"rank_fraction": 0.25}, partial(factors, rank=50)),
}


@pytest.mark.parametrize("n", [2, 3, 8])
@pytest.mark.parametrize("name", FORMULAS)
def test_bytes_by_hand(name: str, n: int) -> None:
    options, formula = FORMULAS[name]
    (sent,) = traced(create(name, **options), [MATRIX, *OTHERS], n).values()
    assert sent == pytest.approx(formula(n))


# ---- what it costs, and what is refused ------------------------------------------------------------------------------


def test_a_model_of_any_size_costs_nothing() -> None:
    found = traced(create("lion-cub-1bit", momentum_sync="never"), [(1 << 20, 1 << 14)], 4)
    assert found["step"] == 2 * 3 * piece((1 << 34) + 1, 4) / 8


@pytest.mark.parametrize(
    ("name", "options", "n", "rows"),
    [
        *(("global-qsgd", {"dithering": "exponential", "form": "tree"}, n, 30_000) for n in (18, 19, 32)),
        ("global-qsgd", {"dithering": "exponential"}, 32, 30_000),
        ("dynamiq", {}, 18, 30_000),
        *(("noloco", {}, n, 30_000) for n in (18, 19, 32)),
        *(("gtop-k", {}, n, 300) for n in (18, 32)),  # chooses by values, which are drawn
    ],
)
def test_of_many_ranks_the_mean_is_that_of_all(
    name: str, options: dict[str, str], n: int, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a model so large that what fills up the pieces of ranks is less than a thousandth."""
    method, shapes = create(name, **options), [(rows, 200), *OTHERS]
    found = traced(method, shapes, n)
    monkeypatch.setattr("reference_impls.runtime.alone.MOST", n)
    every = traced(method, shapes, n)
    assert any(every.values())
    assert found == pytest.approx(every, rel=1e-3)


class Elsewhere(Algorithm):
    """Makes a tensor that is not where the gradient is."""

    def reduce(self, bucket: Bucket) -> Tensor:
        return bucket.grads + torch.zeros(bucket.d)

    def update(self, bucket: Bucket, reduced: Tensor) -> None:
        """Nothing is trained here."""


def test_gradients_of_a_large_model_are_not_drawn() -> None:
    with pytest.raises(UnsupportedError, match="`bandwise try` counts what it sends"):
        traced(create("lag"), [(LARGEST, 2)], 2)
    with pytest.raises(UnsupportedError, match=r"without `device=`: Tensor on device cpu"):
        traced(Method("elsewhere", Elsewhere(), {}), [(LARGEST, 2)], 2)


def test_kinds_come_in_the_order_of_the_training() -> None:
    algorithm = create("lion-cub-1bit", momentum_sync="selective", sync_every=50).algorithm
    assert {kind: moment.step for kind, moment in kinds(algorithm).items()} == {
        "measure": 0,
        "step": 1,
        "sync": 50,
    }
    method = create("adacomm")
    found = taken(method, [(8, 8)], 2, kinds(method.algorithm))
    assert {kind: (one.nbytes, one.planning) for kind, one in found.items()} == {
        "local": (0.0, 8.0), "average": (256.0, 0.0)
    }  # fmt: skip


def test_what_each_kind_that_may_come_sends_where_data_decide_which() -> None:
    found = traced(create("adaqs", min_bits=3, max_bits=5, warmup_steps=2), [(10, 10)], 2)
    assert list(found) == ["3-bit", "4-bit", "5-bit", "warm-up"]
    assert found["warm-up"] == 400


def test_a_plan_that_asks_others_says_so() -> None:
    class Asks(type(create("allreduce-sgd").algorithm)):  # type: ignore[misc]
        def plan(self, train_state: object) -> object:
            return train_state.world.mean(torch.zeros(1), "kind")  # type: ignore[attr-defined]

    asks: Algorithm = Asks()
    with pytest.raises(UnsupportedError, match="let it declare `plans_from_data`"):
        kinds(asks)
