"""Transport on a torch.distributed process group (gloo, nccl by the same code).

Collectives are launched asynchronously and waited for when the engine needs the answer. Before a launch the request
may be compared with that of all other ranks (`reference_impls.drivers.agreement`), since an unchecked disagreement
mostly does not hang but gives wrong numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from reference_impls.collectives import AllGather, AllReduce, AllToAll, Collective, SendRecv
from reference_impls.drivers.agreement import Agreement
from reference_impls.errors import UnsupportedError, UsageError

_GLOO_LACKS = (torch.int16, torch.uint16)
_OPS = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX}


class _Launched(NamedTuple):
    request: Collective  # holds the buffer until the wait
    works: list[Any]
    answer: Tensor | None


class ProcessGroup:
    """Carries collectives out for this process's rank. group: None is the default group. agreement: see there."""

    def __init__(self, group: dist.ProcessGroup | None = None, agreement: Agreement | None = None) -> None:
        if not dist.is_initialized():
            raise UsageError("call torch.distributed.init_process_group before building the optimizer")
        self.group = group
        self.ranks: Sequence[int] = [dist.get_rank(group)]
        self.sizes = {"world": dist.get_world_size(group)}
        self.backend = dist.get_backend(group)
        self.agreement = agreement

    def launch(self, requests: Sequence[Collective]) -> _Launched:
        """Begin the collective; `PeerError` or `MismatchError` if ranks disagree or a peer is lost."""
        (request,) = requests
        if self.backend == "gloo" and request.buffer.dtype in _GLOO_LACKS:
            raise UnsupportedError(
                f"stage {request.stage!r}: gloo cannot carry {request.buffer.dtype}; send its bytes as a uint8 view"
            )
        if self.agreement is not None:
            self.agreement.before(request.signature())
        try:
            return self._launch(request)
        except RuntimeError as error:
            raise self._lost(request, error) from error

    def wait(self, handle: _Launched) -> list[Any]:
        """Wait for the collective and answer it."""
        try:
            for work in handle.works:
                work.wait()
        except RuntimeError as error:
            raise self._lost(handle.request, error) from error
        return [handle.answer]

    def _launch(self, request: Collective) -> _Launched:
        x, n = request.buffer, self.sizes["world"]
        if isinstance(request, AllReduce):
            return _Launched(
                request, [dist.all_reduce(x, _OPS[request.op], group=self.group, async_op=True)], x
            )
        if isinstance(request, AllGather):
            rows = x.new_empty(n * x.numel())
            return _Launched(request, [all_gather_rows(rows, x, self.group)], rows.view(n, -1))
        if isinstance(request, AllToAll):
            pieces = torch.empty_like(x)
            return _Launched(
                request,
                [dist.all_to_all_single(pieces, x, group=self.group, async_op=True)],
                pieces.view(n, -1),
            )
        if isinstance(request, SendRecv):
            return self._send_recv(request)
        raise UnsupportedError(f"a process group cannot carry out {type(request).__name__}")

    def _send_recv(self, request: SendRecv) -> _Launched:
        operations, answer = [], None
        if request.to is not None:
            operations.append(dist.P2POp(dist.isend, request.buffer, group=self.group, group_peer=request.to))
        if request.source is not None:
            answer = torch.empty_like(request.buffer)
            operations.append(dist.P2POp(dist.irecv, answer, group=self.group, group_peer=request.source))
        return _Launched(request, dist.batch_isend_irecv(operations) if operations else [], answer)

    def _lost(self, request: Collective, error: RuntimeError) -> Exception:
        if self.agreement is None:
            return error
        return self.agreement.peer_lost(request.signature(), error)


def all_gather_rows(rows: Tensor, x: Tensor, group: dist.ProcessGroup | None = None) -> Any:
    """Begin to gather `x` of every rank into `rows`, [n x.numel()]; answers what to wait for.

    torch >= 2.13 calls it all_gather_single and deprecates the older name.
    """
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    return gather(rows, x, group=group, async_op=True)
