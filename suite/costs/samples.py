"""What sessions measured, as samples that the model is fitted to and held against: a case on a link, its step and its parts.

From the tables of sessions alone, so that a clone of the project has all of it; what a case's options are is worked out anew
from the session's file. `known` gathers all that the model may be fitted to on a machine.

A step's local seconds are those that it takes when nothing is sent, from wherever the case was measured. The nearest source
counts: the same case with the same model and workers; else another number of workers, times the ratio of how many ranks share a
core; else another model, where DDP's seconds there are what the model computes and the case adds its codec overhead, measured
elsewhere: a fixed part, which is calls and Python, and so much a parameter.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np
import pandas as pd
import torch.distributed as dist
from scipy.optimize import nnls

from reference_impls.requests import Bucket, Request, Step
from suite.analysis.published import SESSION, find_table, load_facts, source
from suite.analysis.speed_columns import CASES
from suite.analysis.tables import read_frame, table_path
from suite.costs.columns import CALIBRATION
from suite.costs.facts import read_facts
from suite.costs.recipe import recipe_of
from suite.costs.step import CODEC, DDP_BYTES, CodecOverhead, Local, Model, Recipe, unit_seconds
from suite.links.link import REAL, Link
from suite.runs.provenance import same_machine
from suite.timing.case import Case
from suite.timing.cases import cases_of, method_of
from suite.timing.spec import DEFAULT_BUCKET_MB, load_session, session_names
from suite.workloads import get
from suite.workloads import options as known_options

MEASURED: Final = "done"
FIRST_BUCKET: Final = 1 << 20
"""DDP's first bucket, so that communication begins early."""


@dataclass(frozen=True)
class Setting:
    """Where a sample was taken: workload and its parameters, workers, examples of each in a step, the link."""

    workload: str
    parameters: int
    world_size: int
    batch_size: int
    bucket_bytes: int
    link: Link

    def same_work(self, other: Setting) -> bool:
        """Whether the other one differs in its link and its buckets at most."""
        return self.world_size == other.world_size and self.same_computing(other)

    def same_computing(self, other: Setting) -> bool:
        """Whether a worker computes the same."""
        return (self.workload, self.batch_size) == (other.workload, other.batch_size)


@dataclass(frozen=True)
class Sample:
    """A case timed over a link. step_s: median over rounds, with its interval. null_s: without messages, on this link.

    local: parts of null_s by the serial blocks; None where there were none.
    """

    session: str
    setting: Setting
    case: Case
    step_s: float
    low_s: float
    high_s: float
    null_s: float
    local: Local | None

    @property
    def name(self) -> str:
        """The method, as a column of the score counts it: all kinds of its steps, or DDP in a precision."""
        return f"DDP {self.case.algorithm}" if self.case.role == "ddp" else self.case.algorithm


def samples_of(results_root: Path, session: str) -> list[Sample]:
    """The samples of a session's tables: cases with an interval, over links that gave numbers. Raises `TableError`."""
    facts = load_facts(results_root, session)
    if facts is None:
        return []
    cases = {
        case_id: case
        for case_id, case in cases_of(load_session(session)).by_id.items()
        if case.role != "ddp" or case.algorithm in DDP_BYTES
    }
    settings = {
        link["label"]: Setting(
            workload_name(facts["workload"]),
            int(facts["parameters"]),
            int(facts["world_size"]),
            int(facts["batch_size"]),
            int(facts["bucket_bytes"]),
            link_of(link["link"]),
        )
        for link in facts["links"]
        if link["status"] == MEASURED and REAL not in link["link"]  # nobody says what rate it has
    }
    timed = read_frame(find_table(results_root, CASES, f"{SESSION}{session}"), CASES)
    timed = timed.dropna(subset=["step_s", "null_s"])
    timed = timed[timed["case_id"].isin(list(cases)) & timed["link"].isin(list(settings))]
    return [
        Sample(
            session,
            settings[row["link"]],
            cases[row["case_id"]],
            row["step_s"],
            row["step_low"],
            row["step_high"],
            row["null_s"],
            local,
        )
        for row, local in zip(timed.to_dict("records"), _serial_phases(timed), strict=True)
    ]


