"""The fixed tree is the documented tree."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from reference_impls.compressors.sums import BLOCK, fixed_mean, fixed_sum, root_mean_square
from tests.reference_impls.averages import normal
from tests.support import each

LENGTHS = [0, 1, 2, 67, 1023, 1024, 1025, 3 * 1024, 5 * 1024 + 17, 9000]


def tree(values):
    """The documented order with numpy float32 scalars, one addition at a time."""
    values = [np.float32(v) for v in values]
    values += [np.float32(0)] * (-len(values) % BLOCK or (BLOCK if not values else 0))
    sums = []
    for at in range(0, len(values), BLOCK):
        block = values[at : at + BLOCK]
        while len(block) > 16:
            rows = [block[i : i + 16] for i in range(0, len(block), 16)]
            block = [
                a + b
                for one, two in zip(rows[0::2], rows[1::2], strict=True)
                for a, b in zip(one, two, strict=True)
            ]
        while len(block) > 1:
            block = [block[i] + block[i + len(block) // 2] for i in range(len(block) // 2)]
        sums += block
    while len(sums) > 1:
        sums += [np.float32(0)] * (len(sums) % 2)
        sums = [sums[i] + sums[i + len(sums) // 2] for i in range(len(sums) // 2)]
    return float(sums[0])


@each("d", LENGTHS)
def test_the_documented_order(d):
    x = normal(d, seed=d) * 1e3
    assert fixed_sum(x).item() == tree(x.tolist())
    assert math.isclose(fixed_sum(x.double()).item(), math.fsum(x.tolist()), rel_tol=1e-12, abs_tol=1e-9)
    assert fixed_mean(x).item() == (np.float32(tree(x.tolist())) / np.float32(max(d, 1))).item()


@pytest.mark.full
def test_rows_and_threads():
    x = normal(3, 2, 5000)
    assert torch.equal(fixed_sum(x), torch.stack([torch.stack([fixed_sum(r) for r in rows]) for rows in x]))
    big = normal(200_000)
    one = fixed_sum(big)
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    two = fixed_sum(big)
    torch.set_num_threads(threads)
    assert torch.equal(one, two)


@each("d", [d for d in LENGTHS if d])
def test_the_root_mean_square_has_the_bits_of_the_plain_formula(d):
    x = normal(3, d, seed=d) * 1e3
    count = torch.tensor([1.0, d, 0.0])
    assert torch.equal(root_mean_square(x), (fixed_sum(x * x) / d).sqrt())
    assert torch.equal(root_mean_square(x, count), (fixed_sum(x * x) / count.clamp(min=1)).sqrt())


@each(
    ("dtype", "size"),
    [(torch.float32, 3e38), (torch.float32, 1e-30), (torch.float32, 1e-44), (torch.float64, 1e300), (torch.float64, 1e-300)],
)  # fmt: skip
def test_the_root_mean_square_of_what_has_no_square(dtype, size):
    x = torch.tensor([[size, -size, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]], dtype=dtype)
    assert not 0 < float((x[0] * x[0]).sum()) < math.inf, "the plain formula would do"
    found = root_mean_square(x)
    assert found[0].item() == pytest.approx(size / math.sqrt(2), rel=1e-6 if size > 1e-40 else 0.2)
    assert found[1] == 0
    assert not root_mean_square(torch.tensor([math.nan, 1.0], dtype=dtype)).isfinite()
    assert not root_mean_square(torch.tensor([math.inf, 1.0], dtype=dtype)).isfinite()
    assert root_mean_square(x[:, :0]).tolist() == [0, 0]
