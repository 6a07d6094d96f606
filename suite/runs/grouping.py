"""Which runs are trained together: kinds of runs, and groups of a kind within memory. Needs no torch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from suite.runs.answers import answered
from suite.runs.canonical import canonical_json
from suite.runs.spec import RunSpec

GROUP_BYTES: Final = 256 << 20
"""Memory a group may take; beyond it the rows fall out of the processor's caches and nothing is gained."""
COPIES: Final = 8
"""Floats held per parameter of a worker while it trains: parameters, gradients twice, optimizer and method state."""


def group_key(spec: RunSpec) -> str:
    """Equal for runs that can be trained in one group."""
    workload = canonical_json(spec.workload.as_dict())
    return f"{spec.backend} {workload} {spec.sharding} n={spec.world_size} T={spec.steps} B={spec.batch_size}"


def groups(specs: Iterable[RunSpec], slots: int = 1, group_bytes: int = GROUP_BYTES) -> list[list[RunSpec]]:
    """Cut runs into groups: within memory, at least three a slot where there is enough work, order kept.

    Runs on real process groups stand alone.
    """
    by_key: dict[str, list[RunSpec]] = {}
    for spec in specs:
        by_key.setdefault(group_key(spec), []).append(spec)
    found: list[list[RunSpec]] = []
    for members in by_key.values():
        size = min(_most_runs(members[0], group_bytes), -(-len(members) // (3 * slots)))
        found.extend(members[i : i + size] for i in range(0, len(members), size))
    return found


def elements(spec: RunSpec) -> int:
    """How many parameters the model of a run has."""

    def count() -> int:
        from suite.runs.from_spec import task_of

        return sum(value.numel() for value in task_of(spec).initial().values())

    workload = spec.workload.as_dict()
    return int(answered(["elements", workload, spec.sharding, spec.world_size, spec.batch_size], count))


def _most_runs(spec: RunSpec, group_bytes: int) -> int:
    if spec.backend != "simulated":
        return 1
    return max(1, group_bytes // (elements(spec) * 4 * COPIES * spec.world_size))