def workload_name(part: Mapping[str, Any]) -> str:
    """A workload with its options, as in tables."""
    options = ",".join(f"{key}={value}" for key, value in sorted(part["options"].items()))
    return f"{part['name']}[{options}]" if options else str(part["name"])


def link_of(data: Mapping[str, Any]) -> Link:
    """A link as facts hold it."""
    rate, down = data["rate_bps"], data["down_bps"]
    return Link(
        int(data["workers"]),
        float("inf") if rate is None else float(rate),
        down,
        float(data["delay_s"]),
        {int(rank): float(rate) for rank, rate in data["stragglers"].items()},
    )


def _serial_phases(timed: pd.DataFrame) -> Iterator[Local | None]:
    """The serial phases of each row, made to add up to its step without messages; None of one without phases."""
    names = [f"{name}_s" for name in ("forward_backward", "encode", "decode", "update", "other")]
    parts = timed[names].fillna(0.0).itertuples(index=False, name=None)
    for (compute, encode, decode, update, other), n, null_s in zip(
        parts, timed["n_phases"].fillna(0), timed["null_s"], strict=True
    ):
        whole = compute + encode + decode + update + other
        local = Local(compute, encode, decode, update + other)
        yield local.scaled(null_s / whole) if n and whole > 0 else None


def median_local(samples: Sequence[Sample]) -> Local | None:
    """The medians of the parts, scaled to the median of the whole; None without samples."""
    if not samples:
        return None
    whole = median(sample.null_s for sample in samples)
    parts = [
        (local.compute_s, local.encode_s, local.decode_s, local.update_s)
        for sample in samples
        if (local := sample.local) is not None
    ]
    if not parts:
        return Local(whole)
    local = Local(*(median(values) for values in zip(*parts, strict=True)))
    return local.scaled(whole / local.total_s)


def recipe_for(case: Case, workload: str, n: int, bucket_bytes: int) -> Recipe:
    """What a unit of a case sends, of a workload's parameters. Raises `RecipeError`."""
    return case_recipe(case, shapes_of(workload), n, bucket_bytes)


def case_seconds(model: Model, case: Case, setting: Setting, local: Local) -> float:
    """Seconds a step of a case. Raises `RecipeError` where it cannot be asked what it sends."""
    recipe = recipe_for(case, setting.workload, setting.world_size, setting.bucket_bytes)
    network = model.backend.on(setting.link)
    return unit_seconds(recipe, local, network, model.overlap) / case.unit_steps


def case_recipe(case: Case, shapes: tuple[tuple[int, ...], ...], n: int, bucket_bytes: int) -> Recipe:
    """What a unit of a case sends: of a method, or of torch's DDP, whose buckets are its own. Raises `RecipeError`."""
    if case.role == "ddp":
        return ddp_recipe(case.algorithm, case.options.get("bucket_cap_mb", DEFAULT_BUCKET_MB), shapes, n)
    return method_recipe(case, shapes, n, bucket_bytes)


_KEPT: dict[tuple[Any, ...], Recipe] = {}


def method_recipe(case: Case, shapes: tuple[tuple[int, ...], ...], n: int, bucket_bytes: int) -> Recipe:
    """What a unit of a method's steps asks for, asked once. Raises `RecipeError`."""
    key = (case.case_id, shapes, n, bucket_bytes)
    if key not in _KEPT:
        _KEPT[key] = recipe_of(method_of(case), shapes, n, kind=case.kind, bucket_bytes=bucket_bytes)
    return _KEPT[key]


@lru_cache(maxsize=16)
def shapes_of(workload: str) -> tuple[tuple[int, ...], ...]:
    """Shapes of a workload's parameters, in order; the workload as `Setting` writes it."""
    name, _, options = workload.removesuffix("]").partition("[")
    pairs = dict(pair.split("=", 1) for pair in options.split(",")) if options else {}
    types = {key: option.type for key, option in known_options(name).items()}
    model = get(name, **{key: _typed(text, types.get(key, str)) for key, text in pairs.items()}).build()
    return tuple(tuple(p.shape) for p in model.parameters() if p.requires_grad)


