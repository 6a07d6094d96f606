"""Cuts the runs of a sweep into members: what one job trains, group after group, in one warm process.

Starting Python, torch and the first compiled function takes seconds, so a member holds enough work for that to be a small
share; it is never longer than half of its time limit; and within both, there are a few members for each that may run
at once, so that none waits long for the last one. Members of simulated runs are one task, those of runs on real process groups
a task a rank, and the two never mix.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from slurm.profile import Profile
from suite.runs.grouping import Estimator, groups
from suite.runs.spec import RunSpec

MEMBERS_A_SLOT: Final = 3

Group = Sequence[RunSpec]
"""Runs that are trained together."""
Member = Sequence[Group]
"""Groups that one job trains one after another."""


def tasks(spec: RunSpec) -> int:
    """How many processes a run needs: one, or a rank each where it is not simulated."""
    return 1 if spec.backend == "simulated" else spec.world_size


def pack(specs: Sequence[RunSpec], profile: Profile, estimator: Estimator | None = None) -> list[list[Group]]:
    """Members for all these runs, those of equal resources beside each other, runs in their order.

    Raises `ProfileError` where the profile cannot place a run.
    """
    known = estimator or Estimator()
    by_tasks: dict[int, list[RunSpec]] = {}
    for spec in specs:
        by_tasks.setdefault(tasks(spec), []).append(spec)
    found: list[list[Group]] = []
    for count, part in sorted(by_tasks.items()):
        profile.shape(count)
        found.extend(_pack(part, profile, known))
    return found


def _pack(specs: Sequence[RunSpec], profile: Profile, known: Estimator) -> list[list[Group]]:
    most = MEMBERS_A_SLOT * profile.array_parallelism
    if profile.pack_s == 0:
        return [[group] for group in groups(specs, slots=max(1, profile.array_parallelism // MEMBERS_A_SLOT))]
    total = sum(map(known.seconds, specs))
    wanted = max(1, min(most, int(total / profile.pack_s)), -int(-total // profile.work_max_s))
    # `groups` cuts each kind of run into three a slot and more, so that there is something to spread.
    cut = groups(specs, slots=-(-wanted // MEMBERS_A_SLOT))
    wanted = min(wanted, len(cut))
    return _spread(cut, [sum(map(known.seconds, group)) for group in cut], wanted, profile.work_max_s)


def _spread(cut: Sequence[Group], costs: Sequence[float], members: int, most_s: float) -> list[list[Group]]:
    """Neighbouring groups together, in members of about equal seconds, at least so many, none above `most_s`
    unless a single group is."""
    aim = sum(costs) / members
    found: list[list[Group]] = [[]]
    held = 0.0
    for i, (group, cost) in enumerate(zip(cut, costs, strict=True)):
        left, needed = len(cut) - i, members - len(found)
        full = held + cost / 2 > aim or held + cost > most_s or left <= needed
        if found[-1] and full:
            found.append([])
            held = 0.0
        found[-1].append(group)
        held += cost
    return found
