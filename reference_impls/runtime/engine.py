"""Carrying out what methods ask for: the engine, the backends beneath it, and what it tells of time.

An engine drives the exchanges of its *local* ranks in lock-step: one rank on a process group, all n of them in a simulation. It
resolves `Start` and `Finish`, compares what local ranks ask for, records bytes, and hands collectives to a `Backend`: that of a
`ProcessGroup`, of simulated ranks (`SimulatedBackend`), of nobody (`NoOpBackend`), or one at a time (`SerialBackend`).

The order in which collectives are launched depends on counts alone, never on completion times: before a submission is launched,
each of those in flight moves on by one collective; afterwards all move in rounds. Hence it is equal on all ranks, whatever
arrives first.

A submission whose last collective is under way does not move before the end: there is nothing to launch, and waiting
for it would hold up backward. How many collectives a submission has is what it had in the last step of the same kind,
which is a count too, and equal on all ranks.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore  # type: ignore[attr-defined]  # its stubs do not name it

from reference_impls.core import compute
from reference_impls.core.collectives import (
    AllGather,
    AllReduce,
    AllToAll,
    Backend,
    Collective,
    Finish,
    Ledger,
    Pending,
    SendRecv,
    Start,
)
from reference_impls.core.errors import MismatchError, UnsupportedError, UsageError
from reference_impls.runtime.checks import ENDED, Agreement, Check, of_a_peer
from reference_impls.runtime.messages import Messages

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store


@dataclass(slots=True, eq=False)
class _InFlight:
    """One exchange per local rank, suspended at a collective that `backend` has launched. asked: collectives launched."""

    exchanges: Sequence[Any]
    results: list[Any]
    backend: Any = None
    handle: Any = None
    done: bool = False
    asked: int = 0


Lanes = Callable[[int], AbstractContextManager[Sequence[AbstractContextManager[Any]]]]
"""Given a number of ranks: where each of them computes; what comes before is done there, and what comes after waits for all."""


def one_lane(ranks: int) -> AbstractContextManager[Sequence[AbstractContextManager[Any]]]:
    """One rank after another."""
    return nullcontext([nullcontext()] * ranks)


class Engine:
    """Runs exchanges over a backend.

    backend and ledgers may be exchanged between steps: an exchange under way is answered by the backend that
    launched its collective, and goes on over the new one. trace: where the time of submissions is written down. lanes: where
    local ranks compute between two collectives.
    """

    def __init__(self, backend: Backend, ledgers: Sequence[Ledger]) -> None:
        self.backend = backend
        self.ledgers = ledgers
        self.trace = Trace(lambda: 0.0)  # by a clock that stands still, while nobody asks
        self.launched = 0  # collectives, ever
        self.lanes = one_lane
        self._submitted: list[_InFlight] = []
        self._background: list[_InFlight] = []
        self._lengths: dict[tuple[str, int], int] = {}
        """(Kind of step, submission) -> its collectives the last time."""

    def run(self, exchanges: Sequence[Any]) -> list[Any]:
        """Drive one exchange per local rank to its end; plain values pass through. Answers one result per rank."""
        in_flight = self._begin(exchanges)
        self._complete(in_flight)
        return in_flight.results

    def submit(self, exchanges: Sequence[Any]) -> None:
        """Move the earlier submissions on by one collective and launch one exchange per local rank."""
        kind = self.ledgers[0].kind
        for number, in_flight in enumerate(self._submitted):
            if not in_flight.done and in_flight.asked != self._lengths.get((kind, number)):
                self._move_submission(in_flight)
        self._submitted.append(self._begin(exchanges))

    def finish(self) -> list[list[Any]]:
        """Drive all submissions to their end, in rounds. Answers [submission][local rank]."""
        submissions, self._submitted = self._submitted, []
        while any(not in_flight.done for in_flight in submissions):
            for in_flight in submissions:
                if not in_flight.done:
                    self._move_submission(in_flight)
        kind = self.ledgers[0].kind
        self._lengths.update(
            {(kind, number): in_flight.asked for number, in_flight in enumerate(submissions)}
        )
        return [in_flight.results for in_flight in submissions]

    def advance_background(self) -> None:
        """Move every started exchange on by one collective; called once a step."""
        for in_flight in self._background:
            if not in_flight.done:
                self._move(in_flight)
        self._background = [in_flight for in_flight in self._background if not in_flight.done]

    @property
    def under_way(self) -> bool:
        """Whether a started exchange has not ended."""
        return bool(self._background)

    def drain(self) -> None:
        """Drive every started exchange to its end."""
        for in_flight in self._background:
            self._complete(in_flight)
        self._background = []

    def discard(self) -> None:
        """Forget submissions and started exchanges that have not ended."""
        self._submitted = []
        self.discard_background()

    def discard_background(self) -> None:
        """Forget started exchanges that have not ended; on all ranks, between the same steps."""
        self._background = []

    def complete(self, pending: Pending) -> Any:
        """The result of a started exchange of a local rank, waiting for it if need be.

        What was there before is a copy: it may be that of a checkpoint, which others load too, and methods consume it.
        """
        if pending.done:
            return pending.result.clone() if isinstance(pending.result, Tensor) else pending.result
        self._complete(pending.in_flight)
        pending.result, pending.done = pending.in_flight.results[pending.rank_index], True
        pending.in_flight = None
        return pending.result

    def _begin(self, exchanges: Sequence[Any]) -> _InFlight:
        in_flight = _InFlight(exchanges, [None] * len(exchanges))
        generators = [isinstance(exchange, Generator) for exchange in exchanges]
        if not any(generators):
            in_flight.results, in_flight.done = list(exchanges), True
        elif all(generators):
            self._resume(in_flight, [None] * len(exchanges))
        else:
            asks, silent = generators.index(True), generators.index(False)
            raise MismatchError(self._names(asks, "asks for a collective", silent, "asks for none"))
        return in_flight

    def _complete(self, in_flight: _InFlight) -> None:
        while not in_flight.done:
            self._move(in_flight)

    def _move_submission(self, in_flight: _InFlight) -> None:
        before = self.trace.enter("encode")
        self._move(in_flight)
        if in_flight.done:
            self.trace.rename("decode")
        self.trace.enter(before)

    def _move(self, in_flight: _InFlight) -> None:
        answers = in_flight.backend.wait(in_flight.handle)
        in_flight.handle = None
        self._resume(in_flight, answers)

    def _resume(self, in_flight: _InFlight, answers: Sequence[Any]) -> None:
        """Send the answers in and go on until the next collective has been launched or the exchange has ended."""
        while True:
            requests: list[Any] = []
            ended = 0
            with self.lanes(len(in_flight.exchanges)) as lanes:
                for i, (exchange, lane) in enumerate(zip(in_flight.exchanges, lanes, strict=True)):
                    try:
                        with lane:
                            requests.append(exchange.send(answers[i]))
                    except StopIteration as stop:
                        in_flight.results[i] = stop.value
                        requests.append(None)
                        ended += 1
            if ended == len(in_flight.exchanges):
                in_flight.done = True
                return
            self._compare(requests)
            if isinstance(requests[0], Collective):
                for ledger, request in zip(self.ledgers, requests, strict=True):
                    ledger.record(request, self.backend.size)
                in_flight.backend = self.backend
                in_flight.asked += 1
                self.launched += 1
                in_flight.handle = self.backend.launch(requests)
                return
            if isinstance(requests[0], Start):
                answers = self._start(requests)
            else:
                answers = [self.complete(request.pending) for request in requests]

    def _start(self, requests: Sequence[Start]) -> list[Pending]:
        child = self._begin([request.exchange for request in requests])
        if not child.done:
            self._background.append(child)
        return [Pending(child, i) for i in range(len(requests))]

    def _compare(self, requests: Sequence[Any]) -> None:
        """All local ranks must ask for the same thing; the message names the first two that do not."""
        first = requests[0]
        for i, request in enumerate(requests):
            if _describe(request) != _describe(first):
                asked, other = (f"asks for {_describe(one)}" for one in (first, request))
                raise MismatchError(self._names(0, asked, i, other))
        if not isinstance(first, Collective | Start | Finish):
            raise UsageError(
                f"an exchange yielded {type(first).__name__}; write `yield from` before the verbs of a group"
            )

    def _names(self, i: int, what: str, j: int, other: str) -> str:
        step = self.ledgers[0].step
        return (
            f"step {step}: rank {self.backend.ranks[i]} {what}, but rank {self.backend.ranks[j]} {other}. What a "
            "method sends must depend on its options, the step and agreed values only, never on local data"
        )


def _describe(request: Any) -> str:
    if request is None:
        return "nothing more"
    if isinstance(request, Collective):
        return "(" + ", ".join(request.signature()) + ")"
    return type(request).__name__


# ---- a process group --------------------------------------------------------------------------------------------------


_GLOO_LACKS = (torch.int16, torch.uint16)
_OPS = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX}


class _Launched(NamedTuple):
    request: Collective  # holds the buffer until the wait
    works: list[Any]
    answer: Tensor | None


class ProcessGroupBackend:
    """Backend on a torch.distributed process group (gloo, nccl by the same code), for this process's rank.

    Collectives are launched asynchronously and waited for when the engine needs the answer. group: None is the default group.
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        if not dist.is_initialized():
            raise UsageError("call torch.distributed.init_process_group before building the optimizer")
        refuse_no_group(group)
        self.group = group
        self.ranks: Sequence[int] = [dist.get_rank(group)]
        self.size = dist.get_world_size(group)
        self.backend = ""

    def begin(self, check: Check, timeout_s: float, device: torch.device) -> None:
        """Begin a training; `agreement` tells from here on what fails, and `end` the others that this rank ends.

        A group may have a backend for each kind of device; `backend` is that of `device`.
        """
        of_device = dict(pair.split(":") for pair in dist.get_backend_config(self.group).split(","))
        self.backend = of_device.get(device.type, "")
        self.agreement = Agreement(
            store_of_its_own(self.group),
            self.ranks[0],
            self.size,
            check,
            timeout_s,
            device,
            self.group,
            self.backend,
        )
        self.end = weakref.finalize(self, Agreement.leave, self.agreement, ENDED)

    def launch(self, requests: Sequence[Collective]) -> _Launched:
        """Begin the collective; `PeerError` or `MismatchError` if ranks disagree or a peer is lost."""
        (request,) = requests
        if self.backend == "gloo" and request.buffer.dtype in _GLOO_LACKS:
            raise UnsupportedError(
                f"stage {request.stage!r}: gloo cannot carry {request.buffer.dtype}; send its bytes as a uint8 view"
            )
        self.agreement.before(request.signature())
        try:
            return self._launch(request)
        except RuntimeError as error:
            if not of_a_peer(error):
                raise
            raise self.agreement.failed(request.signature(), error) from error

    def wait(self, handle: _Launched) -> list[Any]:
        """Wait for the collective and answer it."""
        for work in handle.works:
            self.agreement.await_work(work, handle.request.signature())
        return [handle.answer]

    @cached_property
    def _messages(self) -> Messages:
        """Made for the first message, since on gloo it begins a thread."""
        return Messages(self.group, gloo=self.backend == "gloo")

    def _launch(self, request: Collective) -> _Launched:
        x, n, group = request.buffer, self.size, self.group
        if isinstance(request, AllReduce):
            return _Launched(request, [dist.all_reduce(x, _OPS[request.op], group=group, async_op=True)], x)
        if isinstance(request, AllGather):
            rows = compute.empty(n * x.numel(), x.dtype, x.device)
            return _Launched(request, [all_gather_rows(rows, x, group)], rows.view(n, -1))
        if isinstance(request, AllToAll):
            pieces = compute.empty_like(x)
            return _Launched(request, self._messages.all_to_all(pieces, x), pieces.view(n, -1))
        if isinstance(request, SendRecv):
            came = None if request.source is None else compute.empty_like(x)
            works = self._messages.exchange(x, request.to, came, request.source)
            return _Launched(request, works, came)
        raise UnsupportedError(f"a process group cannot carry out {type(request).__name__}")


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


