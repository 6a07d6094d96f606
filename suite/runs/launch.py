"""Starts the ranks of a run on real processes, or joins the launch that this process is already part of.

On this machine: one process a rank, one thread each, meeting at a store that the launcher hosts, so that it outlives
them and its port is whatever the system gives. Under torchrun or srun every rank calls `join` and rank 0's outcome
counts. A rank that dies ends the run as `error`, with the rank and its exit code.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Final

from suite.runs.record import Outcome, failed
from suite.runs.spec import RunSpec, SpecError
from suite.runs.status import Status
from suite.runs.threads import THREAD_VARIABLES

GRACE_S: Final = 5.0
TIMEOUT_S: Final = 120.0
SLURM_PORTS: Final = (20_000, 20_000)
"""First port and number of ports that ranks under srun choose from, by job and step."""


@dataclass(frozen=True)
class Place:
    """Which rank of how many this process is in a launch made by torchrun or srun."""

    rank: int
    size: int


def place_in_launch(environment: Mapping[str, str]) -> Place | None:
    """This process's place, by RANK and WORLD_SIZE or by Slurm's variables; None outside of any launch."""
    if "RANK" in environment and "WORLD_SIZE" in environment:
        return Place(int(environment["RANK"]), int(environment["WORLD_SIZE"]))
    if "SLURM_PROCID" in environment and int(environment.get("SLURM_NTASKS", "1")) > 1:
        return Place(int(environment["SLURM_PROCID"]), int(environment["SLURM_NTASKS"]))
    return None


def check_size(spec: RunSpec, place: Place) -> None:
    """Raise `SpecError` when the launch has not the ranks that the run needs."""
    if place.size != spec.world_size:
        raise SpecError(f"launched with {place.size} ranks, but the run has world_size {spec.world_size}")


def slurm_meeting_point(environment: Mapping[str, str]) -> dict[str, str]:
    """MASTER_ADDR and MASTER_PORT for ranks under srun, where the caller has set none."""
    address = environment.get("SLURM_LAUNCH_NODE_IPADDR", "127.0.0.1")
    number = int(environment.get("SLURM_JOB_ID", "0")) * 31 + int(environment.get("SLURM_STEP_ID", "0"))
    return {"MASTER_ADDR": address, "MASTER_PORT": str(SLURM_PORTS[0] + number % SLURM_PORTS[1])}


def join(spec: RunSpec, place: Place, attempt: int, progress: Callable[[int], None]) -> Outcome:
    """Be one rank of a launch made by somebody else."""
    if "MASTER_ADDR" not in os.environ:
        os.environ.update(slurm_meeting_point(os.environ))
    os.environ.update(RANK=str(place.rank), WORLD_SIZE=str(place.size))
    return _rank(spec, None, place.rank, attempt, progress)


def launch(spec: RunSpec, attempt: int, progress: Callable[[int], None], port: int = 0) -> Outcome:
    """Start the ranks here and wait for the run's outcome. port: of the meeting point, 0 for any that is free."""
    import torch.distributed as dist

    try:
        host = dist.TCPStore(  # type: ignore[attr-defined]
            "127.0.0.1", port, is_master=True, wait_for_workers=False
        )
    except RuntimeError as error:
        return failed(spec, Status("error", port_reason("127.0.0.1", str(port), error)))
    ranks = _Ranks(spec, attempt, host.port)
    try:
        return ranks.result(progress)
    finally:
        ranks.stop()


def port_reason(address: str, port: str, error: Exception) -> str:
    """What to do when no meeting point could be opened or reached."""
    first = (str(error).splitlines() or [""])[0]
    return f"no meeting point at {address}:{port} ({first}): choose a free port (`--port`, MASTER_PORT), 0 for any"


class _Ranks:
    """The processes of a run and what they say: ("step", k), ("outcome", Outcome), on a pipe each."""

    def __init__(self, spec: RunSpec, attempt: int, port: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._spec = spec
        self._outcome: Outcome | None = None
        self._first_fault: Outcome | None = None
        self._members: dict[Connection, tuple[int, BaseProcess]] = {}
        for rank in range(spec.world_size):
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(target=_serve, args=(theirs, spec.to_json(), port, rank, attempt))
            process.start()
            theirs.close()
            self._members[ours] = (rank, process)

    def result(self, progress: Callable[[int], None]) -> Outcome:
        """Wait for all ranks, or for the first that dies or faults; then give the others a moment to say why."""
        deadline = None
        while self._members and (deadline is None or time.monotonic() < deadline):
            for pipe in wait(list(self._members), timeout=0.5):
                self._hear(pipe, progress)  # type: ignore[arg-type]
            if deadline is None and self._first_fault is not None:
                deadline = time.monotonic() + GRACE_S
        return (
            self._first_fault or self._outcome or failed(self._spec, Status("error", "no rank gave a result"))
        )

    def stop(self) -> None:
        """End what is still running."""
        for pipe, (_, process) in self._members.items():
            process.kill()
            process.join()
            pipe.close()

    def _hear(self, pipe: Connection, progress: Callable[[int], None]) -> None:
        rank, process = self._members[pipe]
        try:
            what, content = pipe.recv()
        except EOFError:
            process.join()
            del self._members[pipe]
            pipe.close()
            if process.exitcode != 0:
                self._fault(rank, f"died: {exit_text(process.exitcode)}")
            return
        if what == "step":
            if rank == 0:
                progress(content)
        elif content.status.state in {"error", "oom"}:
            self._fault(rank, content.status.reason, content.status.state)
        elif rank == 0:
            self._outcome = content

    def _fault(self, rank: int, what: str, state: str = "error") -> None:
        if self._first_fault is None:
            self._first_fault = failed(self._spec, Status(state, f"rank {rank} {what}"))


def exit_text(code: int | None) -> str:
    """An exit code in words; a signal by its name."""
    if code is None or code >= 0:
        return f"exit code {code}"
    meaning = " (out of memory, or killed by hand)" if -code == signal.SIGKILL else ""
    return f"signal {signal.Signals(-code).name}{meaning}"


def _serve(pipe: Connection, spec_json: str, port: int, rank: int, attempt: int) -> None:
    """What a started process does. The terminal's interrupt is the launcher's affair."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ.update(dict.fromkeys(THREAD_VARIABLES, "1"))
    if any(name == "lo" for _, name in socket.if_nameindex()):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    spec = RunSpec.from_json(spec_json)
    pipe.send(("outcome", _rank(spec, port, rank, attempt, lambda step: pipe.send(("step", step)))))


def _rank(
    spec: RunSpec, port: int | None, rank: int, attempt: int, progress: Callable[[int], None]
) -> Outcome:
    """Meet the other ranks, train, part. port: of the launcher's store; None: as the environment says."""
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    timeout = timedelta(seconds=TIMEOUT_S)
    try:
        if port is None:
            dist.init_process_group("gloo", init_method="env://", timeout=timeout)
        else:
            meeting: Any = dist.TCPStore(  # type: ignore[attr-defined]
                "127.0.0.1", port, is_master=False, timeout=timeout
            )
            dist.init_process_group(
                "gloo", store=meeting, rank=rank, world_size=spec.world_size, timeout=timeout
            )
    except RuntimeError as error:
        address = os.environ.get("MASTER_ADDR", "127.0.0.1")
        return failed(
            spec, Status("error", port_reason(address, os.environ.get("MASTER_PORT", str(port)), error))
        )
    from suite.runs.gloo import train_rank

    try:
        return train_rank(spec, attempt, progress)
    finally:
        dist.destroy_process_group()
