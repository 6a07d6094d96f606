"""Budget ladders: the same training at several lengths, everything that has a length rescaled with it.

    budgets: [0.5, 0.71, 1, 1.41]   # of a sweep file: multiples of `steps`, rising, 1 among them

A *rung* is the sweep at one of these budgets: its steps and the warm-up of its learning rate are multiplied, the schedule
spans the new length, and a method that is told the length of the training is told that one. Peak learning rates are those
tuned at budget 1; periods that a method states in steps stay. The runs of a rung are ordinary runs, those of budget 1 the
very ones of the sweep without a ladder.
"""

from __future__ import annotations

import itertools
import math
from typing import Final

from suite.runs.yaml_lines import Section

WHOLE: Final = 1.0
"""The budget at which learning rates are tuned and methods are compared."""
WIDEST: Final = 16.0
"""No rung is longer, nor shorter by more, than this."""


def read_budgets(top: Section, steps: int) -> tuple[float, ...]:
    """The budgets of a sweep file, (1.0,) where it has no ladder. Raises `YamlError` with the line of `budgets`."""
    if "budgets" not in top:
        return (WHOLE,)
    budgets = tuple(top.numbers("budgets"))
    if not all(math.isfinite(budget) and 1 / WIDEST <= budget <= WIDEST for budget in budgets):
        raise top.error("budgets", f"each is a multiple of `steps` between 1/{WIDEST:g} and {WIDEST:g}")
    if WHOLE not in budgets:
        raise top.error("budgets", "1 must be among them: rates are tuned and methods are compared there")
    if len(budgets) < 2:
        raise top.error("budgets", "a ladder has two rungs or more: add some, or leave the key out")
    lengths = [scaled(steps, budget) for budget in budgets]
    if not all(a < b for a, b in itertools.pairwise(budgets)) or len({*lengths}) < len(lengths):
        raise top.error(
            "budgets",
            f"must rise, each to more steps than the one before; of {steps} steps these are {lengths}",
        )
    return budgets


def scaled(steps: int, budget: float, least: int = 1) -> int:
    """So many steps at a budget."""
    return max(least, round(steps * budget))