STREAMS: Final = 1 << 32
"""Distance of the seeds of two ranks that hold different parts of a model."""


def refuse_meshes(params: Iterable[tuple[str, Any]], group: dist.ProcessGroup | None) -> list[int]:
    """The ranks of the one 1-D mesh on which all DTensors of `params` are sharded, by FSDP alone.

    Raises unless `group` goes across them: this rank alone is in both.
    """
    refuse_no_group(group)
    here, first = sorted(dist.get_process_group_ranks(group)), None
    for name, param in params:
        mesh = param.device_mesh
        ranks = mesh.mesh.flatten().tolist()
        if len(set(here) & set(ranks)) != 1:
            raise UnsupportedError(
                f"parameter {name!r} lies on a mesh of ranks {ranks}, which the group {here} crosses: torch reduces its gradient "
                'there already. Call fully_shard(module, mesh=mesh["shard"]) with the 1-D mesh of a node, and give '
                'group=mesh["replicate"].get_group(), the ranks that hold the same parts in other nodes'
            )
        first = first or (name, ranks)
        if mesh.ndim > 1 or ranks != first[1]:
            what = (
                f"{mesh.ndim} dimensions"
                if mesh.ndim > 1
                else f"ranks {ranks}, {first[0]!r} on one of {first[1]}"
            )
            raise UnsupportedError(
                f"parameter {name!r} lies on a mesh of {what}: ranks that hold the same parts would step them differently. Leave "
                "out tensor and expert parallelism, and call fully_shard with one 1-D mesh"
            )
    return [] if first is None else first[1]


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


