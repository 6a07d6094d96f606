"""Which runs are trained together, and how long they will take: kinds of runs, groups of a kind within memory, and seconds on one
core by finished runs of the same kind, else roughly by their size. Needs no torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from suite.runs.canonical import canonical_json
from suite.runs.disk_cache import answered
from suite.runs.spec import RunSpec
from suite.runs.store import Store

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


RUN_S: Final = 0.02
"""Of a run, however short: its files, each of which has to reach the disk."""
STEP_S: Final = 1e-3
"""Of a step of a small run: method and bookkeeping, whatever the model."""
ELEMENT_S: Final = 2e-8
"""Of a step, a parameter and a worker: gradient, method and update."""


@dataclass(frozen=True)
class Estimate:
    """Seconds of training and bytes on the wire (all ranks) that some runs need.

    measured: whether every kind of run among them has finished before; otherwise part of it is a rough guess.
    wire_bytes: None where no run of some kind has finished.
    """

    seconds: float
    wire_bytes: float | None
    measured: bool


class Estimator:
    """Knows what finished runs took, by kind of run (see `grouping.group_key`)."""

    def __init__(self, done: Iterable[tuple[RunSpec, Mapping[str, Any]]] = ()) -> None:
        """done: finished runs with their results."""
        self._seconds: dict[str, list[float]] = {}
        self._bytes: dict[str, list[float]] = {}
        self._rough: dict[str, float] = {}
        for spec, result in done:
            key = group_key(spec)
            self._seconds.setdefault(key, []).append(result["train_s"])
            self._bytes.setdefault(key, []).append(result["bytes"]["wire_per_rank_mean"] * spec.world_size)

    @classmethod
    def of_store(cls, specs: Iterable[RunSpec], store: Store) -> Estimator:
        """Knows what those of the runs took that have finished."""
        results = ((spec, store.result(spec.run_id)) for spec in specs)
        return cls(
            (spec, result) for spec, result in results if result is not None and result["status"] == "done"
        )

    def seconds(self, spec: RunSpec) -> float:
        """Of one run, its files included."""
        key = group_key(spec)
        if key in self._seconds:
            return RUN_S + math.fsum(self._seconds[key]) / len(self._seconds[key])
        if key not in self._rough:
            workers = spec.world_size if spec.backend == "simulated" else 1
            self._rough[key] = RUN_S + spec.steps * (STEP_S + ELEMENT_S * elements(spec) * workers)
        return self._rough[key]

    def of(self, specs: Sequence[RunSpec]) -> Estimate:
        """Of all these runs together."""
        keys = [group_key(spec) for spec in specs]
        known = [self._bytes[key] for key in keys if key in self._bytes]
        measured = len(known) == len(keys)
        sent = math.fsum(math.fsum(found) / len(found) for found in known) if measured else None
        return Estimate(math.fsum(map(self.seconds, specs)), sent, measured)
