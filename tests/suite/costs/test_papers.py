"""The papers' models print the papers' numbers."""

from __future__ import annotations

import math

import pytest

from suite.costs.papers import (
    GLOBAL_QSGD_GAMMA,
    GLOBAL_QSGD_OMEGA,
    GlobalQSGD,
    PaperModelError,
    TwoRuns,
    from_volume,
    most_warm_up,
    with_warm_up,
)


@pytest.mark.parametrize(
    ("beta", "dithering", "speedup"),
    [
        (53.9e9, "exponential", 1.96),
        (5.4e9, "exponential", 3.62),
        (1.5e9 / 8, "exponential", 3.98),
        (53.9e9, "standard", 4.0),
    ],
)
def test_global_qsgd_speedup_of_communication(beta: float, dithering: str, speedup: float) -> None:
    model = GlobalQSGD(beta, GLOBAL_QSGD_GAMMA, GLOBAL_QSGD_OMEGA[dithering])
    for n in (4, 64):
        assert model.speedup(1e9, n) == pytest.approx(speedup, abs=0.01)


def test_global_qsgd_break_even_is_the_paper_s_160_gb_a_second() -> None:
    model = GlobalQSGD(1.0, GLOBAL_QSGD_GAMMA, 79.0)
    assert model.break_even == pytest.approx(160e9)
    at = GlobalQSGD(model.break_even, GLOBAL_QSGD_GAMMA, 79.0)
    assert at.speedup(1e9, 8) == pytest.approx(1.0)
    assert math.isinf(GlobalQSGD(1.0, 1.0, 4.0).break_even)


def test_latency_is_paid_by_both() -> None:
    model = GlobalQSGD(1e9, 1e12, 1.0, alpha_s=1.0)
    assert model.speedup(8.0, 4) == pytest.approx(1.0, abs=1e-6)


def test_qsr_estimates_communication_of_its_abstract() -> None:
    """26.7 to 20.2 h at 10.38 % of the volume, 8.6 to 5.5 h at 16.1 %."""
    assert from_volume(26.7, 20.2, 0.1038) == pytest.approx(7.25, abs=0.01)
    assert from_volume(8.6, 5.5, 0.161) == pytest.approx(3.69, abs=0.01)


def test_two_runs_give_back_what_they_were_made_of() -> None:
    computing, communication = 10.0, 6.0
    made = TwoRuns(computing + communication, computing + communication / 4, 4)
    assert made.communication_s == pytest.approx(communication)
    assert made.computing_s == pytest.approx(computing)
    assert made.predicted_s(1 / 16) == pytest.approx(
        computing + communication / 16
    )  # the check against a second h


def test_a_warm_up_caps_a_speedup() -> None:
    assert with_warm_up(0.15, math.inf) == pytest.approx(1 / 0.15)
    assert with_warm_up(0.0, 7.0) == pytest.approx(7.0)
    assert with_warm_up(1.0, 7.0) == pytest.approx(1.0)
    assert most_warm_up(10.0) == pytest.approx(0.1)
    assert most_warm_up(10.0, 32.0) == pytest.approx(0.071, abs=5e-4), (
        "APMSqueeze's 10 times, 32 in compressed steps"
    )
    assert with_warm_up(most_warm_up(3.0, 8.0), 8.0) == pytest.approx(3.0)
    assert math.isnan(most_warm_up(10.0, 5.0))


def test_values_that_say_nothing_are_refused() -> None:
    with pytest.raises(PaperModelError):
        GlobalQSGD(0.0, 1.0, 1.0)
    with pytest.raises(PaperModelError):
        TwoRuns(1.0, 1.0, 1.0)
    with pytest.raises(PaperModelError):
        from_volume(1.0, 1.0, 1.0)
    with pytest.raises(PaperModelError):
        with_warm_up(1.5, 2.0)
