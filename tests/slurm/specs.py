"""Runs of a hundredth of a second, for tests that are about carrying them out."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import replace
from typing import Any

import pytest

from bandwise.cli import main
from suite.runs.spec import Part, RunSpec
from tests.slurm.devcluster import Cluster
from tests.suite.runs.project import one_spec


def tiny(seed: int, algorithm: str = "allreduce-sgd", steps: int = 4) -> RunSpec:
    """A valid run on the quadratic workload with two workers."""
    return one_spec(algorithm, steps=steps, peak=0.01, seed=seed)


def broken(seed: int) -> RunSpec:
    """A run whose method refuses to start; it can share a group with the `tiny` ones."""
    spec = tiny(seed)
    options = {**spec.algorithm.options, "no_such_option": 1}
    return replace(spec, algorithm=Part(spec.algorithm.name, spec.algorithm.version, options))


@contextmanager
def found_by_clients(slurm: Cluster) -> Iterator[None]:
    """Slurm's clients of this process find the cluster; what is trained here is not compiled, with the same bits."""
    with pytest.MonkeyPatch.context() as patch:
        for key, value in {**slurm.env, "BANDWISE_COMPILE": "0"}.items():
            patch.setenv(key, value)
        yield


def answer(*arguments: str) -> dict[str, Any]:
    """What a verb answers as JSON."""
    out = io.StringIO()
    with redirect_stdout(out):
        assert main([*arguments, "--json"]) == 0, out.getvalue()
    return dict(json.loads(out.getvalue()))
