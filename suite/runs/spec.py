"""What one run is: method, workload, world size, budget, seed, and nothing about where or when it happens.

The run id is the hash of the canonical JSON of all of it, defaults filled in, so that two runs with one id are one
run. Commit, host and environment are attributes of the result. `resolve` builds specs from names and fills in
defaults; this module knows neither methods nor workloads.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal

from pydantic import ConfigDict, Field, Strict, ValidationError, WrapValidator, model_validator
from pydantic.dataclasses import dataclass

from suite.runs.canonical import canonical_json, identity, plain
from suite.runs.documents import checked, clause_of

SPEC_VERSION: Final = 1
Backend = Literal["simulated", "gloo"]
BACKENDS: Final[tuple[Backend, ...]] = ("simulated", "gloo")
Text = Annotated[str, Strict()]
Whole = Annotated[int, Strict()]
AS_GIVEN: Final = WrapValidator(lambda value, check: (check(value), value)[1])
"""Checked and left as it was given: 1 and 1.0 are two texts, and the id is of the text."""
Number = Annotated[float, Strict(), AS_GIVEN]
_CONFIG: Final = ConfigDict(extra="forbid", allow_inf_nan=False)


class SpecError(ValueError):
    """A spec is incomplete or holds an impossible value; the message names the field."""


@dataclass(frozen=True, config=_CONFIG)
class Part:
    """A method or a workload."""

    name: Text = Field(description="Registry name.")
    version: Annotated[Whole, Field(ge=0)] = Field(
        description="Moved whenever its numbers may; part of the run's identity."
    )
    options: Mapping[str, Any] = Field(description="All its options, defaults filled in.")

    def __post_init__(self) -> None:
        object.__setattr__(self, "options", MappingProxyType(plain(self.options, f"options of {self.name}")))

    def as_dict(self) -> dict[str, Any]:
        """Plain dict with name, version, options."""
        return {"name": self.name, "version": self.version, "options": dict(self.options)}


@dataclass(frozen=True, config=_CONFIG)
class Rate:
    """Learning rate over a run."""

    schedule: Text = Field(description="Name of the schedule.")
    peak: Number = Field(description="Highest learning rate.")
    min: Number = Field(description="Learning rate at the end.")
    warmup: Annotated[Whole, Field(ge=0)] = Field(description="Steps of linear warm-up.")

    def as_dict(self) -> dict[str, Any]:
        """Plain dict with schedule, peak, min, warmup."""
        return {"schedule": self.schedule, "peak": self.peak, "min": self.min, "warmup": self.warmup}


def _all_required(schema: dict[str, Any]) -> None:
    schema["required"] = list(schema["properties"])


@dataclass(frozen=True, eq=False, config=ConfigDict(**_CONFIG, json_schema_extra=_all_required))
class RunSpec:
    """One run. Equal iff the ids are."""

    algorithm: Part = Field(description="The method.")
    workload: Part = Field(description="What is trained.")
    sharding: Text = Field(description="How the data is spread over workers: iid or by-class.")
    world_size: Annotated[Whole, Field(ge=1)] = Field(description="Workers.")
    backend: Backend = Field(description="simulated, or a process group's.")
    steps: Annotated[Whole, Field(ge=1)] = Field(description="Optimizer steps planned.")
    batch_size: Annotated[Whole, Field(ge=1)] = Field(description="Examples a worker and step.")
    lr: Rate = Field(description="Learning rate over the run.")
    bucket_bytes: Annotated[Whole, Field(ge=1)] = Field(description="Bytes of a gradient bucket.")
    seed: Annotated[Whole, Field(ge=0)] = Field(description="Draws split, initial model and batches.")
    spec_version: Literal[1] = Field(default=SPEC_VERSION, description="Version of this mapping, 1.")

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
        """Build from the fields. Raises `SpecError` for an impossible value."""
        try:
            return cls(**fields)
        except ValidationError as error:
            raise SpecError(clause_of(error, cls, fields)) from None

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
