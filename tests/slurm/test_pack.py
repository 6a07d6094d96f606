"""How runs become members: every run once, enough work in each, none too long, resources never mixed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from slurm.pack import MEMBERS_A_SLOT, Member, pack, tasks
from slurm.profile import Profile, ProfileError
from suite.runs.grouping import RUN_S, Estimator, group_key
from suite.runs.spec import RunSpec
from tests.slurm.specs import tiny

PROFILE = Profile(name="site", timeout_min=20, array_parallelism=4, pack_s=100)


def finished(spec: RunSpec, train_s: float) -> tuple[RunSpec, dict[str, Any]]:
    """A run and what the estimate reads of its result."""
    return spec, {"train_s": train_s, "bytes": {"wire_per_rank_mean": 1000.0}}


def seconds(member: Member, each_s: float) -> float:
    return each_s * sum(len(group) for group in member)


def ids(members: list[Any]) -> list[str]:
    return sorted(spec.run_id for member in members for group in member for spec in group)


@pytest.mark.parametrize("each_s", [0.01, 1.0, 10.0, 100.0])
def test_members_hold_enough_work_and_not_too_much(each_s: float) -> None:
    specs = [tiny(seed) for seed in range(300)] + [tiny(seed, steps=8) for seed in range(100)]
    known = Estimator([finished(tiny(0), each_s), finished(tiny(0, steps=8), each_s)])
    members = pack(specs, PROFILE, known)
    assert ids(members) == sorted(spec.run_id for spec in specs)
    assert all(len({group_key(spec) for spec in group}) == 1 for member in members for group in member)
    total = 400 * each_s
    for member in members:
        assert seconds(member, each_s) <= PROFILE.work_max_s
        assert seconds(member, each_s) >= min(total, 50)
    slots = MEMBERS_A_SLOT * PROFILE.array_parallelism
    assert len(members) <= max(1.5 * slots, 2 * total / PROFILE.work_max_s + 1)
    if each_s >= 10:
        assert len(members) >= slots, "there is work for a few members a slot"


def test_packing_can_be_switched_off() -> None:
    members = pack(
        [tiny(seed) for seed in range(40)], PROFILE.model_copy(update={"pack_s": 0, "array_parallelism": 12})
    )
    assert len(members) == 10
    assert all(len(member) == 1 for member in members)


def test_runs_on_real_ranks_stand_apart_by_their_number_of_tasks() -> None:
    simulated = tiny(0)
    real = replace(simulated, backend="gloo")
    more = replace(real, world_size=4)
    members = pack([more, simulated, real], PROFILE.model_copy(update={"pack_s": 10**6}))
    assert [[tasks(spec) for group in member for spec in group] for member in members] == [[1], [2], [4]]


@pytest.mark.parametrize(
    ("nodes", "per_node", "ranks", "shape"),
    [
        (None, None, 4, (1, 4)),
        (None, 2, 4, (2, 2)),
        (2, None, 4, (2, 2)),
        (4, 1, 4, (4, 1)),
        (4, 2, 1, (1, 1)),
    ],
)
def test_ranks_are_spread_as_the_profile_says(
    nodes: int | None, per_node: int | None, ranks: int, shape: tuple[int, int]
) -> None:
    found = PROFILE.model_copy(update={"nodes": nodes, "tasks_per_node": per_node}).shape(ranks)
    assert (found.nodes, found.tasks_per_node) == shape
    assert found.tasks == ranks


@pytest.mark.parametrize(("nodes", "per_node"), [(None, 3), (3, None), (2, 1)])
def test_ranks_that_cannot_be_placed_are_refused(nodes: int | None, per_node: int | None) -> None:
    profile = PROFILE.model_copy(update={"nodes": nodes, "tasks_per_node": per_node})
    with pytest.raises(ProfileError, match="give tasks_per_node alone, as a divisor of 4"):
        pack([replace(tiny(0), backend="gloo", world_size=4)], profile)


def test_an_estimate_without_finished_runs_is_rough_and_says_so() -> None:
    rough = Estimator().of([tiny(0), tiny(1)])
    assert rough.seconds > 0
    assert (rough.measured, rough.wire_bytes) == (False, None)
    known = Estimator([finished(tiny(7), 3.0), finished(tiny(8), 5.0)]).of([tiny(0), tiny(1)])
    assert known.seconds == pytest.approx(2 * (4.0 + RUN_S))
    assert (known.wire_bytes, known.measured) == (2 * 2 * 1000.0, True)
