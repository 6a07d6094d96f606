"""Starts the ranks of a run on real processes here.

One process a rank, one thread each, meeting at a store that the launcher hosts, so that it outlives
them and its port is whatever the system gives. A rank that dies ends the run as `error`, with the rank and its exit
code. Ranks are told to stop through their pipes; signals are the affair of the process at the top.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import time
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Final

from suite.runs.checkpoint import Start
from suite.runs.spec import RunSpec
from suite.runs.status import Status
from suite.training.interruption import Interrupted, Told
from suite.training.meeting import port_reason
from suite.training.rank import TIMEOUT_S, Hooks, as_rank
from suite.training.record import Outcome, failed
from suite.training.threads import THREAD_VARIABLES

GRACE_S: Final = 5.0
HEAR_S: Final = 0.1


def launch(spec: RunSpec, start: Start, folder: Path, hooks: Hooks, port: int = 0) -> Outcome:
    """Start the ranks here and wait for the run's outcome. port: of the meeting point, 0 for any that is free.

    folder: of the run, for its checkpoints. Raises `Interrupted`.
    """
    import torch.distributed as dist

    try:
        host = dist.TCPStore(  # type: ignore[attr-defined]
            "127.0.0.1", port, is_master=True, wait_for_workers=False
        )
    except RuntimeError as error:
        return failed(spec, Status("error", port_reason("127.0.0.1", str(port), error)))
    ranks = _Ranks(spec, start, folder, hooks, host.port)
    try:
        return ranks.result()
    finally:
        ranks.stop()


class _Ranks:
    """The processes of a run and what they say, on a pipe each.

    ("step", k), ("saved", k, problem), ("outcome", Outcome), ("interrupted", reason).
    """

    def __init__(self, spec: RunSpec, start: Start, folder: Path, hooks: Hooks, port: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._spec = spec
        self._hooks = hooks
        self._told = False
        self._outcome: Outcome | None = None
        self._first_fault: Outcome | None = None
        self._interrupted: str | None = None
        self._members: dict[Connection, tuple[int, BaseProcess]] = {}
        for rank in range(spec.world_size):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_serve,
                args=(theirs, spec.to_json(), port, rank, start, str(folder), hooks.checkpoint_s),
            )
            process.start()
            theirs.close()
            self._members[ours] = (rank, process)

    def result(self) -> Outcome:
        """Wait for all ranks, or for the first that dies or faults; then give the others a moment to say why."""
        deadline = None
        while self._members and (deadline is None or time.monotonic() < deadline):
            self._pass_on()
            for pipe in wait(list(self._members), timeout=HEAR_S):
                self._hear(pipe)  # type: ignore[arg-type]
            if deadline is None and self._first_fault is not None:
                deadline = time.monotonic() + GRACE_S
        if self._first_fault is None and self._interrupted is not None:
            raise Interrupted(self._interrupted, [self._spec.run_id])
        return (
            self._first_fault or self._outcome or failed(self._spec, Status("error", "no rank gave a result"))
        )

    def stop(self) -> None:
        """End what is still running."""
        for pipe, (_, process) in self._members.items():
            process.kill()
            process.join()
            pipe.close()

    def _pass_on(self) -> None:
        """Tell the ranks to stop, once."""
        reason = self._hooks.interruption.requested
        if reason is None or self._told:
            return
        self._told = True
        for pipe in self._members:
            try:
                pipe.send(reason)
            except OSError:
                continue  # it has ended; its pipe says how

    def _hear(self, pipe: Connection) -> None:
        rank, process = self._members[pipe]
        try:
            what, *content = pipe.recv()
        except (EOFError, ConnectionResetError):
            process.join()
            del self._members[pipe]
            pipe.close()
            if process.exitcode != 0:
                self._fault(rank, f"died: {exit_text(process.exitcode)}")
            return
        if what == "outcome":
            (outcome,) = content
            if outcome.status.state in {"error", "oom"}:
                self._fault(rank, outcome.status.reason, outcome.status.state)
            elif rank == 0:
                self._outcome = outcome
        elif rank == 0:
            self._say(what, content)

    def _say(self, what: str, content: list[Any]) -> None:
        if what == "step":
            self._hooks.progress(*content)
        elif what == "saved":
            self._hooks.saved(*content)
        else:
            (self._interrupted,) = content

    def _fault(self, rank: int, what: str, state: str = "error") -> None:
        if self._first_fault is None:
            self._first_fault = failed(self._spec, Status(state, f"rank {rank} {what}"))


def exit_text(code: int | None) -> str:
    """An exit code in words; a signal by its name."""
    if code is None or code >= 0:
        return f"exit code {code}"
    meaning = " (out of memory, or killed by hand)" if -code == signal.SIGKILL else ""
    return f"signal {signal.Signals(-code).name}{meaning}"


def _serve(
    pipe: Connection, spec_json: str, port: int, rank: int, start: Start, folder: str, checkpoint_s: float
) -> None:
    """What a started process does."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    os.environ.update(dict.fromkeys(THREAD_VARIABLES, "1"))
    if any(name == "lo" for _, name in socket.if_nameindex()):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    spec = RunSpec.from_json(spec_json)
    hooks = Hooks(
        progress=lambda step: pipe.send(("step", step)),
        saved=lambda step, problem: pipe.send(("saved", step, problem)),
        interruption=Told(pipe),
        checkpoint_s=checkpoint_s,
    )
    try:
        pipe.send(("outcome", _meet_and_train(spec, rank, start, Path(folder), hooks, port)))
    except Interrupted as interrupted:
        pipe.send(("interrupted", interrupted.reason))


def _meet_and_train(spec: RunSpec, rank: int, start: Start, folder: Path, hooks: Hooks, port: int) -> Outcome:
    from datetime import timedelta

    import torch.distributed as dist

    try:
        store = dist.TCPStore(  # type: ignore[attr-defined]
            "127.0.0.1", port, is_master=False, timeout=timedelta(seconds=TIMEOUT_S)
        )
    except RuntimeError as error:
        return failed(spec, Status("error", port_reason("127.0.0.1", str(port), error)))
    return as_rank(spec, rank, store, start, folder, hooks)
