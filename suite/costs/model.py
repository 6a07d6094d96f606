"""The cost model of a machine and a backend (`suite.costs.step`): its fit to sessions, and the fitted model in a file.

Prices are fitted to exchanges alone (`suite.costs.prices`), the overlap to whole steps. Who asks for advice does not wait for
that: `tables/costs-model.json` keeps the model with the hash of what decides its numbers, and where that has changed the model is
fitted anew.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, astuple
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
from scipy.optimize import least_squares

from suite.analysis.published import published_root
from suite.analysis.tables import table_path, to_csv
from suite.costs.advice import NAME, model_from
from suite.costs.columns import CALIBRATION, PRICES
from suite.costs.prices import FIT_SETTINGS, TOLERANCE, FitError, fit_backend
from suite.costs.samples import Known, Sample, case_recipe, measured_local, recipe_for
from suite.costs.step import OF_PROBE, Backend, Local, Model, Overlap, Price, unit_seconds
from suite.links.link import Link
from suite.runs.files import dump, parsed, read, write_atomic
from suite.timing.case import Case

# ---- the model and its fit

START: Final = (0.5, 0.5)
"""Where the search begins: late, and an all-gather's wait in milliseconds, so that both are numbers of about one."""
LOW: Final = (0.0, 0.0)
HIGH: Final = (1.0, 50.0)
HELD: Final = (0.1, 0.03)
"""How hard each is held to where the search begins, so that what the steps of a fit say nothing of stays there."""
STEP: Final = 1e-3
"""Relative step of the numerical derivatives: seconds of a played step have kinks."""


def fit_model(calibration: pd.DataFrame, samples: Sequence[Sample], cores: int) -> Model:
    """Prices from exchanges alone; the overlap, two numbers, from whole steps. Raises `FitError`."""
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

    solution = least_squares(
        residuals, START, bounds=(LOW, HIGH), loss="soft_l1", f_scale=TOLERANCE, diff_step=STEP
    )
    return _overlap(solution.x)


def _overlap(x: Any) -> Overlap:
    """The parameters by name."""
    return Overlap(float(x[0]), 1e-3 * float(x[1]))


def prices_table(model: Model) -> pd.DataFrame:
    """Table `costs-prices`: all fitted numbers."""
    backend, overlap = model.backend, model.overlap
    shared = [
        ("efficiency of the wire", backend.efficiency, "of its rate"),
        ("delays a round", backend.delayed, "one-way delays"),
        ("backward before the last rank's first bucket", overlap.late, "of it, times 1 - 1 / crowd"),
        ("wait of an all-gather for a shared processor", 1e3 * overlap.gather_s, "ms, a further rank on it"),
    ]
    each = [
        (f"{name}: {what}", value, unit)
        for name, price in backend.prices.items()
        for what, value, unit in (
            ("a call", 1e6 * price.start_s, "us"),
            ("a round", 1e6 * price.round_s, "us"),
            ("host work", 1e9 * price.host_s, "ns a byte sent"),
        )
    ]
    return pd.DataFrame([*shared, *each], columns=["what", "value", "unit"])


# ---- the model in a file

EXAMPLE_SHAPES: Final = ((12,), (16, 24), (24,), (24, 8))
EXAMPLE_RANKS: Final = 4
EXAMPLE_BUCKET: Final = 1024
"""A small model whose steps stand for those of large ones where it is asked whether the model reckons as before."""
EXAMPLE: Final = Model(
    Backend("made up", {what: Price(3e-4, 2e-4, 5e-9) for what in OF_PROBE}, 0.9, 1.5, 2),
    Overlap(0.4, 2e-3),
)


def model_of(known: Known) -> Model:
    """The model of all that is known: that of the file here or of the published one, whichever was made of the same.

    Args:
        known: What it shall be fitted to.

    Returns:
        The model, fitted anew where neither file has it; it is not written then.

    Raises:
        FitError: There is too little to fit it to.
    """
    with suppress(FitError):
        return scored_model(known)
    return fit_model(known.calibration, known.samples, known.cores)