# ---- simulated ranks --------------------------------------------------------------------------------------------------


_CACHED: Final = 1 << 15
"""Elements that are added at a time on a processor: their sum stays in its cache. Elsewhere every piece costs launches."""


class AtOnce:
    """A backend that carries a collective out when it is launched; the handle is the list of answers."""

    def wait(self, handle: list[Any]) -> list[Any]:
        """The answers."""
        return handle


class SimulatedBackend(AtOnce):
    """Backend of a simulation: `size` ranks in one process, in lock-step, no threads.

    Answers are computed as a process group would give them: all-reduce in place, sums in the order of ranks. Integer sums,
    maxima, gathers and exchanges have the same bits as on a real group; floating-point sums may differ from it in the last
    ones. Every rank gets memory of its own, since receivers may write into what they are given.
    """

    def __init__(self, size: int) -> None:
        if size < 1:
            raise UnsupportedError(f"world_size must be at least 1, got {size}")
        self.ranks: Sequence[int] = range(size)
        self.size = size

    def launch(self, requests: Sequence[Collective]) -> list[Any]:
        """Carry the collective out."""
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


def _all_reduce(sent: Sequence[Tensor], op: str) -> list[Tensor]:
    pieces = [torch.split(buffer, _CACHED) if buffer.device.type == "cpu" else [buffer] for buffer in sent]
    for total, *others in zip(*pieces, strict=True):
        for other in others:
            if op == "sum":
                total.add_(other)
            else:
                torch.maximum(total, other, out=total)
        if others:
            torch._foreach_copy_(others, [total] * len(others))
    return list(sent)


