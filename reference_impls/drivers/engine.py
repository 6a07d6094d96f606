"""The engine that moves exchanges forward, the same for real ranks and simulated ones.

An engine drives the exchanges of its *local* ranks in lock-step: one rank on a process group, all n of them in a
simulation. It resolves `Start` and `Finish`, compares what local ranks ask for, records bytes, and hands collectives
to a `Transport`. The order in which collectives are launched depends on counts alone, never on completion times: when
submission k is launched, submission j in flight moves on by one collective iff (k - j) % pipeline_depth == 0; afterwards
all move in rounds. Hence it is equal on all ranks, whatever arrives first.

A submission whose last collective is under way does not move before the end: there is nothing to launch, and waiting
for it would hold up backward. How many collectives a submission has is what it had in the last step of the same kind,
which is a count too, and equal on all ranks.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

from torch import Tensor

from reference_impls.collectives import Collective, Finish, Pending, Start, Transport
from reference_impls.drivers.ledger import Ledger
from reference_impls.drivers.trace import Trace, Untraced
from reference_impls.errors import MismatchError, UnsupportedError, UsageError


class _InFlight:
    """One exchange per local rank, suspended at a collective that `transport` has launched."""

    __slots__ = ("exchanges", "transport", "handle", "results", "done", "asked")

    def __init__(self, exchanges: Sequence[Any]) -> None:
        self.exchanges = exchanges
        self.transport: Any = None
        self.handle: Any = None
        self.results: list[Any] = [None] * len(exchanges)
        self.done = False
        self.asked = 0  # collectives launched


class Engine:
    """Runs exchanges over a transport. `pipeline_depth`: how far apart submissions move (see the module docstring).

    transport and ledgers may be exchanged between steps: an exchange under way is answered by the transport that
    launched its collective, and goes on over the new one. trace: where the time of submissions is written down.
    """

    def __init__(self, transport: Transport, ledgers: Sequence[Ledger], pipeline_depth: int = 1) -> None:
        if pipeline_depth < 1:
            raise UnsupportedError(f"pipeline_depth must be at least 1, got {pipeline_depth}")
        self.transport = transport
        self.ledgers = ledgers
        self.pipeline_depth = pipeline_depth
        self.trace: Trace = Untraced()
        self.launched = 0  # collectives, ever
        self._submitted: list[_InFlight] = []
        self._background: list[_InFlight] = []
        self._lengths: dict[
            tuple[str, int], int
        ] = {}  # kind of step, submission: its collectives the last time

    def run(self, exchanges: Sequence[Any]) -> list[Any]:
        """Drive one exchange per local rank to its end; plain values pass through. Answers one result per rank."""
        in_flight = self._begin(exchanges)
        self._complete(in_flight)
        return in_flight.results

    def submit(self, exchanges: Sequence[Any]) -> None:
        """Launch one exchange per local rank and move the earlier submissions on by the rule of `pipeline_depth`."""
        number, kind = len(self._submitted), self.ledgers[0].kind
        for earlier, in_flight in enumerate(self._submitted):
            if in_flight.done or (number - earlier) % self.pipeline_depth != 0:
                continue
            if in_flight.asked != self._lengths.get((kind, earlier)):
                self._move_submission(in_flight, earlier)
        self.trace.at(number)
        self._submitted.append(self._begin(exchanges))
        self.trace.at(None)

    def finish(self) -> list[list[Any]]:
        """Drive all submissions to their end, in rounds. Answers [submission][local rank]."""
        submissions, self._submitted = self._submitted, []
        while any(not in_flight.done for in_flight in submissions):
            for number, in_flight in enumerate(submissions):
                if not in_flight.done:
                    self._move_submission(in_flight, number)
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

    def drain(self) -> None:
        """Drive every started exchange to its end."""
        for in_flight in self._background:
            self._complete(in_flight)
        self._background = []

    def discard(self) -> None:
        """Forget submissions and started exchanges that have not ended."""
        self._submitted, self._background = [], []

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
        in_flight = _InFlight(exchanges)
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

    def _move_submission(self, in_flight: _InFlight, number: int) -> None:
        before = self.trace.enter("encode")
        self.trace.at(number)
        self._move(in_flight)
        if in_flight.done:
            self.trace.rename("decode")
        self.trace.enter(before)
        self.trace.at(None)

    def _move(self, in_flight: _InFlight) -> None:
        answers = in_flight.transport.wait(in_flight.handle)
        in_flight.handle = None
        self._resume(in_flight, answers)

    def _resume(self, in_flight: _InFlight, answers: Sequence[Any]) -> None:
        """Send the answers in and go on until the next collective has been launched or the exchange has ended."""
        while True:
            requests: list[Any] = []
            ended = 0
            for i, exchange in enumerate(in_flight.exchanges):
                try:
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
                    ledger.record(request, self.transport.size)
                in_flight.transport = self.transport
                in_flight.asked += 1
                self.launched += 1
                in_flight.handle = self.transport.launch(requests)
                return
            answers = self._start(requests) if isinstance(requests[0], Start) else self._finish(requests)

    def _start(self, requests: Sequence[Start]) -> list[Pending]:
        child = self._begin([request.exchange for request in requests])
        if not child.done:
            self._background.append(child)
        pendings = []
        for i in range(len(requests)):
            pending = Pending()
            pending.in_flight, pending.rank_index = child, i
            pendings.append(pending)
        return pendings

    def _finish(self, requests: Sequence[Finish]) -> list[Any]:
        return [self.complete(request.pending) for request in requests]

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
            f"step {step}: rank {self.transport.ranks[i]} {what}, but rank {self.transport.ranks[j]} {other}. What a "
            "method sends must depend on its options, the step and agreed values only, never on local data"
        )


def _describe(request: Any) -> str:
    if request is None:
        return "nothing more"
    if isinstance(request, Collective):
        return "(" + ", ".join(request.signature()) + ")"
    return type(request).__name__
