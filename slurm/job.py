"""What one job does on its node: train groups of runs one after another, as the local pool would.

It is submitit's `Checkpointable` over the run store: what a run has reached lies in its own folder, so that a job which is
started again goes on by doing the same. Signals only raise a flag, at which the runs under way are saved between two steps:

- SIGUSR2, shortly before the time limit: submitit then starts the job again, as often as the profile allows;
- SIGTERM, on preemption and `scancel`: whether it starts again is Slurm's affair.

A fault of the program ends the runs of its group as ``error``; the other groups go on. Where several tasks train one run
together, every task does all of this, and the first one alone writes.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from submitit import JobEnvironment
from submitit.core.utils import UncompletedJobError
from submitit.helpers import Checkpointable

from slurm.states import BEGUN, REASONS, TIME_LIMIT
from suite.runs.files import StoreError
from suite.runs.spec import RunSpec
from suite.runs.store import Status, Store, failed
from suite.training.checkpoint import Interrupted, Interruption
from suite.training.processes import PeersLostError


@dataclass
class TrainRuns(Checkpointable):
    """The work of a job.

    called: how commands name the sweep. groups: runs that are trained together, as `RunSpec.as_dict` made them.
    device: torch's, where simulated runs are computed.
    """

    called: str
    results_root: str
    groups: Sequence[Sequence[Mapping[str, Any]]]
    timeout_min: int
    max_requeues: int
    checkpoint_s: float
    device: str = "cpu"

    def __call__(self) -> None:
        """Train what has no result yet."""
        go_on, interruption = signal.getsignal(signal.SIGUSR2), Interruption()
        for number in REASONS:
            signal.signal(number, lambda got, _: interruption.request(REASONS[signal.Signals(got)]))
        turn = Turn.of(JobEnvironment())
        if turn.tasks > 1:
            os.environ.update(meeting_point(os.environ))
        sys.stderr.write(
            f"{BEGUN} {turn.job_id}, turn {turn.restarts + 1}: {len(self.groups)} groups of runs\n"
        )
        import torch  # after the signals are listened to: it takes seconds

        torch.set_num_threads(1)  # as in the local pool: the bits of a result may depend on it
        store = Store(self.results_root)
        groups = [[RunSpec.from_dict(dict(spec)) for spec in group] for group in self.groups]
        every = [spec for group in groups for spec in group]
        if turn.tasks > 1:
            groups = [every]  # ranks meet once in a job
        try:
            if turn.restarts > self.max_requeues:
                return turn.end(every, self._worn_out(turn, every, store), store)
            for group in groups:
                self._train(group, turn, interruption, store)
        except Interrupted as interrupted:
            if interrupted.reason == TIME_LIMIT and turn.rank == 0:
                self._again(go_on, turn, every, store)
        except (StoreError, PeersLostError) as error:  # who looks next says how the job ended, by its log
            sys.stderr.write(f"{error}\n")
            sys.exit(1)

    def _train(self, group: Sequence[RunSpec], turn: Turn, interruption: Interruption, store: Store) -> None:
        """Train one group. Among several tasks a fault of the program is raised, which ends them all."""
        from suite.training.execute import execute

        if turn.tasks == 1 and interruption.requested is not None:
            raise Interrupted(interruption.requested, [spec.run_id for spec in group])
        try:
            for _ in execute(
                group,
                store,
                owner=turn.owner,
                interruption=interruption,
                checkpoint_s=self.checkpoint_s,
                scheduled=True,
                device=self.device,
            ):
                pass
        except (Interrupted, StoreError, PeersLostError):
            raise
        except Exception as fault:
            traceback.print_exc()
            reason = f"the program failed in Slurm job {turn.job_id}: {type(fault).__name__}: {fault}"
            turn.end(group, Status("error", f"{reason}; {self._retry('error')}"), store)
            if turn.tasks > 1:
                raise

    def _again(self, go_on: Any, turn: Turn, every: Iterable[RunSpec], store: Store) -> None:
        """Let submitit start the job again, which ends this process; or note that the runs have no more turns."""
        reason = f"Slurm job {turn.job_id} reached its {self.timeout_min} min"
        try:
            go_on(signal.SIGUSR2, None)
        except UncompletedJobError:
            reason += f" for the last of {turn.restarts + 1} times: raise timeout_min or max_requeues"
        except (OSError, subprocess.SubprocessError) as error:
            reason += f" and cannot be requeued ({error})"
        turn.end(every, Status("timeout", f"{reason}; {self._retry('timeout')}"), store)

    def _worn_out(self, turn: Turn, every: Iterable[RunSpec], store: Store) -> Status:
        """The end of a job that was started more often than it may: it was preempted, or lost its nodes."""
        saved = any(store.status(spec.run_id).state == "interrupted" for spec in every)
        state, what = ("preempted", "preempted") if saved else ("node_lost", "lost with its node")
        often = f"Slurm job {turn.job_id} was {what} {turn.restarts} times, and max_requeues is {self.max_requeues}"
        return Status(state, f"{often}; {self._retry(state)}")

    def _retry(self, state: str) -> str:
        return f"again with `bandwise sweep {self.called} --retry {state}`"


@dataclass(frozen=True)
class Turn:
    """Which task of which job this process is. restarts: how often Slurm has started the job again."""

    job_id: str
    rank: int
    tasks: int
    restarts: int

    @classmethod
    def of(cls, job: JobEnvironment) -> Turn:
        """The turn of this process's job."""
        return cls(
            job.job_id, job.global_rank, job.num_tasks, int(os.environ.get("SLURM_RESTART_COUNT", "0"))
        )

    @property
    def owner(self) -> str:
        """The name under which the job holds runs: the same after it was started again."""
        return f"slurm {self.job_id}"

    def end(self, specs: Iterable[RunSpec], status: Status, store: Store) -> None:
        """Note this end of the runs that have none and that nobody else is at. Raises `StoreError`."""
        for spec in specs if self.rank == 0 else ():
            note = store.note(spec.run_id)
            elsewhere = note is not None and note.state == "running" and note.owner not in {"", self.owner}
            if not elsewhere and store.result(spec.run_id) is None:
                failed(spec, status).save(store)


def meeting_point(environment: Mapping[str, str]) -> dict[str, str]:
    """Torch's variables (``env://``) of a task among several, by Slurm's: the node that launched, a port of the job's own."""
    return {
        "RANK": environment["SLURM_PROCID"],
        "WORLD_SIZE": environment["SLURM_NTASKS"],
        "MASTER_ADDR": environment.get("SLURM_LAUNCH_NODE_IPADDR", "127.0.0.1"),
        "MASTER_PORT": str(20_000 + int(environment["SLURM_JOB_ID"]) % 10_000),
        "TORCHELASTIC_RESTART_COUNT": environment.get("SLURM_RESTART_COUNT", "0"),
        "TORCHELASTIC_USE_AGENT_STORE": "False",
    }
