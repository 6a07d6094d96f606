"""What one run is: method, workload, world size, budget, seed, and nothing about where or when it happens.

The run id is the hash of the canonical JSON of all of it, defaults filled in, so that two runs with one id are one
run. Commit, host and environment are attributes of the result. `resolve` builds specs from names and fills in
defaults; this module knows neither methods nor workloads.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from types import MappingProxyType
from typing import Any, Final

from suite.runs.canonical import canonical_json, identity, plain

SPEC_VERSION: Final = 1
BACKENDS: Final = ("simulated", "gloo")


class SpecError(ValueError):
    """A spec is incomplete or holds an impossible value; the message names the field."""


@dataclass(frozen=True)
class Part:
    """A method or a workload: name, version (part of the id, moved when behaviour changes) and all its options."""

    name: str
    version: int
    options: Mapping[str, Any]

    def __post_init__(self) -> None:
        object.__setattr__(self, "options", MappingProxyType(plain(self.options, f"options of {self.name}")))

    def as_dict(self) -> dict[str, Any]:
        """Plain dict with name, version, options."""
        return {"name": self.name, "version": self.version, "options": dict(self.options)}


@dataclass(frozen=True)
class Rate:
    """Learning rate over a run: schedule name, peak and end value, warm-up in steps."""

    schedule: str
    peak: float
    min: float
    warmup: int

    def as_dict(self) -> dict[str, Any]:
        """Plain dict with schedule, peak, min, warmup."""
        return {"schedule": self.schedule, "peak": self.peak, "min": self.min, "warmup": self.warmup}


@dataclass(frozen=True, eq=False)
class RunSpec:
    """One run. `batch_size` is per worker, `bucket_bytes` the size of a gradient bucket. Equal iff the ids are."""

    algorithm: Part
    workload: Part
    sharding: str
    world_size: int
    backend: str
    steps: int
    batch_size: int
    lr: Rate
    bucket_bytes: int
    seed: int

    def __post_init__(self) -> None:
        for name in ("world_size", "steps", "batch_size", "bucket_bytes"):
            if getattr(self, name) < 1:
                raise SpecError(f"{name} is {getattr(self, name)}: it must be at least 1")
        if self.seed < 0:
            raise SpecError(f"seed is {self.seed}: it must not be negative")
        if self.backend not in BACKENDS:
            raise SpecError(f"unknown backend {self.backend!r}; known: {', '.join(BACKENDS)}")
        if not 0 <= self.lr.warmup <= self.steps:
            raise SpecError(f"lr.warmup is {self.lr.warmup}: must lie between 0 and the {self.steps} steps")

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
        known = {f.name for f in fields(cls)} | {"spec_version"}
        _expect_keys(data, known, "the spec")
        if data["spec_version"] != SPEC_VERSION:
            raise SpecError(f"spec_version is {data['spec_version']!r}: this version reads {SPEC_VERSION}")
        for name in ("world_size", "steps", "batch_size", "bucket_bytes", "seed"):
            if type(data[name]) is not int:
                raise SpecError(f"{name} is {data[name]!r}: it must be a whole number")
        _expect_keys(data["lr"], {"schedule", "peak", "min", "warmup"}, "lr")
        for name in ("algorithm", "workload"):
            _expect_keys(data[name], {"name", "version", "options"}, name)
        values = {field.name: data[field.name] for field in fields(cls)}
        for name in ("algorithm", "workload"):
            values[name] = Part(**data[name])
        return cls(**{**values, "lr": Rate(**data["lr"])})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RunSpec) and self.run_id == other.run_id

    def __hash__(self) -> int:
        return hash(self.run_id)


def _expect_keys(data: Any, known: set[str], what: str) -> None:
    if not isinstance(data, dict):
        raise SpecError(f"{what} is {data!r}: it must be a mapping")
    if missing := sorted(known - data.keys()):
        raise SpecError(f"{what} lacks {', '.join(missing)}")
    if unknown := sorted(data.keys() - known):
        raise SpecError(f"{what} has unknown fields: {', '.join(unknown)}")