def scored_model(known: Known) -> Model:
    """The model of all that is known, whose errors stand in the tables beside it.

    Args:
        known: What it was fitted to.

    Returns:
        The model of the file here or of the published one.

    Raises:
        FitError: Neither was made of the same, so that the errors in the tables are another model's.
    """
    wanted = made_of(known)
    for kept, hashed in _kept(known.tables_root):
        if hashed == wanted:
            return kept
    raise FitError("the model was scored on other measurements than these: run `bandwise costs score` before")


def kept_model(results_root: Path) -> tuple[Model, str]:
    """The model in the file here, else the published one, as it was kept, whether or not it would be fitted so today.

    Args:
        results_root: The results root.

    Returns:
        The model, and the hash of what it was made of.

    Raises:
        FitError: There is none.
    """
    for found in _kept(results_root):
        return found
    raise FitError("no model is kept: run `bandwise costs score`")


def _kept(results_root: Path) -> Iterator[tuple[Model, str]]:
    """Those of the files, the one here first, with the hashes of what they were made of."""
    for root in (results_root, published_root(results_root)):
        path = table_path(root, PRICES).with_name(NAME)
        text = read(path)
        kept = {} if text is None else parsed(text, path)
        with suppress(TypeError):  # of a version that had other parts: there is none then
            if kept:
                yield model_from(kept), str(kept["made_of"])


def write_model(
    results_root: Path, model: Model, known: Known, advice: Mapping[str, Any] | None = None
) -> Path:
    """Keep a model, with what advice needs beside it; returns its path."""
    path = table_path(results_root, PRICES).with_name(NAME)
    kept = {
        "made_of": made_of(known),
        "backend": {
            **asdict(model.backend),
            "prices": {name: asdict(price) for name, price in model.backend.prices.items()},
        },
        "overlap": asdict(model.overlap),
        "advice": advice or {},
    }
    write_atomic(path, dump(kept, indent=1) + "\n")
    return path


def made_of(known: Known) -> str:
    """SHA-256 of what decides a fitted model's numbers, whatever files the code stands in.

    That is what it is fitted to; the settings of both fits; for every case that was timed the recipe of a small model, which says
    what the method sends; and the seconds that those recipes take with made-up prices, to nine digits, which says how the model
    reckons.
    """
    samples = [
        (
            sample.session,
            sample.case.case_id,
            sample.setting.workload,
            sample.setting.link.label,
            _digits(sample.step_s),
            [_digits(part) for part in astuple(measured_local(sample, known.samples))],
        )
        for sample in known.samples
    ]
    cases = {sample.case.case_id: sample.case for sample in known.samples}
    steps = [(case_id, *_example(case)) for case_id, case in sorted(cases.items())]
    settings = [*FIT_SETTINGS, START, LOW, HIGH, HELD, STEP]
    parts = [to_csv(CALIBRATION, known.calibration), samples, known.cores, settings, steps]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _example(case: Case) -> tuple[str, list[str]]:
    """What a case sends of the small model, and its seconds over links that are slow, delayed and free."""
    recipe = case_recipe(case, EXAMPLE_SHAPES, EXAMPLE_RANKS, EXAMPLE_BUCKET)
    local = Local(2e-3, 3e-4, 2e-4, 1e-4)
    links = (Link(EXAMPLE_RANKS, 1e7), Link(EXAMPLE_RANKS, 1e8, delay_s=2e-3), Link(EXAMPLE_RANKS, math.inf))
    networks = [EXAMPLE.backend.on(link, own_machines=alone) for link in links for alone in (False, True)]
    return repr(recipe), [_digits(unit_seconds(recipe, local, at, EXAMPLE.overlap)) for at in networks]


def _digits(number: float) -> str:
    return format(number, ".9g")