def _all_gather(sent: Sequence[Tensor]) -> list[Tensor]:
    shape = (len(sent), sent[0].numel())
    answers = [compute.empty(shape, sent[0].dtype, sent[0].device) for _ in sent]
    torch.stack(list(sent), out=answers[0])
    if answers[1:]:
        torch._foreach_copy_(answers[1:], answers[:1] * (len(answers) - 1))
    return answers


def _all_to_all(sent: Sequence[Tensor]) -> list[Tensor]:
    pieces = [buffer.view(len(sent), -1) for buffer in sent]
    answers = [compute.empty_like(own) for own in pieces]
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
        came.append(None if source is None else compute.empty_like(source).copy_(source))
    return came


# ---- nobody -----------------------------------------------------------------------------------------------------------


class NoOpBackend(AtOnce):
    """The local `ranks` of `size`, and no messages. A collective is answered from this rank's own buffer.

    For timing: a step over it encodes, decodes and updates as always, so a real step's time minus its time is the
    communication that the step exposes. Answers have the shape and dtype of real ones and are otherwise nonsense (a mean
    comes out as 1/n of the rank's own value), so nothing computed with them may be kept.
    """

    def __init__(self, ranks: Sequence[int], size: int) -> None:
        self.ranks = ranks
        self.size = size

    def launch(self, requests: Sequence[Collective]) -> list[Any]:
        """Answer for nobody."""
        return [_answer(request, self.size) for request in requests]


def _answer(request: Collective, n: int) -> Tensor | None:
    x = request.buffer
    if isinstance(request, AllReduce):
        return x  # answers in its buffer, which stays as it is
    if isinstance(request, AllGather):
        rows = compute.empty((n, x.numel()), x.dtype, x.device)
        return rows.copy_(x.expand_as(rows))
    if isinstance(request, AllToAll):
        return compute.empty_like(x).copy_(x).view(n, -1)
    if isinstance(request, SendRecv):
        return None if request.source is None else compute.empty_like(x).copy_(x)
    raise UnsupportedError(f"no local stand-in for {type(request).__name__}; give NoOpBackend one")


# ---- seconds ----------------------------------------------------------------------------------------------------------


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
    """Where the seconds of a step go: of the host's clock, a phase, of one rank. Exactly one phase runs at a time, or none.

    With overlap a phase has no time of its own, since one bucket is encoded while another travels: measure over `SerialBackend`.
    seconds: phase -> seconds so far. clock: answers seconds; for tests.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.seconds: dict[str, float] = dict.fromkeys(PHASES, 0.0)
        self._clock = clock
        self._phase: str | None = None
        self._since = 0.0

    @property
    def total(self) -> float:
        """Seconds in all phases together."""
        return sum(self.seconds.values())

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


class SerialBackend(AtOnce):
    """Backend without overlap: carries collectives out over `backend` one at a time, as phase ``communication`` of `trace`.

    Every collective is complete when its launch returns. They are launched in the order of the backend below, so all results
    have the same bits as there.
    """

    def __init__(self, backend: Backend, trace: Trace) -> None:
        self.backend = backend
        self.trace = trace
        self.ranks = backend.ranks
        self.size = backend.size

    def launch(self, requests: Sequence[Collective]) -> list[Any]:
        """Carry the collective out, timed."""
        before = self.trace.enter("communication")
        answers = self.backend.wait(self.backend.launch(requests))
        self.trace.enter(before)
        return answers
