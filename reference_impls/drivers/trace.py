"""Where the seconds of a step go: a clock with named laps.

With overlap a phase has no time of its own, since one bucket is encoded while another travels. So phases are measured
over a transport that waits for every collective at its launch (`Serial`). How much
communication a step really exposes is another question, answered by timing it with and without messages
(`reference_impls.drivers.null`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from reference_impls.collectives import Collective, Transport

PHASES: Mapping[str, str] = {
    "plan": "deciding what kind of step this is",
    "encode": "gathering the gradient, and what is computed before a collective of `reduce`, also between two of them "
    "(a server that decodes, adds and encodes anew, say)",
    "communication": "collectives, of whatever phase, from launch to answer",
    "decode": "what is computed after the last collective of `reduce`",
    "update": "clipping, update, the local optimizer, and what `synchronize` and background exchanges compute",
}
"""Name -> what is counted there. What is left of a step is forward and backward, and the few microseconds a parameter
in which the optimizer notices that a gradient is complete."""


class Trace:
    """Seconds of the host's clock a phase, of one rank. Exactly one phase runs at a time, or none.

    seconds: phase -> seconds so far. steps: steps completed so far. clock: answers seconds; for tests.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.seconds: dict[str, float] = dict.fromkeys(PHASES, 0.0)
        self.steps = 0
        self._clock = clock
        self._phase: str | None = None
        self._since = 0.0

    @property
    def total(self) -> float:
        """Seconds in all phases together."""
        return sum(self.seconds.values())

    def per_step(self) -> dict[str, float]:
        """Phase -> mean seconds a step; zeros before the first step is complete."""
        return {name: seconds / max(self.steps, 1) for name, seconds in self.seconds.items()}

    def clear(self) -> None:
        """Forget what was measured so far; between steps."""
        self.seconds.update(dict.fromkeys(PHASES, 0.0))
        self.steps = 0

    def enter(self, phase: str | None) -> str | None:
        """End the present phase and begin `phase` (None: what is not the optimizer's). Answers the one that ended."""
        now = self._clock()
        ended = self._phase
        if ended is not None:
            self.seconds[ended] += now - self._since
        self._phase, self._since = phase, now
        return ended

    def rename(self, phase: str) -> None:
        """What began with the last `enter` turned out to be `phase`."""
        self._phase = phase

    def end_step(self) -> None:
        """Count a step."""
        self.steps += 1

    def at(self, submission: int | None) -> None:
        """What comes is done for this bucket, counted in the order of submission; None: for none of them."""


class Untraced(Trace):
    """Measures nothing, at the cost of an empty call; what drivers hold while nobody asks."""

    def enter(self, phase: str | None) -> str | None:
        """Nothing."""
        return None

    def rename(self, phase: str) -> None:
        """Nothing."""

    def end_step(self) -> None:
        """Nothing."""


class Serial:
    """Transport without overlap: carries collectives out over `transport` one at a time, as phase ``communication`` of `trace`.

    Every collective is complete when its launch returns. They are launched in the order of the transport below, so all results
    have the same bits as there.
    """

    def __init__(self, transport: Transport, trace: Trace) -> None:
        self.transport = transport
        self.trace = trace
        self.ranks = transport.ranks
        self.size = transport.size

    def launch(self, requests: Sequence[Collective]) -> list[Any]:
        """Carry the collective out; the handle is the list of answers."""
        before = self.trace.enter("communication")
        answers = self.transport.wait(self.transport.launch(requests))
        self.trace.enter(before)
        return answers

    def wait(self, handle: list[Any]) -> list[Any]:
        """The answers."""
        return handle
