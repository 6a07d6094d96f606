"""Transport that sends nothing: every collective is answered from this rank's own buffer, at the cost of a local copy.

For timing: a step over this transport encodes, decodes and updates as always, so a real step's time minus its time is
the communication that the step exposes. Answers have the shape and dtype of real ones and are otherwise nonsense (a
mean comes out as 1/n of the rank's own value), so nothing computed with them may be kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from reference_impls import buffers
from reference_impls.collectives import AllGather, AllReduce, AllToAll, Collective, SendRecv, Transport
from reference_impls.errors import UnsupportedError


class NullTransport:
    """Stands in for `transport`: the same ranks, and no messages."""

    def __init__(self, transport: Transport) -> None:
        self.ranks = transport.ranks
        self.size = transport.size

    def launch(self, requests: Sequence[Collective]) -> list[Any]:
        """Answer at once; the handle is the list of answers."""
        return [answer(request, self.size) for request in requests]

    def wait(self, handle: list[Any]) -> list[Any]:
        """The answers."""
        return handle


def answer(request: Collective, n: int) -> Tensor | None:
    """What `n` ranks that all hold this rank's buffer would be answered, sums left undone; for n = 1, the real answer."""
    x = request.buffer
    if isinstance(request, AllReduce):
        return x  # answers in its buffer, which stays as it is
    if isinstance(request, AllGather):
        rows = buffers.empty((n, x.numel()), x.dtype, x.device)
        return rows.copy_(x.expand_as(rows))
    if isinstance(request, AllToAll):
        return buffers.empty_like(x).copy_(x).view(n, -1)
    if isinstance(request, SendRecv):
        return None if request.source is None else buffers.empty_like(x).copy_(x)
    raise UnsupportedError(
        f"no local stand-in for {type(request).__name__}; give reference_impls.drivers.null one"
    )
