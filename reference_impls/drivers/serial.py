"""Transport without overlap: every collective is complete when its launch returns, and its time is taken.

Collectives are launched in the order of the transport below, so all results have the same bits as there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from reference_impls.collectives import Collective
from reference_impls.drivers.engine import Transport
from reference_impls.drivers.trace import Trace


class Serial:
    """Carries collectives out over `transport` one at a time, as phase ``communication`` of `trace`."""

    def __init__(self, transport: Transport, trace: Trace) -> None:
        self.transport = transport
        self.trace = trace
        self.ranks = transport.ranks
        self.sizes = transport.sizes
        self.groups = transport.groups

    def launch(self, requests: Sequence[Collective]) -> list[Any]:
        """Carry the collective out; the handle is the list of answers."""
        before = self.trace.enter("communication")
        answers = self.transport.wait(self.transport.launch(requests))
        self.trace.enter(before)
        return answers

    def wait(self, handle: list[Any]) -> list[Any]:
        """The answers."""
        return handle
