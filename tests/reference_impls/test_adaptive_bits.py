"""DQ-SGD and AdaQS: the rules' identities, the budget, and that widths follow what all ranks agreed on."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

from reference_impls import SimulatedCluster
from reference_impls.core.schedules import factor_for, nominal_bits, wanted_levels
from tests.reference_impls.averages import normal
from tests.support import each

# ---- rules ---------------------------------------------------------------------------------------------------------


def test_the_step_of_the_quantiser_does_not_depend_on_the_gradient() -> None:
    """|g| / s = 1 / factor; with a contraction it shrinks by its square root in every step."""
    for norm in (1e-6, 0.3, 7.0, 1e5):
        assert norm / wanted_levels(40.0, norm) == pytest.approx(1 / 40)
        steps = [norm / wanted_levels(40.0, norm, 0.81, left) for left in (3, 2, 1, 0)]
        assert [b / a for a, b in itertools.pairwise(steps)] == pytest.approx([0.9] * 3)


@each(("bits", "contraction", "left"), [(2.5, 1.0, 10), (4.5, 0.999, 1000), (7.0, 0.9, 10)])
def test_calibration_meets_the_average(bits: float, contraction: float, left: int) -> None:
    factor = factor_for(bits, 0.02, contraction, left, least=2, most=16)
    found = [nominal_bits(wanted_levels(factor, 0.02, contraction, left - t)) for t in range(left)]
    assert sum(min(max(b, 2), 16) for b in found) / left == pytest.approx(bits, abs=0.06)


# ---- methods -------------------------------------------------------------------------------------------------------


def cluster(name: str, n: int, d: int, **options: object) -> SimulatedCluster:
    return SimulatedCluster(name, [torch.zeros(d)], n, lr=1.0, **options)


def widths(members: SimulatedCluster, grads: list[Tensor]) -> list[str]:
    """Train, all ranks with the same gradient; the kind of each step."""
    found = []
    for g in grads:
        members.step([[g]] * members.world_size)
        found.append(members.kind)
    return found


def test_a_width_follows_the_norm_of_the_step_before() -> None:
    members = cluster("dq-sgd", 2, 3, factor=10.0)
    sizes = [0.7, 1.5, 3.1, 1e9, 0.0, 0.15]
    found = widths(members, [torch.tensor([a, 0.0, -a]) for a in sizes])
    by_rule = [math.ceil(nominal_bits(10 * a)) for a in sizes[:3]]
    assert found == ["5-bit", *(f"{b}-bit" for b in by_rule), "16-bit", "2-bit"]
    assert by_rule == [4, 5, 6]


def test_the_norm_is_that_of_the_mean_over_the_whole_model_and_before_clipping() -> None:
    parts = [torch.tensor([3.0]), torch.tensor([-4.0])]
    for norm, expected in (("linf", 4.0), ("l2", 5.0)):
        members = SimulatedCluster(
            "dq-sgd", [torch.zeros(1), torch.zeros(1)], 2, bucket_bytes=4, clip_norm=0.1, norm=norm
        )
        members.step([[2 * p for p in parts], [torch.zeros(1), torch.zeros(1)]])
        counters = [worker.train_state.counters for worker in members._workers]
        assert counters[0] == counters[1]
        assert counters[0]["norm"] == pytest.approx(expected, rel=1e-6)
        assert len(members._workers[0].buckets) == 2


def test_the_ratio_that_adaqs_looks_at_by_hand() -> None:
    """|m| / sqrt(sum(v - m^2)), both running means of what was applied before the step, with one decay."""
    decay, m, v = 0.7, torch.zeros(30, dtype=torch.float64), torch.zeros(30, dtype=torch.float64)
    members = cluster("adaqs", 2, 30, interval=1, decay=decay)
    for t in range(6):
        before = members.parameters(0)[0].clone()
        members.step([[normal(30, seed=2 * t + r) + 1] for r in (0, 1)])
        if t:
            expected = float(m.square().sum() / (v - m.square()).sum()) ** 0.5
            assert members._workers[0].train_state.counters["ratio"] == pytest.approx(expected, rel=1e-4)
        applied = (before - members.parameters(0)[0]).double()
        m, v = decay * m + (1 - decay) * applied, decay * v + (1 - decay) * applied.square()


def test_norms_of_the_warm_up_do_not_calibrate() -> None:
    """The gradient is a thousand times as large there; without it all widths would be the least for ever."""
    large, small = torch.tensor([1000.0, 0.0, 0.0]), torch.tensor([1.0, 0.0, 0.0])
    options = {"target_bits": 6.0, "calibration_steps": 5}
    plain = widths(cluster("dq-sgd", 2, 3, **options), [small] * 9)
    found = widths(cluster("dq-sgd", 2, 3, warmup_steps=20, **options), [large] * 20 + [small] * 9)
    assert found == ["warm-up"] * 20 + plain
