"""The cost model of a machine and a backend: a step played through, its fit to sessions, and the fitted model in a file.

The step is played as the engine carries it out (`reference_impls.drivers.engine`). Forward; backward, during which
buckets become ready, last layers first; a ready bucket is encoded and its first collective launched, and earlier buckets
that have another one to launch are moved on, waiting for the one under way; after backward all are brought to their end in
rounds and decoded; update; what follows the update, one after another. Collectives share the link in the order of their
launches; the latency of one passes while another is on the wire.

That is the step of a rank with a processor for its messages. Where ranks share processors the kernel's and the backend's work,
for every byte and every message, takes time from computing: no step is shorter than all the work in it.

Prices are fitted to exchanges alone (`suite.costs.prices`), the overlap to whole steps. Who asks for advice does not wait for
that: `tables/costs-model.json` keeps the model with the hash of what decides its numbers, and where that has changed the model is
fitted anew.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
from scipy.optimize import least_squares

from reference_impls.collectives import AllGather, AllReduce, AllToAll, SendRecv
from reference_impls.drivers.requests import Bucket, Request, Step
from suite.analysis.published import published_root
from suite.analysis.tables import table_path, to_csv
from suite.costs.columns import CALIBRATION, PRICES
from suite.costs.prices import (
    FIT_SETTINGS,
    NODE,
    OF_PROBE,
    TOLERANCE,
    Backend,
    FitError,
    Network,
    Price,
    fit_backend,
)
from suite.costs.recipe import Recipe
from suite.costs.samples import Known, Local, Sample, Setting, case_recipe, measured_local, recipe_for
from suite.links.link import Link
from suite.runs.files import dump, parsed, read, write_atomic
from suite.timing.case import Case

FORWARD: Final = 1 / 3
"""Of forward and backward together; backward multiplies matrices twice as often."""


THREADS: Final = 2
"""Collectives that gloo carries out at a time; a further one begins when one of them has ended. Single messages wait for none."""


@dataclass(frozen=True)
class Overlap:
    """How computing and sending overlap; fitted to sessions (`fit_overlap`).

    late: where ranks share processors they do not keep step, and a collective waits for the last: this share of backward, times
    1 - 1 / crowd, is over before the last rank's first gradient is complete. sharpness: p of the norm of what a rank takes and of
    all the work there is: a step near both is a little longer than either. stall_s: collective -> what it waits for processors
    that compute meanwhile, for every rank beyond the first that shares one.
    """

    late: float = 0.0
    sharpness: float = 8.0
    stall_s: Mapping[str, float] = field(default_factory=dict)


def unit_seconds(recipe: Recipe, local: Local, network: Network, overlap: Overlap) -> float:
    """Seconds of a unit of steps (`Recipe`); a step that comes several times is played once."""
    steps = {id(step): step for step in recipe.steps}
    seconds = {key: step_seconds(step, local, network, overlap) for key, step in steps.items()}
    return sum(seconds[id(step)] for step in recipe.steps)


def step_seconds(step: Step, local: Local, network: Network, overlap: Overlap) -> float:
    """Seconds of a step."""
    played = _Play(network, local, overlap).play(step)
    if network.crowd <= 1:
        return played
    worked = local.total_s + sum(network.of(request).worked_s for request in step.requests())
    return mixed(played, worked, overlap.sharpness)


def mixed(x: float, y: float, p: float) -> float:
    """The p-norm of two numbers that are not negative: between their sum (p = 1) and the larger one."""
    largest = max(x, y)
    return largest * ((x / largest) ** p + (y / largest) ** p) ** (1 / p) if largest > 0 else 0.0


@dataclass
class _InFlight:
    """A bucket on its way: when its collective under way has arrived, and those that have not been launched."""

    bucket: Bucket
    arrives: float
    left: list[Request]
    done: bool = False


class _Play:
    """One step; `now` is the time of the rank's own thread, `free` when a link, the one between nodes or the one within,
    has carried what it was given, `threads` when each of the backend's threads has brought its last collective to its end."""

    def __init__(self, network: Network, local: Local, overlap: Overlap) -> None:
        self.network = network
        self.local = local
        self.overlap = overlap
        self.now = 0.0
        self.free = {"": 0.0, NODE: 0.0}
        self.threads = [0.0] * THREADS

    def play(self, step: Step) -> float:
        """The whole step."""
        self.one_by_one(step.plan)
        late = self.overlap.late * (1 - 1 / self.network.crowd)
        before = FORWARD + (1 - FORWARD) * late
        self.now += before * self.local.compute_s
        backward = (1 - before) * self.local.compute_s
        flights: list[_InFlight] = []
        for bucket in step.buckets:
            self.now += backward * bucket.share
            for flight in flights:
                if flight.left:
                    self.move(flight)
            flights.append(self.begin(bucket))
        while any(not flight.done for flight in flights):
            for flight in flights:
                if not flight.done:
                    self.move(flight)
        self.now += self.local.update_s
        self.one_by_one(step.after)
        return self.now

    def begin(self, bucket: Bucket) -> _InFlight:
        """Encode a bucket and launch its first collective."""
        self.now += self.local.encode_s * bucket.share
        first, left = bucket.requests[:1], list(bucket.requests[1:])
        if not first:
            self.now += self.local.decode_s * bucket.share
            return _InFlight(bucket, self.now, [], True)
        return _InFlight(bucket, self.launch(first[0]), left)

    def move(self, flight: _InFlight) -> None:
        """Wait for what is under way; launch what comes next, or decode."""
        self.now = max(self.now, flight.arrives)
        if flight.left:
            flight.arrives = self.launch(flight.left.pop(0))
        else:
            self.now += self.local.decode_s * flight.bucket.share
            flight.done = True

    def launch(self, request: Request) -> float:
        """When it will have arrived."""
        parts = self.network.of(request)
        link = NODE if request.group == NODE and self.network.within is not None else ""
        stall = (self.network.crowd - 1) * self.overlap.stall_s.get(request.collective, 0.0)
        if request.collective == SendRecv.name:
            self.free[link] = max(self.now, self.free[link]) + parts.busy_s
            return self.free[link] + parts.latency_s + stall
        thread = min(range(len(self.threads)), key=self.threads.__getitem__)
        begins = max(self.now, self.threads[thread], self.free[link])
        self.free[link] = begins + parts.busy_s
        self.threads[thread] = self.free[link] + parts.latency_s + stall
        return self.threads[thread]

    def one_by_one(self, requests: Sequence[Request]) -> None:
        """Collectives that are waited for at once."""
        for request in requests:
            self.now = self.launch(request)


