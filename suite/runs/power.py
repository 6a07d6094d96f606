"""Whether a study can decide anything, known before it is run: half the width that its intervals will have.

The spread of paired differences is taken from the runs of tuning at the chosen rates, on seeds that are never scored. A study
that calls itself a headline is refused where half the interval of a difference will be more than half the margin of its workload.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from scipy import stats

from suite.runs.plan import PlanError
from suite.runs.sweep import Arm, Rates, Setting, Sweep, load_rates


@dataclass(frozen=True)
class Power:
    """What a setting's intervals will be.

    sd: of the paired difference of a method to its reference over seeds, in the metric's unit, pooled over arms. df: of sd; 0
    where tuning had one seed or has not been done. half_width: of the 95 % interval of a mean difference over the planned seeds.
    margin: what counts as equal, as the sweep states it.
    """

    panel: str
    sd: float
    df: int
    half_width: float
    margin: float
    seeds: int

    @property
    def enough(self) -> bool:
        """Whether half the interval is at most half the margin."""
        return self.df > 0 and self.half_width <= self.margin / 2

    @property
    def seeds_needed(self) -> int:
        """The fewest seeds that are enough; known only with `df`."""
        n = self.seeds
        while _half(self.sd, n) > self.margin / 2:
            n += 1
        return n


def power_of(sweep: Sweep) -> list[Power]:
    """The power of every setting of a sweep.

    Args:
        sweep: With its file of tuned rates beside it.

    Returns:
        One a setting, in the order of the file.

    Raises:
        YamlError: The file of rates cannot be read.
    """
    rates = load_rates(sweep.rates_path)
    return [_of_panel(sweep, panel, rates) for panel in sweep.panels()]


def refuse_underpowered(sweep: Sweep) -> None:
    """Refuse a headline study that cannot decide. Raises PlanError, with the seeds that would do."""
    for power in power_of(sweep) if sweep.headline else ():
        if not power.df:
            raise PlanError(
                f"{power.panel}: a headline study needs the spread of its differences before it is run: tune it on two seeds or "
                f"more with `{sweep.tuned_by}`"
            )
        if not power.enough:
            raise PlanError(
                f"{power.panel}: {power.seeds} seeds will give intervals of +-{power.half_width:.3g}, more than half the margin "
                f"of {power.margin:.3g} (sd {power.sd:.3g} in tuning): use {power.seeds_needed} seeds, or leave out `headline`"
            )


def _of_panel(sweep: Sweep, panel: Setting, rates: Rates) -> Power:
    squares, df = 0.0, 0
    for arm in sweep.arms_of(panel):
        own, other = (_chosen(panel, one, rates) for one in (arm, _reference(sweep, arm)))
        if arm.control or len(own) < 2 or len(own) != len(other) or arm is _reference(sweep, arm):
            continue
        gaps = [a - b for a, b in zip(own, other, strict=True)]
        mean = math.fsum(gaps) / len(gaps)
        squares += math.fsum((gap - mean) ** 2 for gap in gaps)
        df += len(gaps) - 1
    sd = math.sqrt(squares / df) if df else math.nan
    return Power(panel.label, sd, df, _half(sd, sweep.seeds), sweep.margin or math.nan, sweep.seeds)


def _reference(sweep: Sweep, arm: Arm) -> Arm:
    return sweep.arms[sweep.references[0] if sweep.references else arm.baseline]


def _chosen(panel: Setting, arm: Arm, rates: Rates) -> tuple[float, ...]:
    """The metric at the chosen rate by tuning seed."""
    tuned = rates.find(panel, arm)
    return next((trial.values for trial in tuned.trials if trial.lr == tuned.lr), ()) if tuned else ()


def _half(sd: float, seeds: int) -> float:
    return float(stats.t.ppf(0.975, seeds - 1)) * sd / math.sqrt(seeds) if seeds > 1 else math.inf
