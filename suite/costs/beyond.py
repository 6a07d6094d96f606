"""What a case computes beyond a step of torch's DistributedDataParallel, by the size of the model: a fixed part, which is calls
and Python, and so much a parameter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

import numpy as np
from scipy.optimize import nnls

from suite.costs.samples import Sample, middle
from suite.costs.timeline import Local

DDP: Final = "DDP fp32"
OWN: Final = ("encode_s", "decode_s", "update_s")
LEAST_S: Final = 1e-7
"""Seconds that are taken for none when relative errors are weighed."""


def crowd(n: int, cores: int) -> float:
    """Ranks that share a core, at least 1."""
    return max(1.0, n / cores)


@dataclass(frozen=True)
class Beyond:
    """measured: parameters of a model -> what a case adds there, on a core of its own; `Local.compute_s` is 0."""

    measured: dict[int, Local]

    @property
    def largest(self) -> int:
        """Parameters of the largest model that it was timed with."""
        return max(self.measured)

    def at(self, parameters: float) -> Local:
        """For a model of any size. From one size all of it counts a parameter; from more, neither part is negative."""
        return Local(0.0, *(self._part(name, parameters) for name in OWN))

    def _part(self, name: str, parameters: float) -> float:
        sizes = np.array(list(self.measured), dtype=float)
        seconds = np.array([getattr(local, name) for local in self.measured.values()])
        if len(sizes) == 1:
            return float(seconds[0] * parameters / sizes[0])
        weights = 1 / np.maximum(seconds, LEAST_S)
        (fixed, each), _ = nnls(np.stack([weights, weights * sizes], axis=1), weights * seconds)
        return float(fixed + each * parameters)


def beyond(timed: Sequence[Sample], samples: Sequence[Sample], cores: int) -> Beyond | None:
    """Medians over the samples of a case, `timed`, model by model, each beside DDP's among `samples` with the same model and
    workers; None where none has phases and a DDP beside it."""
    found: dict[int, list[list[float]]] = {}
    for sample in timed:
        setting = sample.setting
        base = middle([
            ddp for ddp in samples
            if ddp.name == DDP and (ddp.setting.workload, ddp.setting.world_size) == (setting.workload, setting.world_size)
        ])  # fmt: skip
        if base is None or sample.local is None:
            continue
        share = crowd(setting.world_size, cores)
        parts = [max(0.0, getattr(sample.local, name) - getattr(base, name)) / share for name in OWN]
        found.setdefault(setting.parameters, []).append(parts)
    measured = {
        size: Local(0.0, *(median(values) for values in zip(*parts, strict=True)))
        for size, parts in sorted(found.items())
    }
    return Beyond(measured) if measured else None
