"""Every way of averaging, carried out once among four simulated workers: seconds, memory, bytes, error.

Each is a method that averages that way and little besides, on one vector. The yardstick `copy` is four memory copies.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from .cases import WORLD_SIZE, gradient, module, single_thread
from .memory import large_bytes, peak_bytes

__all__ = ["REDUCERS", "TimeExchange", "TrackExchange"]

SHAPE = (512, 512)
# Literals: way of averaging -> (method, options).
REDUCERS: dict[str, tuple[str, Mapping[str, Any]]] = {
    "all-reduce": ("allreduce-sgd", {}),
    "all-reduce-bf16": ("allreduce-bf16", {}),
    "gather-signs": ("ef-signsgd", {"granularity": "bucket"}),
    "gather-4bit": ("qsgd", {"bits": 4}),
    "two-phase-4bit": ("qsgd", {"bits": 4, "form": "two-phase"}),
    "majority": ("signsgd", {}),
    "compressed-all-reduce": ("one-bit-adam", {"warmup_steps": 1}),
    "integer-sum-8bit": ("global-qsgd", {"bits": 8}),
    "integer-sum-4bit": ("global-qsgd", {"bits": 4}),
    "integers-two-phase": ("terngrad", {}),
    "tree": ("global-qsgd", {"dithering": "exponential", "form": "tree"}),
    "halving-doubling": ("global-qsgd", {"dithering": "exponential", "form": "halving-doubling"}),
    "lookup-sum": ("thc", {}),
    "low-rank": ("powersgd", {}),
    "gather-sparse": ("top-k", {"ratio": 0.01}),
    "merge-sparse": ("gtop-k", {}),
    "sketch": ("sketched-sgd", {}),
    "chunked": ("sparseloco", {"period": 1}),
}
STARTS_IN_FULL = ("compressed-all-reduce",)


class _Exchange:
    params = (("copy", *REDUCERS),)
    param_names = ("reducer",)
    version = "1"
    timeout = 120

    def prepare(self, reducer: str) -> None:
        """The exchange, and what it averages: vectors that have half of their energy in common."""
        single_thread()
        numel = SHAPE[0] * SHAPE[1]
        x = gradient(numel)
        self.rows = torch.stack([x + x.roll(1000 * (rank + 1)) for rank in range(WORLD_SIZE)])
        self.ready = torch.zeros_like(self.rows)
        self.cluster: Any = None
        if reducer == "copy":
            return
        facade = module("reference_impls")
        name, options = REDUCERS[reducer]
        if name not in facade.list_algorithms():
            raise NotImplementedError(f"no {name} at this commit")
        module("reference_impls.simulated")
        self.cluster = facade.SimulatedCluster(
            name, params=[torch.zeros(SHAPE)], world_size=WORLD_SIZE, lr=1.0, seed=0, **options
        )
        self.grads = [[row.view(SHAPE)] for row in self.rows]

    def exchange(self) -> None:
        if self.cluster is None:
            self.ready.copy_(self.rows)
        else:
            self.cluster.step(self.grads)


class TimeExchange(_Exchange):
    """Seconds of a step of all four workers, 0.26 M elements each, in the method's later phase."""

    rounds = 1
    processes = 1
    repeat = (3, 10, 0.8)
    warmup_time = 0.1
    sample_time = 0.02

    def setup(self, reducer: str) -> None:
        self.prepare(reducer)
        for _ in range(3):
            self.exchange()

    def time_exchange(self, reducer: str) -> None:
        self.exchange()


class TrackExchange(_Exchange):
    """Lower is better. Bytes are an element's and of all four workers together, but for those that are sent."""

    def setup(self, reducer: str) -> None:
        self.prepare(reducer)
        self.before = self._sent()
        self.exchange()
        self.first = self._sent() - self.before

    def track_peak(self, reducer: str) -> float:
        """Most that is held at once beyond state, parameters and gradients, from an empty pool."""
        self._warm()
        module("reference_impls.compute").release()
        return peak_bytes(self.exchange) / self.rows.numel()

    def track_allocated(self, reducer: str) -> float:
        self._warm()
        return large_bytes(self.exchange) / self.rows.numel()

    def track_wire_bytes_per_element(self, reducer: str) -> float:
        """What rank 0 sends, on average over 8 exchanges after the first ones."""
        self._warm()
        before = self._sent()
        for _ in range(8):
            self.exchange()
        return (self._sent() - before) / 8 / self.rows.shape[1]

    def track_error(self, reducer: str) -> float:
        """||mean - what the method applies|| / ||mean||, the latter scaled as suits it best, in the first exchange."""
        if reducer in STARTS_IN_FULL:
            raise NotImplementedError(f"the first exchange of {reducer} is one in full precision")
        exact = self.rows.double().mean(0)
        if self.cluster is None:
            return 0.0
        applied = -self.cluster.parameters(0)[0].view(-1).double()
        length = float(applied.square().sum())
        fitted = applied * (float(applied @ exact) / length) if length else applied
        return float((exact - fitted).norm() / exact.norm())

    def _warm(self) -> None:
        for _ in range(3):
            self.exchange()

    def _sent(self) -> float:
        if self.cluster is None:
            return 0.0
        return float(sum(row["wire_bytes"] for row in self.cluster.ledger.totals() if row["rank"] == 0))

    track_peak.unit = "bytes/element"
    track_allocated.unit = "bytes/element"
    track_wire_bytes_per_element.unit = "bytes/element"
    track_error.unit = "1"
