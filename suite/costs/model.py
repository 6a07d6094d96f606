"""The cost model of a machine and a backend: prices of collectives, and how steps overlap; fitted, and asked for predictions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from scipy.optimize import least_squares

from reference_impls.collectives import AllGather, AllReduce, AllToAll, SendRecv
from suite.analysis.tables import Row
from suite.costs.fit import TOLERANCE, fit_backend
from suite.costs.local import measured_local
from suite.costs.network import Backend
from suite.costs.samples import Sample, Setting, recipe_for
from suite.costs.timeline import Local, Overlap, unit_seconds
from suite.timing.case import Case

STALLING: Final = (AllReduce.name, AllGather.name, AllToAll.name, SendRecv.name)
START: Final = (0.5, 6.0, *(0.5 for _ in STALLING))
"""Where the search begins: late, sharpness, stalls in milliseconds, so that all are numbers of about one."""
LOW: Final = (0.0, 1.0, *(0.0 for _ in STALLING))
HIGH: Final = (1.0, 20.0, *(50.0 for _ in STALLING))
HELD: Final = (0.1, 0.1, *(0.03 for _ in STALLING))
"""How hard each is held to where the search begins, so that what the steps of a fit say nothing of stays there."""


@dataclass(frozen=True)
class Model:
    """backend: prices. overlap: of computing and sending."""

    backend: Backend
    overlap: Overlap

    def step_s(self, case: Case, setting: Setting, local: Local) -> float:
        """Seconds a step of a case. Raises `RecipeError` where it cannot be asked what it sends."""
        recipe = recipe_for(case, setting.workload, setting.world_size, setting.bucket_bytes)
        network = self.backend.on(setting.link)
        return unit_seconds(recipe, local, network, self.overlap) / case.unit_steps


def fit_model(calibration: Sequence[Row], samples: Sequence[Sample], cores: int) -> Model:
    """Prices from exchanges alone; the overlap, six numbers, from whole steps. Raises `FitError`."""
    backend = fit_backend(calibration, cores).backend
    return Model(backend, fit_overlap(backend, samples))


def fit_overlap(backend: Backend, samples: Sequence[Sample]) -> Overlap:
    """Least squares of the logarithms, as for the prices; without samples where the search begins."""
    used = []
    for sample in samples:
        setting = sample.setting
        recipe = recipe_for(sample.case, setting.workload, setting.world_size, setting.bucket_bytes)
        local = measured_local(sample, samples)
        used.append((recipe, local, backend.on(setting.link), sample.step_s * sample.case.unit_steps))
    if not used:
        return _overlap(START)

    def residuals(x: Any) -> Any:
        overlap = _overlap(x)
        errors = [np.log(unit_seconds(recipe, local, at, overlap) / took) for recipe, local, at, took in used]
        return np.array([*errors, *(np.array(HELD) * (x - np.array(START)))])

    found = least_squares(
        residuals, START, bounds=(LOW, HIGH), loss="soft_l1", f_scale=TOLERANCE, diff_step=1e-3
    )
    return _overlap(found.x)


def _overlap(x: Any) -> Overlap:
    """The parameters by name."""
    stalls = {name: 1e-3 * float(ms) for name, ms in zip(STALLING, x[2:], strict=True)}
    return Overlap(float(x[0]), float(x[1]), stalls)


def price_rows(model: Model) -> list[Row]:
    """Table `costs-prices`."""
    backend, overlap = model.backend, model.overlap
    shared = {
        "efficiency of the wire": (backend.efficiency, "of its rate"),
        "delays a round": (backend.delayed, "one-way delays"),
        "burst of a shaped wire": (backend.burst, "bytes"),
        "backward before the last rank's first bucket": (overlap.late, "of it, times 1 - 1 / crowd"),
        "norm of waiting and all work": (overlap.sharpness, "p"),
        **{
            f"wait of {name} for a shared processor": (1e3 * stall, "ms, a further rank on it")
            for name, stall in overlap.stall_s.items()
        },
    }
    each = {
        f"{name}: {what}": (value, unit)
        for name, price in backend.prices.items()
        for what, value, unit in (
            ("a call", 1e6 * price.start_s, "us"),
            ("a round", 1e6 * price.round_s, "us"),
            ("host work", 1e9 * price.host_s, "ns a byte sent"),
        )
    }
    return [
        {"what": what, "value": value, "unit": unit} for what, (value, unit) in {**shared, **each}.items()
    ]
