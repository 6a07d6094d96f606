"""The answers of all ranks to one command, as one entry of the record: the slowest rank's seconds, means of the rest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import Any, Final

PLACES: Final = ("stage", "collective", "group")
SENT: Final = ("calls", "payload_bytes", "wire_bytes", "received_bytes")
"""Keys of a block's `stages`: where bytes belong, and what is counted a unit."""


def block_entry(answers: Sequence[Mapping[str, Any]], lead: int, unit_steps: int) -> dict[str, Any]:
    """What a block took, without its first `lead` units.

    unit_s: the block's sample, the slowest rank's seconds from its first unit to its last, a unit. unit_seconds: of each
    unit the slowest rank's; a rank that is late in one unit may be early in the next, so these add up to more than the
    block took. step_seconds: the median over the steps of the slowest rank's. spread: of
    the processor time of the ranks, largest less smallest over their mean; None where none was used. phases: seconds a
    step, mean over ranks. A rank's phases are means over all units of its block, so phases go without a lead.
    """
    units = [list(answer["unit_seconds"])[lead:] for answer in answers]
    steps = [list(answer["step_seconds"])[lead * unit_steps :] for answer in answers]
    busy = [float(answer["cpu_s"]) for answer in answers]
    return {
        "unit_s": max(sum(column) for column in units) / len(units[0]),
        "unit_seconds": [max(column) for column in zip(*units, strict=True)],
        "step_seconds": median(max(column) for column in zip(*steps, strict=True)),
        "spread": (max(busy) - min(busy)) / fmean(busy) if fmean(busy) > 0 else None,
        "phases": mean_phases([answer["phases"] for answer in answers]),
    }


def mean_phases(phases: Sequence[Mapping[str, float] | None]) -> dict[str, float] | None:
    """Seconds a step by phase, mean over ranks; None where a rank has none."""
    told = [found for found in phases if found is not None]
    if len(told) < len(phases) or not told:
        return None
    return {name: fmean(found.get(name, 0.0) for found in told) for name in sorted(set().union(*told))}


def traffic_entry(answers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Bytes a unit, mean over ranks, also by stage, and the path that each codec took on any rank."""
    paths: dict[str, set[str]] = {}
    for answer in answers:
        for name, way in answer["path"].items():
            paths.setdefault(name, set()).update(way.split("/"))
    return {
        "wire_bytes": fmean(answer["wire_bytes"] for answer in answers),
        "received_bytes": fmean(answer["received_bytes"] for answer in answers),
        "stages": mean_stages([answer["stages"] for answer in answers]),
        "path": {name: "/".join(sorted(ways)) for name, ways in sorted(paths.items())},
    }


def mean_stages(ranks: Sequence[Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """A unit's bytes by stage, collective and group, mean over ranks; a rank that sends nothing there counts as 0."""
    found: dict[tuple[str, ...], dict[str, float]] = {}
    for stages in ranks:
        for one in stages:
            sums = found.setdefault(tuple(one[name] for name in PLACES), dict.fromkeys(SENT, 0.0))
            for name in SENT:
                sums[name] += one[name] / len(ranks)
    return [{**dict(zip(PLACES, place, strict=True)), **sums} for place, sums in sorted(found.items())]


def direct_entry(answers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A whole run: the slowest rank's seconds, the steps, and the scores of the rank that was evaluated."""
    return {
        "seconds": max(answer["seconds"] for answer in answers),
        "steps": answers[0]["steps"],
        "steps_by_kind": dict(answers[0]["steps_by_kind"]),
        "final": next((answer["final"] for answer in answers if answer["final"] is not None), None),
    }
