"""How long runs will take on one core: by finished runs of the same kind, else roughly by their size."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from suite.runs.grouping import elements, group_key
from suite.runs.spec import RunSpec
from suite.runs.store import Store

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
