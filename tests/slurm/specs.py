"""Runs of a hundredth of a second, for tests that are about carrying them out."""

from __future__ import annotations

from dataclasses import replace

from suite.runs.spec import Part, RunSpec
from tests.suite.runs.project import one_spec


def tiny(seed: int, algorithm: str = "allreduce-sgd", steps: int = 4) -> RunSpec:
    """A valid run on the quadratic workload with two workers."""
    return one_spec(algorithm, steps=steps, peak=0.01, seed=seed)


def broken(seed: int) -> RunSpec:
    """A run whose method refuses to start; it can share a group with the `tiny` ones."""
    spec = tiny(seed)
    options = {**spec.algorithm.options, "no_such_option": 1}
    return replace(spec, algorithm=Part(spec.algorithm.name, spec.algorithm.version, options))
