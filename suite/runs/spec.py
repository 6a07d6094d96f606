"""What one run is: method, workload, world size, budget, seed, and nothing about where or when it happens.

The run id is the hash of the canonical JSON of all of it, defaults filled in, so that two runs with one id are one
run. Commit, host and environment are attributes of the result.

*Resolving* makes a whole spec of names and a few options: it looks methods and workloads up, checks values, fills in
defaults. Everything that can be wrong with a run is found here, before anything runs: unknown names and options (with the
nearest match), values of a wrong type, a world size or bit width that a method cannot serve. What a spec stands for (task,
learning rate, hash of the method's source) is worked out at the end of this module; only there and where a name is new is
torch imported.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import sys
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import ConfigDict, Field, Strict, ValidationError, WrapValidator, model_validator
from pydantic.dataclasses import dataclass

from reference_impls import create, info
from reference_impls.core.catalogue import BUILT_IN, FORMERLY_FIXED
from reference_impls.core.errors import UnknownOptionError, nearest
from reference_impls.core.registry import former, registry
from reference_impls.core.schedules import LearningRate
from suite.runs.documents import checked, clause_of
from suite.runs.files import canonical_json, disk_cached, identity, plain

if TYPE_CHECKING:
    from suite.workloads import Task

SPEC_VERSION: Final = 1
Backend = Literal["simulated", "gloo"]
Text = Annotated[str, Strict()]
Whole = Annotated[int, Strict()]
AS_GIVEN: Final = WrapValidator(lambda value, check: (check(value), value)[1])
"""Checked and left as it was given: 1 and 1.0 are two texts, and the id is of the text."""
Number = Annotated[float, Strict(), AS_GIVEN]
_CONFIG: Final = ConfigDict(extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)


class SpecError(ValueError):
    """A spec is incomplete or holds an impossible value; the message names the field."""


@dataclass(frozen=True, config=_CONFIG)
class Part:
    """A method or a workload."""

    name: Text
    """Registry name."""
    version: Annotated[Whole, Field(ge=0)]
    """Moved whenever its numbers may; part of the run's identity."""
    options: Mapping[str, Any]
    """All its options, defaults filled in."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "options", MappingProxyType(plain(self.options, f"options of {self.name}")))

    def as_dict(self) -> dict[str, Any]:
        """Plain dict with name, version, options."""
        return {"name": self.name, "version": self.version, "options": dict(self.options)}


@dataclass(frozen=True, config=_CONFIG)
class Rate:
    """Learning rate over a run."""

    schedule: Text
    """Name of the schedule."""
    peak: Number
    """Highest learning rate."""
    min: Number
    """Learning rate at the end."""
    warmup: Annotated[Whole, Field(ge=0)]
    """Steps of linear warm-up."""

    def as_dict(self) -> dict[str, Any]:
        """Plain dict with schedule, peak, min, warmup."""
        return {"schedule": self.schedule, "peak": self.peak, "min": self.min, "warmup": self.warmup}


@dataclass(frozen=True, eq=False, config=_CONFIG)
class RunSpec:
    """One run. Equal iff the ids are."""

    algorithm: Part
    """The method."""
    workload: Part
    """What is trained."""
    sharding: Text
    """How the data is spread over workers: iid, by-class or by-package."""
    world_size: Annotated[Whole, Field(ge=1)]
    """Workers."""
    backend: Backend
    """simulated, or a process group's."""
    steps: Annotated[Whole, Field(ge=1)]
    """Optimizer steps planned."""
    batch_size: Annotated[Whole, Field(ge=1)]
    """Examples a worker and step."""
    lr: Rate
    """Learning rate over the run."""
    bucket_bytes: Annotated[Whole, Field(ge=1)]
    """Bytes of a gradient bucket."""
    seed: Annotated[Whole, Field(ge=0)]
    """Draws split, initial model and batches."""
    spec_version: Literal[1] = SPEC_VERSION
    """Version of this mapping, 1."""

    @model_validator(mode="before")
    @classmethod
    def _says_its_version(cls, given: Any) -> Any:
        if isinstance(given, dict) and "spec_version" not in given:
            raise ValueError("spec_version is missing")
        return given

    def __post_init__(self) -> None:
        if self.lr.warmup > self.steps:
            raise ValueError(f"lr.warmup is {self.lr.warmup}: must lie between 0 and the {self.steps} steps")

    def as_dict(self) -> dict[str, Any]:
        """The whole spec as a plain dict, `spec_version` included."""
        return {
            "spec_version": SPEC_VERSION,
            "algorithm": self.algorithm.as_dict(),
            "workload": self.workload.as_dict(),
            "sharding": self.sharding,
            "world_size": self.world_size,
            "backend": self.backend,
            "steps": self.steps,
            "batch_size": self.batch_size,
            "lr": self.lr.as_dict(),
            "bucket_bytes": self.bucket_bytes,
            "seed": self.seed,
        }

    @cached_property
    def run_id(self) -> str:
        """16 hex digits: the identity of this run."""
        return identity(self.as_dict())

    def to_json(self) -> str:
        """The canonical JSON that the id is the hash of."""
        return canonical_json(self.as_dict())

    @classmethod
    def from_json(cls, text: str, source: str = "spec") -> RunSpec:
        """Read back what `to_json` wrote; `source` names the text in errors. Raises `SpecError`."""
        try:
            return cls.from_dict(json.loads(text))
        except json.JSONDecodeError as error:
            raise SpecError(
                f"{source} is not JSON (line {error.lineno}, column {error.colno}): {error.msg}"
            ) from None
        except SpecError as error:
            raise SpecError(f"{source}: {error}") from None

    @classmethod
    def from_dict(cls, data: Any) -> RunSpec:
        """Build from the plain dict. Raises `SpecError` for missing, unknown or wrongly typed fields."""
        try:
            found: RunSpec = checked(cls, data)
        except ValueError as error:
            raise SpecError(str(error)) from None
        return found

    @classmethod
    def of(cls, **fields: Any) -> RunSpec:
        """Build from the fields. Raises ValueError (`SpecError`) for an impossible value or learning-rate schedule."""
        try:
            spec = cls(**fields)
        except ValidationError as error:
            raise SpecError(clause_of(error, cls, fields)) from None
        learning_rate(spec)
        return spec

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RunSpec) and self.run_id == other.run_id

    def __hash__(self) -> int:
        return hash(self.run_id)


