"""Transport on a torch.distributed process group (gloo, nccl by the same code).

Collectives are launched asynchronously and waited for when the engine needs the answer. What fails is told by
`reference_impls.drivers.agreement`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore  # type: ignore[attr-defined]  # its stubs do not name it

from reference_impls import buffers
from reference_impls.collectives import AllGather, AllReduce, AllToAll, Collective, SendRecv
from reference_impls.drivers.agreement import Agreement, of_a_peer
from reference_impls.errors import UnsupportedError, UsageError

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

_GLOO_LACKS = (torch.int16, torch.uint16)
_OPS = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX}


class _Launched(NamedTuple):
    request: Collective  # holds the buffer until the wait
    works: list[Any]
    answer: Tensor | None


class ProcessGroup:
    """Carries collectives out for this process's rank.

    group: None is the default group. agreement: see there.
    """

    def __init__(self, group: dist.ProcessGroup | None = None, agreement: Agreement | None = None) -> None:
        if not dist.is_initialized():
            raise UsageError("call torch.distributed.init_process_group before building the optimizer")
        refuse_no_group(group)
        self.group = group
        self.ranks: Sequence[int] = [dist.get_rank(group)]
        self.size = dist.get_world_size(group)
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
            if self.agreement is None or not of_a_peer(error):
                raise
            raise self.agreement.failed(request.signature(), error) from error

    def wait(self, handle: _Launched) -> list[Any]:
        """Wait for the collective and answer it."""
        for work in handle.works:
            self.await_work(work, handle.request.signature())
        return [handle.answer]

    def await_work(self, work: Any, signature: tuple[str, ...]) -> None:
        """Wait for what torch.distributed answered: on gloo no longer than the agreement allows.

        On other backends the wait is a matter of the device's stream, and torch's own watchdog ends it.
        """
        if self.agreement is not None and self.backend == "gloo":
            self.agreement.wait_for(work, signature)
            return
        try:
            work.wait()
        except RuntimeError as error:
            if self.agreement is None or not of_a_peer(error):
                raise
            raise self.agreement.failed(signature, error) from error

    def maximum(self, x: Tensor) -> Any:
        """Begin the element-wise maximum of `x` over all ranks, in place; outside of any method, so not counted."""
        return dist.all_reduce(x, dist.ReduceOp.MAX, group=self.group, async_op=True)

    def _launch(self, request: Collective) -> _Launched:
        x, n, group = request.buffer, self.size, self.group
        if isinstance(request, AllReduce):
            return _Launched(request, [dist.all_reduce(x, _OPS[request.op], group=group, async_op=True)], x)
        if isinstance(request, AllGather):
            rows = buffers.empty(n * x.numel(), x.dtype, x.device)
            return _Launched(request, [all_gather_rows(rows, x, group)], rows.view(n, -1))
        if isinstance(request, AllToAll):
            pieces = buffers.empty_like(x)
            return _Launched(
                request,
                [dist.all_to_all_single(pieces, x, group=group, async_op=True)],
                pieces.view(n, -1),
            )
        if isinstance(request, SendRecv):
            return self._send_recv(request)
        raise UnsupportedError(f"a process group cannot carry out {type(request).__name__}")

    def _send_recv(self, request: SendRecv) -> _Launched:
        operations, came = [], None
        if request.to is not None:
            operations.append(dist.P2POp(dist.isend, request.buffer, group=self.group, group_peer=request.to))
        if request.source is not None:
            came = buffers.empty_like(request.buffer)
            operations.append(dist.P2POp(dist.irecv, came, group=self.group, group_peer=request.source))
        return _Launched(request, dist.batch_isend_irecv(operations) if operations else [], came)


def refuse_no_group(group: Any) -> None:
    """Raise `UsageError` for what is no process group with this rank in it; None is the world."""
    if group is None or (isinstance(group, dist.ProcessGroup) and dist.get_rank(group) >= 0):
        return
    if isinstance(group, dist.ProcessGroup) or group is dist.GroupMember.NON_GROUP_MEMBER:
        raise UsageError(
            f"rank {dist.get_rank()} is no member of the process group that was given as group= (torch.distributed.new_group "
            "answers this on other ranks): call this on the group's ranks alone, and give the others a group of their own"
        )
    remedy = (
        'of one dimension of it a group, mesh.get_group("replicate")'
        if hasattr(group, "get_group")
        else "what torch.distributed.new_group(ranks) answers, on all ranks in the same order"
    )
    raise UsageError(f"group= takes a process group, and no {type(group).__name__}: give {remedy}")


def refuse_group_within(name: str, mesh: Any, group: dist.ProcessGroup | None) -> None:
    """Raise unless `group` goes across the ranks of `mesh`, on which `name` is sharded: this rank alone is in both."""
    refuse_no_group(group)
    ranks, here = mesh.mesh.flatten().tolist(), sorted(dist.get_process_group_ranks(group))
    if len(set(here) & set(ranks)) != 1:
        raise UnsupportedError(
            f"{name} lies on a mesh of ranks {ranks}, which the group {here} crosses: torch reduces its gradient there already. "
            'Call fully_shard(module, mesh=mesh["shard"]) with the 1-D mesh of a node, and give '
            'group=mesh["replicate"].get_group(), the ranks that hold the same parts in other nodes'
        )


def store_of_its_own(group: dist.ProcessGroup | None = None) -> Store:
    """A part of the default store that the ranks of `group` share for one training; call it on all in the same order."""
    ranks = dist.get_process_group_ranks(group)
    store = PrefixStore(f"bandwise/{'-'.join(map(str, ranks))}", dist.distributed_c10d._get_default_store())
    number = store.add(f"trainings/{dist.get_rank(group)}", 1)  # the same on all ranks
    return PrefixStore(f"{number}", store)


def all_gather_rows(rows: Tensor, x: Tensor, group: dist.ProcessGroup | None = None) -> Any:
    """Begin to gather `x` of every rank into `rows`, [n x.numel()]; answers what to wait for.

    torch >= 2.13 calls it all_gather_single and deprecates the older name.
    """
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    return gather(rows, x, group=group, async_op=True)
