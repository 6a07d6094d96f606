"""Runs of a hundredth of a second, for tests that are about carrying them out."""

from __future__ import annotations

from dataclasses import replace

from suite.runs.spec import Part, Rate, RunSpec, resolve_algorithm, resolve_workload


def tiny(seed: int, algorithm: str = "allreduce-sgd", steps: int = 4) -> RunSpec:
    """A valid run on the quadratic workload with two workers."""
    return RunSpec.of(
        algorithm=resolve_algorithm(algorithm, {}, 2, steps),
        workload=resolve_workload("quadratic", {}, "iid"),
        sharding="iid",
        world_size=2,
        steps=steps,
        batch_size=4,
        lr=Rate("constant", 0.01, 0.0, 0),
        seed=seed,
        backend="simulated",
        bucket_bytes=1 << 20,
    )


def broken(seed: int) -> RunSpec:
    """A run whose method refuses to start; it can share a group with the `tiny` ones."""
    spec = tiny(seed)
    options = {**spec.algorithm.options, "no_such_option": 1}
    return replace(spec, algorithm=Part(spec.algorithm.name, spec.algorithm.version, options))
