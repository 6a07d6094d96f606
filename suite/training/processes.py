"""A run on real processes of this machine: one rank each, one thread each.

`launch` starts the ranks of a run. They find each other at a store that the launcher hosts, so that it outlives
them and its port is whatever the system gives. A rank that dies ends the run as `error`, with the rank and its exit
code. Ranks are told to stop through their pipes; signals are the affair of the process at the top. `as_rank` is what
every rank does, whoever started it.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import socket
import time
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Final

from suite.runs.provenance import THREAD_VARIABLES
from suite.runs.result import Status
from suite.runs.spec import RunSpec
from suite.training.checkpoint import CheckpointPolicy, Hooks, Interrupted, PipeStop, Start
from suite.training.record import Outcome, failed
from suite.training.rendezvous import RendezvousError, connect, first_cause

TIMEOUT_S: Final = 120.0
"""How long a collective may take before its ranks give up."""


def as_rank(spec: RunSpec, rank: int, store: Any, start: Start, folder: Path, hooks: Hooks) -> Outcome:
    """Be one rank of a run: form the process group over `store`, train, part. Raises `Interrupted`."""
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    try:
        dist.init_process_group(
            "gloo",
            store=store,
            rank=rank,
            world_size=spec.world_size,
            timeout=timedelta(seconds=TIMEOUT_S),
        )
    except RuntimeError as error:
        first = (str(error).splitlines() or [""])[0]
        return failed(
            spec,
            Status("error", f"rank {rank} could not reach the others ({first}): check GLOO_SOCKET_IFNAME"),
        )
    from suite.training.gloo import train_rank

    policy = CheckpointPolicy(hooks.interruption, hooks.checkpoint_s if rank == 0 else math.inf)
    try:
        return train_rank(spec, start, folder, hooks.progress, policy=policy, saved=hooks.saved)
    finally:
        dist.destroy_process_group()


GRACE_S: Final = 5.0
POLL_S: Final = 0.1


def launch(spec: RunSpec, start: Start, folder: Path, hooks: Hooks, port: int = 0) -> Outcome:
    """Start the ranks here and wait for the run's outcome. port: of the rendezvous point, 0 for any that is free.

    folder: of the run, for its checkpoints. Raises `Interrupted`.
    """
    try:
        host = connect("127.0.0.1", port, is_master=True)
    except RendezvousError as error:
        return failed(spec, Status("error", str(error)))
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
        self._stop_sent = False
        self._outcome: Outcome | None = None
        self._faults: list[Status] = []
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
            for pipe in wait(list(self._members), timeout=POLL_S):
                self._receive(pipe)  # type: ignore[arg-type]
            if deadline is None and self._faults:
                deadline = time.monotonic() + GRACE_S
        if self._faults:
            return failed(self._spec, first_cause(self._faults))
        if self._interrupted is not None:
            raise Interrupted(self._interrupted, [self._spec.run_id])
        return self._outcome or failed(self._spec, Status("error", "no rank gave a result"))

    def stop(self) -> None:
        """End what is still running."""
        for pipe, (_, process) in self._members.items():
            process.kill()
            process.join()
            pipe.close()

    def _pass_on(self) -> None:
        """Tell the ranks to stop, once."""
        reason = self._hooks.interruption.requested
        if reason is None or self._stop_sent:
            return
        self._stop_sent = True
        for pipe in self._members:
            try:
                pipe.send(reason)
            except OSError:
                continue  # it has ended; its pipe says how

    def _receive(self, pipe: Connection) -> None:
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
            self._report(what, content)

    def _report(self, what: str, content: list[Any]) -> None:
        if what == "step":
            self._hooks.progress(*content)
        elif what == "saved":
            self._hooks.saved(*content)
        else:
            (self._interrupted,) = content

    def _fault(self, rank: int, what: str, state: str = "error") -> None:
        self._faults.append(Status(state, f"rank {rank} {what}"))


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
        interruption=PipeStop(pipe),
        checkpoint_s=checkpoint_s,
    )
    try:
        pipe.send(("outcome", _join_and_train(spec, rank, start, Path(folder), hooks, port)))
    except Interrupted as interrupted:
        pipe.send(("interrupted", interrupted.reason))


def _join_and_train(spec: RunSpec, rank: int, start: Start, folder: Path, hooks: Hooks, port: int) -> Outcome:
    try:
        store = connect("127.0.0.1", port, TIMEOUT_S, is_master=False)
    except RendezvousError as error:
        return failed(spec, Status("error", str(error)))
    return as_rank(spec, rank, store, start, folder, hooks)
