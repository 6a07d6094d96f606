"""Whole training steps of four simulated workers in one process: the method, the compressors and the driver together."""

from __future__ import annotations

import runpy
from pathlib import Path

import torch

from .cases import WORLD_SIZE, gradient, module, single_thread

__all__ = ["METHODS", "TimeStep", "TrackStep"]

_INDEX = Path(__file__).resolve().parents[2] / "reference_impls" / "core" / "catalogue.py"
# The index of the working tree, whichever commit's package is measured: the list of an old commit must be the list of today.
METHODS = tuple(name for name, entry in runpy.run_path(str(_INDEX))["BUILT_IN"].items() if entry.benchmarked)
SHAPES = ((512, 512), (512,), (512, 64), (64,))
OPTIONS = {
    "apmsqueeze": {"warmup_steps": 1},
    "one-bit-adam": {"warmup_steps": 1},
    "one-bit-lamb": {"warmup_steps": 1},
    "zero-one-adam": {"variance_steps": 1, "total_steps": 1000},
}
STEPS_TO_WARM_UP = 3


class _Stepping:
    params = (METHODS,)
    param_names = ("method",)
    version = "1"
    timeout = 120

    def setup(self, method: str) -> None:
        """A cluster past its first steps, so that methods with a warm-up are timed in their later phase."""
        single_thread()
        facade = module("reference_impls")
        if method not in facade.list_algorithms():
            raise NotImplementedError(f"no {method} at this commit")
        module("reference_impls.frontends.simulated")
        parameters = [gradient(torch.Size(shape).numel()).reshape(shape) for shape in SHAPES]
        self.cluster = facade.SimulatedCluster(
            method, params=parameters, world_size=WORLD_SIZE, lr=1e-3, seed=0, **OPTIONS.get(method, {})
        )
        self.grads = [[p * (1 + rank / 7) for p in parameters] for rank in range(WORLD_SIZE)]
        for _ in range(STEPS_TO_WARM_UP):
            self.cluster.step(self.grads)


class TimeStep(_Stepping):
    """Seconds for one step of all four workers, 0.30 M parameters each, without the forward and backward pass."""

    rounds = 1
    processes = 1
    repeat = (3, 10, 1.5)
    warmup_time = 0.1
    sample_time = 0.02

    def time_step(self, method: str) -> None:
        self.cluster.step(self.grads)


class TrackStep(_Stepping):
    """Bytes that rank 0 sends for one parameter in one step, on average over 8 steps after the first ones."""

    def track_wire_bytes_per_parameter(self, method: str) -> float:
        before = self.sent_bytes()
        for _ in range(8):
            self.cluster.step(self.grads)
        parameters = sum(int(p.numel()) for p in self.cluster.parameters(0))
        return (self.sent_bytes() - before) / 8 / parameters

    def sent_bytes(self) -> int:
        return sum(int(row["wire_bytes"]) for row in self.cluster.ledger.totals() if row["rank"] == 0)

    track_wire_bytes_per_parameter.unit = "bytes/parameter"