def warning_of(spec: RunSpec) -> str:
    """What somebody who asks for this run may not have meant; empty where there is nothing to say.

    Args:
        spec: The run.

    Returns:
        A clause without a full stop, or "".
    """
    options = spec.algorithm.options
    period = options.get("period")
    if not isinstance(period, int) or period <= spec.steps or spec.world_size == 1:
        return ""
    when = "once, after the last step" if options.get("total_steps") == spec.steps else "never"
    return (
        f"{spec.algorithm.name} has rounds of {period} steps (period) in a training of {spec.steps}: workers average "
        f"{when}; give a period below {spec.steps}"
    )


def resolve_algorithm(
    name: str, options: Mapping[str, Any], world_size: int, steps: int, lr_warmup: int = 0
) -> Part:
    """The method with all its options and those of its optimizer.

    A method that must know the course of the training is told: `total_steps` and `lr_warmup_steps` are those of the
    run unless given.

    Raises ValueError (unknown names, impossible values) with what to do.
    """

    def work_out() -> dict[str, Any]:
        return _resolve_algorithm(name, options, world_size, steps, lr_warmup).as_dict()

    if name not in BUILT_IN:
        return Part(**work_out())
    question = ["algorithm", name, dict(options), world_size, steps, lr_warmup]
    return Part(**disk_cached(question, work_out))


def source_hash(name: str) -> str:
    """The hash of a method's source, see `reference_impls.info`; of a plugin file with what it imports from beside it."""

    def work_out() -> str:
        return info(name).source_hash if name in BUILT_IN else _with_what_lies_beside(name)

    return str(disk_cached(["source", name], work_out)) if name in BUILT_IN else work_out()


