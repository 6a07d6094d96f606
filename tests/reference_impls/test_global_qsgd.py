"""Global-QSGD's exponential dithering on simulated workers: head-room, and the error on a tree. What else holds of it:
`test_dithering.py`, `test_equal_methods.py`.
"""

from __future__ import annotations

from functools import partial

import torch

from reference_impls.algorithms.global_qsgd import head_room
from tests.reference_impls import averages
from tests.reference_impls.averages import normal
from tests.support import each

mean = partial(averages.mean, "global-qsgd", dithering="exponential")


@each(
    ("n", "form"),
    [*((n, "tree") for n in (1, 3, 4, 16)), *((n, "halving-doubling") for n in (1, 4, 16))],
)
def test_all_ranks_at_the_maximum_do_not_overflow(n, form):
    x = torch.tensor([1.7, -1.7, 0.0, 1.7] * 3).expand(n, 12).clone()
    got = mean(x, form=form)
    if n & (n - 1) == 0:  # powers of two that meet only their like are exact
        assert torch.allclose(got, x[0], rtol=1e-6)
    else:
        assert torch.equal(got.sign(), x[0].sign())
        assert float((got / 1.7).abs().max()) <= 2 ** head_room(n) / n * 1.000001


def test_exponential_error_does_not_fall_with_the_number_of_ranks():
    """Equal gradients: the last addition rounds the whole sum. The spec's simulation found 0.081 from 4 ranks on."""
    for n in (4, 16):
        x = normal(1, 4000).expand(n, 4000).clone()
        error = float((mean(x, form="tree") - x[0]).square().sum() / x[0].square().sum())
        assert 0.06 < error < 0.1
