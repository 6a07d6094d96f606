"""Transport of a simulation: n workers in one process, in lock-step, no threads.

Answers are computed as a process group would give them: all-reduce in place, sums in the order of ranks, gathered
rows copied. Integer sums, maxima, gathers and exchanges have the same bits as on a real group; floating-point sums may
differ from it in the last bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor

from reference_impls.collectives import AllGather, AllReduce, AllToAll, Collective, SendRecv
from reference_impls.drivers.groups import partitions
from reference_impls.errors import MismatchError, UnsupportedError


class Lockstep:
    """Carries collectives out among `size` simulated ranks, in nodes of `node_size`."""

    def __init__(self, size: int, node_size: int = 1) -> None:
        self.ranks: Sequence[int] = range(size)
        self.groups = partitions(size, node_size)
        self.sizes = {name: len(sets[0]) for name, sets in self.groups.items()}

    def launch(self, requests: Sequence[Collective]) -> list[Any]:
        """Carry the collective out at once, in every set of ranks of its group; the handle is the list of answers."""
        answers: list[Any] = [None] * len(requests)
        for ranks in self.groups[requests[0].group]:
            own = self._carry_out([requests[rank] for rank in ranks])
            for rank, answer in zip(ranks, own, strict=True):
                answers[rank] = answer
        return answers

    def _carry_out(self, requests: Sequence[Collective]) -> list[Any]:
        first = requests[0]
        buffers = [request.buffer for request in requests]
        if isinstance(first, AllReduce):
            return _all_reduce(buffers, first.op)
        if isinstance(first, AllGather):
            rows = torch.stack(buffers)
            return [rows] + [rows.clone() for _ in buffers[1:]]
        if isinstance(first, AllToAll):
            n = len(buffers)
            pieces = torch.stack(buffers).view(n, n, -1)
            return [pieces[:, rank].contiguous() for rank in range(n)]
        if isinstance(first, SendRecv):
            return _send_recv(cast("Sequence[SendRecv]", requests))
        raise UnsupportedError(f"the simulation cannot carry out {type(first).__name__}")

    def wait(self, handle: list[Any]) -> list[Any]:
        """The answers."""
        return handle


def _all_reduce(buffers: Sequence[Tensor], op: str) -> list[Tensor]:
    total = buffers[0]
    for other in buffers[1:]:
        if op == "sum":
            total.add_(other)
        else:
            torch.maximum(total, other, out=total)
    for other in buffers[1:]:
        other.copy_(total)
    return list(buffers)


def _send_recv(requests: Sequence[SendRecv]) -> list[Tensor | None]:
    for rank, request in enumerate(requests):
        if request.to is not None and requests[request.to].source != rank:
            raise MismatchError(
                f"stage {request.stage!r}: rank {rank} sends to rank {request.to}, but rank {request.to} expects "
                f"rank {requests[request.to].source}; make `to` and `source` of both ranks agree"
            )
        if request.source is not None and requests[request.source].to != rank:
            raise MismatchError(
                f"stage {request.stage!r}: rank {rank} expects rank {request.source}, but rank {request.source} sends "
                f"to rank {requests[request.source].to}; make `to` and `source` of both ranks agree"
            )
    return [None if r.source is None else requests[r.source].buffer.clone() for r in requests]