def _typed(text: str, wanted: type) -> Any:
    return text == "True" if wanted is bool else wanted(text)


def parameters_of(workload: str) -> int:
    """Elements of a workload's parameters."""
    return sum(math.prod(shape) for shape in shapes_of(workload))


def ddp_recipe(precision: str, cap_mb: float, shapes: Sequence[Sequence[int]], n: int) -> Recipe:
    """DDP's buckets: the last parameters first, a small first bucket, then its cap."""
    import torch

    width, dtype = DDP_BYTES[precision]
    cap = int(cap_mb * 2**20)
    tensors = [torch.empty(tuple(shape), device="meta") for shape in reversed(shapes)]
    cut, _ = dist._compute_bucket_assignment_by_size(  # type: ignore[attr-defined]
        tensors, [min(FIRST_BUCKET, cap), cap]
    )
    total = sum(t.numel() for t in tensors)
    sizes = [sum(tensors[i].numel() for i in members) for members in cut]
    buckets = tuple(
        Bucket(size / total, (Request("all-reduce", "gradient", n, width * size, dtype),)) for size in sizes
    )
    return Recipe((Step("step", (), buckets, ()),))


# ---- codec overhead

DDP: Final = "DDP fp32"
LEAST_S: Final = 1e-7
"""Seconds that are taken for none when relative errors are weighed."""


def crowd(n: int, cores: int) -> float:
    """Ranks that share a core, at least 1."""
    return max(1.0, n / cores)


def overhead_of(measured: Mapping[int, Local]) -> CodecOverhead:
    """From what a case adds to models of some sizes. From one size all of it counts a parameter; from more, neither part is
    negative."""
    sizes = np.array(list(measured), dtype=float)
    fixed, each = [], []
    for name in CODEC:
        seconds = np.array([getattr(local, name) for local in measured.values()])
        if len(sizes) == 1:
            first, second = 0.0, seconds[0] / sizes[0]
        else:
            weights = 1 / np.maximum(seconds, LEAST_S)
            (first, second), _ = nnls(np.stack([weights, weights * sizes], axis=1), weights * seconds)
        fixed.append(float(first))
        each.append(float(second))
    return CodecOverhead(Local(0.0, *fixed), Local(0.0, *each), max(measured))


def codec_overhead(timed: Sequence[Sample], samples: Sequence[Sample], cores: int) -> CodecOverhead | None:
    """Medians over the samples of a case, `timed`, model by model, each beside DDP's among `samples` with the same model and
    workers; None where none has phases and a DDP beside it."""
    by_size: dict[int, list[list[float]]] = {}
    for sample in timed:
        setting = sample.setting
        base = median_local([ddp for ddp in samples if ddp.name == DDP and ddp.setting.same_work(setting)])
        if base is None or sample.local is None:
            continue
        share = crowd(setting.world_size, cores)
        parts = [max(0.0, getattr(sample.local, name) - getattr(base, name)) / share for name in CODEC]
        by_size.setdefault(setting.parameters, []).append(parts)
    measured = {
        size: Local(0.0, *(median(values) for values in zip(*parts, strict=True)))
        for size, parts in sorted(by_size.items())
    }
    return overhead_of(measured) if measured else None


# ---- local seconds from the nearest source


def known_local(case: Case, setting: Setting, samples: Sequence[Sample], cores: int) -> Local | None:
    """From the nearest source there is among the samples; None where there is none."""
    return (
        same_place(case, setting, samples)
        or other_size(case, setting, samples, cores)
        or other_model(case, setting, samples, samples, cores)
    )


def same_place(case: Case, setting: Setting, samples: Sequence[Sample]) -> Local | None:
    """The same model and workers, over any other link."""
    return median_local(
        [
            other
            for other in samples
            if other.case.case_id == case.case_id
            and other.setting.same_work(setting)
            and other.setting.link != setting.link
        ]
    )


