"""How long runs will take on one core: by finished runs of the same kind, else roughly by their size."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from suite.runs.spec import RunSpec
from suite.runs.train import group_key, task_of

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
    """Knows what finished runs took, by kind of run (see `train.group_key`)."""

    def __init__(self, results: Iterable[Mapping[str, Any]] = ()) -> None:
        self._seconds: dict[str, list[float]] = {}
        self._bytes: dict[str, list[float]] = {}
        self._rough: dict[str, float] = {}
        for result in results:
            spec = RunSpec.from_dict(result["spec"])
            key = group_key(spec)
            self._seconds.setdefault(key, []).append(result["train_s"])
            self._bytes.setdefault(key, []).append(result["bytes"]["wire_per_rank_mean"] * spec.world_size)

    def seconds(self, spec: RunSpec) -> float:
        """Of one run."""
        key = group_key(spec)
        if key in self._seconds:
            return math.fsum(self._seconds[key]) / len(self._seconds[key])
        if key not in self._rough:
            elements = sum(value.numel() for value in task_of(spec).initial().values())
            workers = spec.world_size if spec.backend == "simulated" else 1
            self._rough[key] = spec.steps * (STEP_S + ELEMENT_S * elements * workers)
        return self._rough[key]

    def of(self, specs: Sequence[RunSpec]) -> Estimate:
        """Of all these runs together."""
        keys = [group_key(spec) for spec in specs]
        known = [self._bytes[key] for key in keys if key in self._bytes]
        measured = len(known) == len(keys)
        sent = math.fsum(math.fsum(found) / len(found) for found in known) if measured else None
        return Estimate(math.fsum(map(self.seconds, specs)), sent, measured)
