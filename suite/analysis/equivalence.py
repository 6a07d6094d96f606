"""The words behind "equal accuracy", and the check that they could have failed.

A method is *equal* to its baseline when the interval of the paired difference lies inside +-margin, *not
equal* when the interval lies wholly outside, else *undecided* (two one-sided tests; a 95 % interval makes
each of them at 2.5 %; Schuirmann, Journal of Pharmacokinetics and Biopharmaceutics 15, 1987). A margin that
is too wide calls anything equal, so the same study must tell the negative controls (methods known to be bad)
from the baseline, and the margin may be at most half the loss of the weakest of them. Where that fails the
study is *not sensitive*, and no method of it is called equal.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from suite.analysis.statistics import MINIMUM_FOR_INTERVAL, Interval, StatisticsError

Equality = Literal["yes", "no", "undecided", "not sensitive"]


@dataclass(frozen=True)
class Control:
    """What one negative control lost against its baseline, in the workload's unit; a loss is positive.

    loss is None when fewer than six pairs finished; collapsed says that every seed diverged, which is a loss
    without bound. planned: seeds that were to run.
    """

    name: str
    loss: Interval | None
    collapsed: bool = False
    planned: int = MINIMUM_FOR_INTERVAL


@dataclass(frozen=True)
class Sensitivity:
    """Whether a study could have seen a bad method: the verdict, the reason in a sentence, the weakest
    control and its loss.
    """

    sensitive: bool
    reason: str
    weakest: str | None
    weakest_loss: float | None


def _positive(margin: float) -> float:
    if not (math.isfinite(margin) and margin > 0):
        raise StatisticsError(
            f"an equivalence margin is a positive number in the workload's unit, not {margin}"
        )
    return margin


def equivalence(difference: Interval, margin: float) -> Equality:
    """Equality from the interval of a paired difference alone: "yes" inside (-margin, margin), "no" wholly
    outside.

    Raises StatisticsError for a margin that is not positive or an interval that is not finite.
    """
    _positive(margin)
    if not (math.isfinite(difference.low) and math.isfinite(difference.high)):
        raise StatisticsError("equivalence needs a finite interval; count failed runs apart")
    if -margin < difference.low and difference.high < margin:
        return "yes"
    if difference.low >= margin or difference.high <= -margin:
        return "no"
    return "undecided"


def sensitivity(
    controls: Sequence[Control], margin: float, unit: str = "", no_verdict: str = ""
) -> Sensitivity:
    """Whether the study tells every negative control from the baseline, and the margin is at most half the
    weakest loss.

    A control is told apart when the interval of its loss lies above 0, or when all its seeds diverged. The
    weakest control is the one with the smallest mean loss. Without controls, or with one that could not be
    measured, the study is not sensitive; nor on a workload that says why it supports no verdict.
    """
    _positive(margin)
    if no_verdict:
        return Sensitivity(False, f"this workload supports no verdict on equality: {no_verdict}", None, None)
    suffix = f" {unit}" if unit else ""
    if not controls:
        return Sensitivity(
            False,
            "no negative control ran, so nothing shows that a bad method would have been seen",
            None,
            None,
        )
    unmeasured = sorted(c.name for c in controls if c.loss is None and not c.collapsed)
    if planned := [c.planned for c in controls if c.name in unmeasured and c.planned < MINIMUM_FOR_INTERVAL]:
        return Sensitivity(
            False, f"{min(planned)} seeds: an interval needs {MINIMUM_FOR_INTERVAL}", None, None
        )
    if unmeasured:
        return Sensitivity(
            False, f"too few seeds of {', '.join(unmeasured)} finished to measure the loss", None, None
        )
    losses = sorted((math.inf if c.loss is None else c.loss.estimate, c.name) for c in controls)
    weakest_loss, weakest = losses[0]
    hidden = sorted(c.name for c in controls if c.loss is not None and c.loss.low <= 0)
    if hidden:
        reason = f"with this many seeds {', '.join(hidden)} cannot be told from the baseline"
        return Sensitivity(False, reason, weakest, weakest_loss)
    lost = "diverged" if math.isinf(weakest_loss) else f"lost {weakest_loss:.2f}{suffix}"
    if margin > weakest_loss / 2:
        reason = f"the margin of {margin:g}{suffix} is more than half of what the weakest control lost"
        return Sensitivity(False, f"{reason} ({weakest} {lost})", weakest, weakest_loss)
    reason = f"every control is told from its baseline, and the weakest ({weakest}) {lost}"
    return Sensitivity(
        True, f"{reason}, at least twice the margin of {margin:g}{suffix}", weakest, weakest_loss
    )


def equality(
    difference: Interval | None, margin: float, study: Sensitivity, *, planned: int, done: int, diverged: int
) -> Equality:
    """The word that stands in the table, from the interval, the study's sensitivity and what became of the
    planned seeds.

    A diverged seed makes "no", whatever the other seeds did. "yes" needs every planned seed: seeds lost for
    another reason leave "undecided". "not sensitive" replaces "yes" and "undecided" in a study that could not
    have seen a bad method, but a measured "no" stays. difference is None when fewer than six pairs finished.
    """
    if not 0 <= done + diverged <= planned:
        raise StatisticsError(
            f"{done} done and {diverged} diverged of {planned} planned runs does not add up"
        )
    if diverged:
        return "no"
    word: Equality = "undecided" if difference is None else equivalence(difference, margin)
    if word == "no":
        return "no"
    if not study.sensitive:
        return "not sensitive"
    return word if done == planned else "undecided"