def measured_local(sample: Sample, samples: Sequence[Sample]) -> Local:
    """Of a sample's own case: over the other links of its session; of a session with one link its own blocks without messages,
    which say nothing of the link either.
    """
    same_day = [
        other
        for other in samples
        if other is not sample
        and other.session == sample.session
        and other.case.case_id == sample.case.case_id
        and other.setting.same_work(sample.setting)
    ]
    return median_local(same_day) or median_local([sample]) or Local(sample.null_s)


def other_size(case: Case, setting: Setting, samples: Sequence[Sample], cores: int) -> Local | None:
    """The same model with the nearest other number of workers."""
    others = [
        other for other in samples
        if other.case.case_id == case.case_id and other.setting.same_computing(setting)
        and other.setting.world_size != setting.world_size
    ]  # fmt: skip
    if not others:
        return None
    nearest = min(
        {other.setting.world_size for other in others}, key=lambda m: abs(math.log(m / setting.world_size))
    )
    local = median_local([other for other in others if other.setting.world_size == nearest])
    return local and local.scaled(crowd(setting.world_size, cores) / crowd(nearest, cores))


def other_model(
    case: Case, setting: Setting, here: Sequence[Sample], elsewhere: Sequence[Sample], cores: int
) -> Local | None:
    """Other models. here: samples among which DDP's are that tell what this model computes; elsewhere: all others,
    with the same number of workers (`codec_overhead`)."""
    computing = median_local([
        ddp for ddp in here
        if ddp.name == DDP and ddp.setting.same_work(setting) and ddp.setting.link != setting.link
    ])  # fmt: skip
    if computing is None:
        return None
    if case.role == "ddp":
        return computing
    timed = [
        other for other in elsewhere
        if other.case.case_id == case.case_id and other.setting.world_size == setting.world_size
        and other.setting.workload != setting.workload
    ]  # fmt: skip
    overhead = codec_overhead(timed, elsewhere, cores)
    if overhead is None:
        return None
    codec = overhead.at(setting.parameters).scaled(crowd(setting.world_size, cores))
    return Local(
        computing.compute_s,
        computing.encode_s + codec.encode_s,
        computing.decode_s + codec.decode_s,
        computing.update_s + codec.update_s,
    )


# ---- all that is known on a machine


class UnknownCostsError(ValueError):
    """Nothing is known from which to predict; the message says what to measure."""


@dataclass(frozen=True)
class Known:
    """results_root: where sessions are read: a results folder, or what is published there.

    calibration: table `collectives`. facts: of its machine. samples: of all sessions of its kind."""

    results_root: Path
    calibration: pd.DataFrame
    facts: dict[str, Any]
    samples: Sequence[Sample]
    left_aside: Sequence[str]
    """Sessions of other machines."""
    derived: Path | None = None
    """The results folder that what is made of it is written to; None: `results_root`."""

    @property
    def tables_root(self) -> Path:
        """Where the tables of the model itself are read."""
        return self.derived or self.results_root

    @property
    def cores(self) -> int:
        """Processors that emulated workers share."""
        return int(self.facts["provenance"]["cores"])


def known(results_root: Path) -> Known:
    """From the tables in a results folder.

    Seconds of two kinds of machine are never mixed: sessions count whose processor, cores and torch are those of the
    calibration's facts. Nor are published data and those made here: with the published calibration go published sessions alone,
    with one made here (`bandwise costs probe`) the sessions as any reader finds them, so that the published model is of
    published data.

    Raises:
        UnknownCostsError: There is no calibration.
    """
    root = source(results_root, CALIBRATION.suffix).root
    path = table_path(root, CALIBRATION)
    facts = read_facts(root, CALIBRATION)
    if facts is None:
        raise UnknownCostsError(
            f"{path} is missing: measure what collectives cost here with `bandwise costs probe`"
        )
    samples: list[Sample] = []
    aside = []
    for name in session_names():
        session = load_facts(root, name)
        if session is None or session["status"] != "done" or session.get("lender"):
            continue  # what a session has borrowed counts once, as the lender's
        if same_machine(session["provenance"], facts["provenance"]):
            samples += samples_of(root, name)
        else:
            aside.append(name)
    return Known(root, read_frame(path, CALIBRATION), facts, samples, aside, results_root)