# ---- the model and its fit

STALLING: Final = (AllReduce.name, AllGather.name, AllToAll.name, SendRecv.name)
START: Final = (0.5, 6.0, *(0.5 for _ in STALLING))
"""Where the search begins: late, sharpness, stalls in milliseconds, so that all are numbers of about one."""
LOW: Final = (0.0, 1.0, *(0.0 for _ in STALLING))
HIGH: Final = (1.0, 20.0, *(50.0 for _ in STALLING))
HELD: Final = (0.1, 0.1, *(0.03 for _ in STALLING))
"""How hard each is held to where the search begins, so that what the steps of a fit say nothing of stays there."""
STEP: Final = 1e-3
"""Relative step of the numerical derivatives: seconds of a played step have kinks."""


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


def fit_model(calibration: pd.DataFrame, samples: Sequence[Sample], cores: int) -> Model:
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

    solution = least_squares(
        residuals, START, bounds=(LOW, HIGH), loss="soft_l1", f_scale=TOLERANCE, diff_step=STEP
    )
    return _overlap(solution.x)


def _overlap(x: Any) -> Overlap:
    """The parameters by name."""
    stalls = {name: 1e-3 * float(ms) for name, ms in zip(STALLING, x[2:], strict=True)}
    return Overlap(float(x[0]), float(x[1]), stalls)


def prices_table(model: Model) -> pd.DataFrame:
    """Table `costs-prices`: all fitted numbers."""
    backend, overlap = model.backend, model.overlap
    shared = [
        ("efficiency of the wire", backend.efficiency, "of its rate"),
        ("delays a round", backend.delayed, "one-way delays"),
        ("burst of a shaped wire", backend.burst, "bytes"),
        ("backward before the last rank's first bucket", overlap.late, "of it, times 1 - 1 / crowd"),
        ("norm of waiting and all work", overlap.sharpness, "p"),
    ]
    stalls = [
        (f"wait of {name} for a shared processor", 1e3 * stall, "ms, a further rank on it")
        for name, stall in overlap.stall_s.items()
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
    return pd.DataFrame([*shared, *stalls, *each], columns=["what", "value", "unit"])


# ---- the model in a file

NAME: Final = "costs-model.json"
EXAMPLE_SHAPES: Final = ((12,), (16, 24), (24,), (24, 8))
EXAMPLE_RANKS: Final = 4
EXAMPLE_BUCKET: Final = 1024
"""A small model whose steps stand for those of large ones where it is asked whether the model reckons as before."""
EXAMPLE: Final = Model(
    Backend("made up", {what: Price(3e-4, 2e-4, 5e-9) for what in OF_PROBE}, 0.9, 1.5, 64.0, 2),
    Overlap(0.4, 5.0, {name: 1e-3 * (i + 1) for i, name in enumerate(STALLING)}),
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
    wanted = made_of(known)
    for kept, hashed in _kept(known.tables_root):
        if hashed == wanted:
            return kept
    return fit_model(known.calibration, known.samples, known.cores)


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
        if kept:
            yield _read(kept), str(kept["made_of"])


def write_model(results_root: Path, model: Model, known: Known) -> Path:
    """Keep a model; returns its path."""
    path = table_path(results_root, PRICES).with_name(NAME)
    kept = {
        "made_of": made_of(known),
        "backend": {
            **asdict(model.backend),
            "prices": {name: asdict(price) for name, price in model.backend.prices.items()},
        },
        "overlap": asdict(model.overlap),
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
    settings = [*FIT_SETTINGS, STALLING, START, LOW, HIGH, HELD, STEP]
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


def _read(kept: Mapping[str, Any]) -> Model:
    backend = dict(kept["backend"])
    prices = {name: Price(**price) for name, price in backend.pop("prices").items()}
    return Model(Backend(prices=prices, **backend), Overlap(**kept["overlap"]))
