"""A study that will decide nothing is refused before it is run."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from scipy import stats

from bandwise.cli import main
from suite.runs.plan import PlanError, power_of, refuse_underpowered
from suite.runs.sweep import Sweep
from tests.suite.runs.project import SWEEP, with_rates, write_sweep

TUNABLE = SWEEP.replace(", lr: 0.1}", "}").replace("seeds: 3", "seeds: 6") + (
    "headline: true\nmargin: 0.1\ntuning: {points: 3, factor: 2, seeds: 2, centres: {plain: 0.5}}\n"
)


def tuned(folder: Path, text: str, apart: float, seeds: int = 2) -> Sweep:
    """The sweep with rates at which the difference of `local` to `plain` varies by `apart` between two tuning seeds."""

    def losses(arm: str) -> dict[float, list[float]]:
        return {0.5: [1.0 + (0.5 + apart * (arm == "local")) * seed for seed in range(seeds)]}

    return with_rates(write_sweep(folder, text), losses, 0.5)


def test_the_half_width_is_that_of_a_t_interval_with_the_spread_of_tuning(tmp_path: Path) -> None:
    (power,) = power_of(tuned(tmp_path, TUNABLE, apart=0.04))
    sd = 0.04 / math.sqrt(2)  # of two differences that lie 0.04 apart
    assert (power.sd, power.df, power.margin) == (pytest.approx(sd), 1, 0.1)
    assert power.half_width == pytest.approx(stats.t.ppf(0.975, 5) * sd / math.sqrt(6))
    assert power.enough == (power.half_width <= 0.05)


def test_an_underpowered_headline_is_refused_with_the_seeds_that_would_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refuse_underpowered(tuned(tmp_path, TUNABLE, apart=0.04))
    sweep = tuned(tmp_path, TUNABLE, apart=0.2)
    (power,) = power_of(sweep)
    needed = power.seeds_needed
    assert needed > 6
    with pytest.raises(PlanError, match=rf"more than half the margin of 0.1 .*: use {needed} seeds"):
        refuse_underpowered(sweep)
    assert power_of(tuned(tmp_path, TUNABLE.replace("seeds: 6", f"seeds: {needed}"), apart=0.2))[0].enough
    tuned(tmp_path, TUNABLE, apart=0.2)
    assert main(["sweep", str(sweep.path), "--results", str(tmp_path / "results")]) == 2
    assert f"use {needed} seeds" in capsys.readouterr().err
    assert not (tmp_path / "results" / "runs").exists()


def test_without_two_tuning_seeds_nothing_is_known(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"tune it on two seeds or more with `bandwise sweep .*--tune`"):
        refuse_underpowered(tuned(tmp_path, TUNABLE, apart=0.0, seeds=1))
    refuse_underpowered(tuned(tmp_path, TUNABLE.replace("headline: true\n", ""), apart=9.0))
