"""What sessions measured, as samples that the model can be held against: a case on a link, its step and its parts.

From the tables of sessions alone, so that a clone of the project has all of it; what a case's options are is
worked out anew from the session's file.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from statistics import median
from typing import Any, Final

import torch.distributed as dist

from suite.analysis.published import SESSION, find_table
from suite.analysis.session_tables import load_facts
from suite.analysis.speed_columns import CASES
from suite.analysis.tables import Row, number, read_table
from suite.costs.recipe import Bucket, Recipe, Request, Step, recipe_of
from suite.costs.timeline import Local
from suite.links.link import Link
from suite.timing.case import Case
from suite.timing.cases import cases_of, method_of
from suite.timing.session_files import load_session
from suite.timing.spec import DEFAULT_BUCKET_MB
from suite.workloads import get

MEASURED: Final = "done"
DDP_BYTES: Final = {"fp32": (4, "float32"), "bf16": (2, "bfloat16"), "fp16": (2, "float16")}
FIRST_BUCKET: Final = 1 << 20
"""DDP's first bucket, so that communication begins early."""


@dataclass(frozen=True)
class Setting:
    """Where a sample was taken: workload and its parameters, workers, the link."""

    workload: str
    parameters: int
    world_size: int
    bucket_bytes: int
    link: Link


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
    spec = load_session(session)
    known = cases_of(spec).by_id
    links = {found["label"]: found for found in facts["links"] if found["status"] == MEASURED}
    found = []
    for row in read_table(find_table(results_root, CASES, f"{SESSION}{session}"), CASES):
        case = known.get(str(row["case_id"]))
        if case is None or row["link"] not in links or row["step_s"] is None or row["null_s"] is None:
            continue
        if case.role == "ddp" and case.algorithm not in DDP_BYTES:
            continue
        setting = Setting(
            workload_name(facts["workload"]),
            int(facts["parameters"]),
            int(facts["world_size"]),
            int(facts["bucket_bytes"]),
            link_of(links[row["link"]]["link"]),
        )
        numbers = {name: number(row, name) for name in ("step_s", "step_low", "step_high", "null_s")}
        found.append(
            Sample(
                session,
                setting,
                case,
                numbers["step_s"],
                numbers["step_low"],
                numbers["step_high"],
                numbers["null_s"],
                _local(row),
            )
        )
    return found


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


def _local(row: Row) -> Local | None:
    """The serial phases, made to add up to the step without messages."""
    if not row["n_phases"] or row["null_s"] is None:
        return None
    part = {
        name: number(row, f"{name}_s") if row[f"{name}_s"] is not None else 0.0
        for name in ("forward_backward", "encode", "decode", "update", "other")
    }
    whole = sum(part.values())
    local = Local(part["forward_backward"], part["encode"], part["decode"], part["update"] + part["other"])
    return local.scaled(number(row, "null_s") / whole) if whole > 0 else None


def middle(alike: Sequence[Sample]) -> Local | None:
    """The medians of the parts, scaled to the median of the whole; None without samples."""
    parts = [sample.local for sample in alike if sample.local is not None]
    if not alike:
        return None
    whole = median(sample.null_s for sample in alike)
    if not parts:
        return Local(whole)
    found = Local(
        *(
            median(getattr(local, name) for local in parts)
            for name in ("compute_s", "encode_s", "decode_s", "update_s")
        )
    )
    return found.scaled(whole / found.total_s)


def recipe_for(case: Case, workload: str, n: int, bucket_bytes: int) -> Recipe:
    """What a unit of a case sends. Raises `RecipeError`."""
    shapes = shapes_of(workload)
    if case.role == "ddp":
        return ddp_recipe(
            case.algorithm, int(case.options.get("bucket_cap_mb", DEFAULT_BUCKET_MB)), shapes, n
        )
    return own_recipe(case, shapes, n, bucket_bytes)


_KEPT: dict[tuple[Any, ...], Recipe] = {}


def own_recipe(
    case: Case, shapes: tuple[tuple[int, ...], ...], n: int, bucket_bytes: int, node_size: int = 1
) -> Recipe:
    """What a unit of a method's steps asks for, asked once. Raises `RecipeError`."""
    key = (case.case_id, shapes, n, bucket_bytes, node_size)
    if key not in _KEPT:
        _KEPT[key] = recipe_of(
            method_of(case), shapes, n, kind=case.kind, bucket_bytes=bucket_bytes, node_size=node_size
        )
    return _KEPT[key]


@lru_cache(maxsize=16)
def shapes_of(workload: str) -> tuple[tuple[int, ...], ...]:
    """Shapes of a workload's parameters, in order; the workload as `Setting` writes it."""
    name, _, options = workload.removesuffix("]").partition("[")
    pairs = dict(pair.split("=", 1) for pair in options.split(",")) if options else {}
    model = get(name, **pairs).build()
    return tuple(tuple(p.shape) for p in model.parameters() if p.requires_grad)


def parameters_of(workload: str) -> int:
    """Elements of a workload's parameters."""
    return sum(math.prod(shape) for shape in shapes_of(workload))


def ddp_recipe(precision: str, cap_mb: int, shapes: Sequence[Sequence[int]], n: int) -> Recipe:
    """DDP's buckets: the last parameters first, a small first bucket, then its cap."""
    import torch

    width, dtype = DDP_BYTES[precision]
    cap = cap_mb << 20
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
