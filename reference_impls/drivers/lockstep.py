"""Transport of a simulation: n workers in one process, in lock-step, no threads.

Answers are computed as a process group would give them: all-reduce in place, sums in the order of ranks, gathered
rows copied. Integer sums, maxima, gathers and exchanges have the same bits as on a real group; floating-point sums may
differ from it in the last bits. Every rank gets memory of its own, since receivers may write into what they are given;
it comes from the pool (`reference_impls.buffers`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, cast

import torch
from torch import Tensor

from reference_impls import buffers
from reference_impls.collectives import AllGather, AllReduce, AllToAll, Collective, SendRecv
from reference_impls.errors import MismatchError, UnsupportedError

_CACHED: Final = 1 << 15
"""Elements that are added at a time: their sum stays in the processor's cache."""


class Lockstep:
    """Carries collectives out among `size` simulated ranks."""

    def __init__(self, size: int) -> None:
        if size < 1:
            raise UnsupportedError(f"world_size must be at least 1, got {size}")
        self.ranks: Sequence[int] = range(size)
        self.size = size

    def launch(self, requests: Sequence[Collective]) -> list[Any]:
        """Carry the collective out at once; the handle is the list of answers."""
        first = requests[0]
        sent = [request.buffer for request in requests]
        if isinstance(first, AllReduce):
            return _all_reduce(sent, first.op)
        if isinstance(first, AllGather):
            return _all_gather(sent)
        if isinstance(first, AllToAll):
            return _all_to_all(sent)
        if isinstance(first, SendRecv):
            return _send_recv(cast("Sequence[SendRecv]", requests))
        raise UnsupportedError(f"the simulation cannot carry out {type(first).__name__}")

    def wait(self, handle: list[Any]) -> list[Any]:
        """The answers."""
        return handle


def _all_reduce(sent: Sequence[Tensor], op: str) -> list[Tensor]:
    for total, *others in zip(*(torch.split(buffer, _CACHED) for buffer in sent), strict=True):
        for other in others:
            if op == "sum":
                total.add_(other)
            else:
                torch.maximum(total, other, out=total)
        for other in others:
            other.copy_(total)
    return list(sent)


def _all_gather(sent: Sequence[Tensor]) -> list[Tensor]:
    shape = (len(sent), sent[0].numel())
    answers = [buffers.empty(shape, sent[0].dtype, sent[0].device) for _ in sent]
    torch.stack(list(sent), out=answers[0])
    for answer in answers[1:]:
        answer.copy_(answers[0])
    return answers


def _all_to_all(sent: Sequence[Tensor]) -> list[Tensor]:
    pieces = [buffer.view(len(sent), -1) for buffer in sent]
    answers = [buffers.empty_like(own) for own in pieces]
    for rank, answer in enumerate(answers):
        torch.stack([own[rank] for own in pieces], out=answer)
    return answers


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
    came: list[Tensor | None] = []
    for request in requests:
        source = None if request.source is None else requests[request.source].buffer
        came.append(None if source is None else buffers.empty_like(source).copy_(source))
    return came
