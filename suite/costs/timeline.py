"""The seconds of a step: what a rank computes, what it sends, and how the two overlap.

The step is played through as the engine carries it out (`reference_impls.drivers.engine`). Forward; backward, during which
buckets become ready, last layers first; a ready bucket is encoded and its first collective launched, and earlier buckets
that have another one to launch are moved on, waiting for the one under way; after backward all are brought to their end in
rounds and decoded; update; what follows the update, one after another. Collectives share the link in the order of their
launches; the latency of one passes while another is on the wire.

That is the step of a rank with a processor for its messages. Where ranks share processors the kernel's and the backend's work,
for every byte and every message, takes time from computing: no step is shorter than all the work in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from reference_impls.collectives import SendRecv
from suite.costs.network import NODE, Network
from suite.costs.recipe import Bucket, Recipe, Request, Step

FORWARD: Final = 1 / 3
"""Of forward and backward together; backward multiplies matrices twice as often."""


THREADS: Final = 2
"""Collectives that gloo carries out at a time; a further one begins when one of them has ended. Single messages wait for none."""


@dataclass(frozen=True)
class Overlap:
    """How computing and sending overlap; fitted to sessions (`suite.costs.fit`).

    late: where ranks share processors they do not keep step, and a collective waits for the last: this share of backward, times
    1 - 1 / crowd, is over before the last rank's first gradient is complete. sharpness: p of the norm of what a rank takes and of
    all the work there is: a step near both is a little longer than either. stall_s: collective -> what it waits for processors
    that compute meanwhile, for every rank beyond the first that shares one.
    """

    late: float = 0.0
    sharpness: float = 8.0
    stall_s: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Local:
    """Seconds a step on one rank when nothing is sent. compute_s: forward and backward. update_s: and all that is left."""

    compute_s: float
    encode_s: float = 0.0
    decode_s: float = 0.0
    update_s: float = 0.0

    @property
    def total_s(self) -> float:
        """All of it."""
        return self.compute_s + self.encode_s + self.decode_s + self.update_s

    def scaled(self, factor: float) -> Local:
        """Every part times `factor`."""
        return Local(
            factor * self.compute_s, factor * self.encode_s, factor * self.decode_s, factor * self.update_s
        )


def unit_seconds(recipe: Recipe, local: Local, network: Network, overlap: Overlap) -> float:
    """Seconds of a unit of steps (`Recipe`)."""
    return sum(step_seconds(step, local, network, overlap) for step in recipe.steps)


def step_seconds(step: Step, local: Local, network: Network, overlap: Overlap) -> float:
    """Seconds of a step."""
    played = _Play(network, local, overlap).play(step)
    if network.crowd <= 1:
        return played
    worked = local.total_s + sum(network.of(request).worked_s for request in step.requests())
    return mixed(played, worked, overlap.sharpness)


def mixed(x: float, y: float, p: float) -> float:
    """The p-norm of two numbers that are not negative: between their sum (p = 1) and the larger one."""
    largest = max(x, y)
    return largest * ((x / largest) ** p + (y / largest) ** p) ** (1 / p) if largest > 0 else 0.0


@dataclass
class _Flight:
    """A bucket on its way: when its collective under way has arrived, and those that have not been launched."""

    bucket: Bucket
    arrives: float
    left: list[Request]
    done: bool = False


class _Play:
    """One step; `now` is the time of the rank's own thread, `free` when a link, the one between nodes or the one within,
    has carried what it was given, `threads` when each of the backend's threads has brought its last collective to its end."""

    def __init__(self, network: Network, local: Local, overlap: Overlap) -> None:
        self.network = network
        self.local = local
        self.overlap = overlap
        self.now = 0.0
        self.free = {"": 0.0, NODE: 0.0}
        self.threads = [0.0] * THREADS

    def play(self, step: Step) -> float:
        """The whole step."""
        self.one_by_one(step.plan)
        late = self.overlap.late * (1 - 1 / self.network.crowd)
        before = FORWARD + (1 - FORWARD) * late
        self.now += before * self.local.compute_s
        backward = (1 - before) * self.local.compute_s
        flights: list[_Flight] = []
        for bucket in step.buckets:
            self.now += backward * bucket.share
            for flight in flights:
                if flight.left:
                    self.move(flight)
            flights.append(self.begin(bucket))
        while any(not flight.done for flight in flights):
            for flight in flights:
                if not flight.done:
                    self.move(flight)
        self.now += self.local.update_s
        self.one_by_one(step.after)
        return self.now

    def begin(self, bucket: Bucket) -> _Flight:
        """Encode a bucket and launch its first collective."""
        self.now += self.local.encode_s * bucket.share
        first, left = bucket.requests[:1], list(bucket.requests[1:])
        if not first:
            self.now += self.local.decode_s * bucket.share
            return _Flight(bucket, self.now, [], True)
        return _Flight(bucket, self.launch(first[0]), left)

    def move(self, flight: _Flight) -> None:
        """Wait for what is under way; launch what comes next, or decode."""
        self.now = max(self.now, flight.arrives)
        if flight.left:
            flight.arrives = self.launch(flight.left.pop(0))
        else:
            self.now += self.local.decode_s * flight.bucket.share
            flight.done = True

    def launch(self, request: Request) -> float:
        """When it will have arrived."""
        parts = self.network.of(request)
        link = NODE if request.group == NODE and self.network.within is not None else ""
        stall = (self.network.crowd - 1) * self.overlap.stall_s.get(request.collective, 0.0)
        if request.collective == SendRecv.name:
            self.free[link] = max(self.now, self.free[link]) + parts.busy_s
            return self.free[link] + parts.latency_s + stall
        thread = min(range(len(self.threads)), key=self.threads.__getitem__)
        begins = max(self.now, self.threads[thread], self.free[link])
        self.free[link] = begins + parts.busy_s
        self.threads[thread] = self.free[link] + parts.latency_s + stall
        return self.threads[thread]

    def one_by_one(self, requests: Sequence[Request]) -> None:
        """Collectives that are waited for at once."""
        for request in requests:
            self.now = self.launch(request)
