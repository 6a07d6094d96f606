"""Performance profiles of a study: steps and bytes to the target, over all its cells that share their arms.

Compared are the arms that every cell has, negative controls left out; seeds are those that all of them ended with a curve.
An arm that had a target before it sent anything, or whose runs did not note their bytes, is in the profile of steps alone.
A study of fewer than four such cells of six seeds gives no profile.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from suite.analysis.statistics import LEAST_WORKLOADS, MINIMUM_FOR_INTERVAL, performance_profiles
from suite.analysis.tables import Row
from suite.analysis.to_target import Arrival, Race

TAUS: Final = tuple(2 ** (k / 6) for k in range(73))
"""Multiples of the least at which a share is stated, up to 4096."""


def profile_rows(races: Sequence[Race]) -> list[Row]:
    """Rows of the table `profiles`; none where the study has too little for one."""
    arms = _shared(races)
    seeds = [_seeds(race, arms) for race in races]
    chosen = [(race, own) for race, own in zip(races, seeds, strict=True) if len(own) >= MINIMUM_FOR_INTERVAL]
    if len(chosen) < LEAST_WORKLOADS or not arms:
        return []
    rows: list[Row] = []
    for quantity in ("steps", "bytes"):
        times = {
            arm: [[_amount(race.arrivals[arm][s], quantity) for s in own] for race, own in chosen]
            for arm in arms
        }
        usable = {arm: own for arm, own in times.items() if all(value > 0 for cell in own for value in cell)}
        if usable:
            rows += _rows(quantity, usable, chosen)
    return rows


def _shared(races: Sequence[Race]) -> list[str]:
    """The arms that every cell has, controls left out."""
    if not races:
        return []
    study = races[0].cell.study
    common = set.intersection(*(set(race.arrivals) for race in races))
    return sorted(arm for arm in common if not study.by_name[arm].control)


def _seeds(race: Race, arms: Sequence[str]) -> list[int]:
    """The seeds that all arms ended in a cell."""
    return sorted(set.intersection(*(set(race.arrivals[arm]) for arm in arms))) if arms else []


def _amount(one: Arrival, quantity: str) -> float:
    """0, which no profile takes, where bytes were not recorded or none were sent."""
    return one.steps if quantity == "steps" else one.wire_bytes or 0.0


def _rows(
    quantity: str, times: dict[str, list[list[float]]], chosen: Sequence[tuple[Race, list[int]]]
) -> list[Row]:
    study = chosen[0][0].cell.study
    profiles = performance_profiles(times, TAUS)
    risen = max(one.share.index(one.share[-1]) for one in profiles.values())
    last = min(risen + 3, len(TAUS) - 1)
    return [
        {
            "quantity": quantity,
            "arm": arm,
            "tau": tau,
            "family": study.by_name[arm].family,
            "share": one.share[i],
            "low": one.low[i],
            "high": one.high[i],
            "never": one.missed,
            "cells": len(chosen),
            "seeds": min(len(own) for _, own in chosen),
        }
        for arm, one in profiles.items()
        for i, tau in enumerate(TAUS[: last + 1])
    ]
