"""What the catalogue says of a method: where its class is, its family, its paper."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Family = Literal[
    "baseline",
    "sign",
    "quantiser",
    "sparsifier",
    "adam",
    "synchronisation",
    "variance-reduction",
    "control",
    "plugin",
]
ALGORITHMS = "reference_impls.algorithms"


@dataclass(frozen=True)
class Entry:
    """A registered algorithm. target: ``module:Class``. preset: options that the name implies. version: raised whenever
    results change."""

    target: str
    family: Family
    paper: str
    summary: str
    version: int = 1
    preset: Mapping[str, Any] = field(default_factory=dict)