def _with_what_lies_beside(name: str) -> str:
    """The hash of a method from outside; that of its file alone where the file imports nothing from its folder."""
    from suite.workloads.registry import imported_beside  # here, since it needs torch

    own = info(name).source_hash
    file = Path(str(sys.modules[registry.load(name).__module__].__file__)).resolve()
    beside = imported_beside(file) if file in registry.plugins else {}
    if not beside:
        return own
    digest = hashlib.sha256(own.encode())
    for key in sorted(beside):
        digest.update(f"{key}\0".encode() + beside[key].read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def _resolve_algorithm(
    name: str, options: Mapping[str, Any], world_size: int, steps: int, lr_warmup: int
) -> Part:
    from reference_impls.core.collectives import Group  # here, since it needs torch

    about = info(name)
    if "lr" in options:
        raise UnknownOptionError(
            f"{name}: lr is no option of the method; say it with the run's learning rate"
        )
    given = dict(options)
    for key, value in {"total_steps": steps, "lr_warmup_steps": lr_warmup}.items():
        if key in about.options:
            given.setdefault(key, value)
    method = create(name, **given)
    method.algorithm.check(Group("world", 0, world_size))
    fixed = registry.entry(name).preset
    own = {
        f.name: getattr(method.algorithm, f.name)
        for f in dataclasses.fields(method.algorithm)
        if f.name not in fixed
    }
    hyper = {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in method.hyperparameters.items()
    }
    unsaid = FORMERLY_FIXED.get(name, ())
    gone = {key: value for key, value in former(type(method.algorithm)).items() if key not in unsaid}
    return Part(name, about.version, {**gone, **own, **hyper})


def resolve_workload(
    name: str, options: Mapping[str, Any], sharding: str, *, without_data: bool = False
) -> Part:
    """The workload with all its options.

    Args:
        name: Registry name.
        options: Those that differ from the defaults.
        sharding: One of those that it has.
        without_data: Leave the digest of the user's files empty where they are not at hand. No run has such a spec.

    Returns:
        The workload; of one that reads files of the user's with their digest.

    Raises:
        ValueError: An unknown name or option, an impossible value, a sharding that it does not have.
        suite.workloads.DataError: Files of the user's are missing.
    """

    def work_out() -> dict[str, Any]:
        return _resolve_workload(name, options, sharding).as_dict()

    ours = is_ours(name)
    found = disk_cached(["workload", name, dict(options), sharding], work_out) if ours else work_out()
    if found["options"].get("data") == "":  # what an answer is kept under does not know the files
        from suite.workloads import DataError, get
        from suite.workloads.user_data import with_data

        try:
            found = {**found, "options": with_data(get(name, **found["options"]))}
        except DataError:
            if not without_data:
                raise
    return Part(**found)


def is_ours(workload: str) -> bool:
    """Whether a workload is one of the project, whose code is part of what answers are kept under."""

    def work_out() -> list[str]:
        from suite.workloads.registry import BUILT_IN as WORKLOADS  # here, since it needs torch

        return sorted(WORKLOADS)

    return workload in disk_cached(["workloads"], work_out)


def _resolve_workload(name: str, options: Mapping[str, Any], sharding: str) -> Part:
    from suite.workloads import get  # here, since it needs torch

    workload = get(name, **options)
    if sharding not in workload.shardings:
        raise SpecError(
            f"workload {name} has no sharding {sharding!r}{nearest(sharding, workload.shardings)}"
        )
    return Part(name, workload.version, workload.options)


JUDGED: Final = ("metric", "unit", "direction", "margin", "no_verdict")
"""What a workload says of how it is judged."""


def judgement(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """How a workload is judged.

    Args:
        name: Registry name.
        options: Those that differ from the defaults.

    Returns:
        By the names of `JUDGED`: its metric, the unit and direction of that, the largest difference that counts as equal, and why
        nothing is called equal on it, if so.

    Raises:
        ValueError: An unknown name or option, or an impossible value.
    """

    def work_out() -> dict[str, Any]:
        from suite.workloads import get  # here, since it needs torch

        workload = get(name, **options)
        return {key: getattr(workload, key) for key in JUDGED}

    return dict(disk_cached(["judged", name, dict(options)], work_out)) if is_ours(name) else work_out()


def task_of(spec: RunSpec) -> Task:
    """The task that a run trains on."""
    from suite.workloads import get  # here, since it needs torch

    workload = get(spec.workload.name, **spec.workload.options)
    return workload.task(spec.seed, spec.world_size, spec.sharding, spec.batch_size)


def learning_rate(spec: RunSpec) -> LearningRate:
    """The learning rate of a run as a function of the completed steps."""
    return LearningRate(
        schedule=spec.lr.schedule, peak=spec.lr.peak, min=spec.lr.min, warmup=spec.lr.warmup, total=spec.steps
    )


def sources(spec: RunSpec) -> dict[str, str]:
    """Hashes by which a result is found to be older than its code.

    Args:
        spec: Of the run.

    Returns:
        `algorithm`: of the method's source; `workload`: of the source of a workload from outside. Ours move by their versions.
    """
    found = {"algorithm": source_hash(spec.algorithm.name)}
    outside = workload_hash(spec.workload.name)
    return found if outside is None else {**found, "workload": outside}


def is_older(recorded: Mapping[str, Any], now: Mapping[str, str | None]) -> bool:
    """Whether a result is older than its code.

    Args:
        recorded: The `sources` of the result.
        now: Those of today; None for what is not known or not hashed.

    Returns:
        Whether a hash that both have is another one.
    """
    return any(
        None not in (recorded.get(part), source) and recorded[part] != source for part, source in now.items()
    )


def workload_hash(name: str) -> str | None:
    """The hash of the source of a workload from outside, see `suite.workloads.registry`; None for one of ours."""
    if is_ours(name):
        return None
    from suite.workloads.registry import source_hash  # here, since it needs torch

    return source_hash(name)


def source_of(spec: RunSpec) -> str:
    """The same in one word, by which a checkpoint is found to be of other code."""
    return "/".join(sources(spec).values())
