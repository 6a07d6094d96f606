"""Carries runs out in this process and keeps their outcomes.

`bandwise run`, the local pool and cluster jobs all end here. Runs that others have settled or work on are passed
over; what an earlier attempt began is gone on with. An interruption stops all runs between two steps, with
checkpoints.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from suite.runs.checkpoint import Start
from suite.runs.spec import RunSpec
from suite.runs.store import STALE_AFTER_S, Owner, Store
from suite.training.interruption import CHECKPOINT_S, CheckpointPolicy, Hooks, Interrupted, Interruption
from suite.training.ownership import MAX_ATTEMPTS, RunOwnership
from suite.training.processes import join, launch
from suite.training.record import EXPECTED_FAULTS, Outcome, failed, fault_status
from suite.training.rendezvous import place_in_launch


def execute(
    specs: Sequence[RunSpec],
    store: Store,
    progress: Callable[[int], None] = lambda step: None,
    port: int = 0,
    *,
    owner: Owner | None = None,
    interruption: Interruption | None = None,
    checkpoint_s: float = CHECKPOINT_S,
    max_attempts: int = MAX_ATTEMPTS,
    stale_after_s: float = STALE_AFTER_S,
    again: bool = False,
    scheduled: bool = False,
) -> Iterator[Outcome]:
    """Train a group of runs (see `suite.runs.plan.groups`), save each outcome, then yield it. `progress`: completed steps.

    Runs on real processes start their ranks here, meeting at `port` (0: any free one); under torchrun or srun this
    process is one rank, whose own outcome is yielded, and only rank 0 saves. Results are defined on one thread: the
    caller has set `torch.set_num_threads(1)`.

    owner: who leases the runs, this process unless given. checkpoint_s: seconds between checkpoints. max_attempts: how
    often in a row a run may begin at the same step and die without a word before it ends as `error`. again: repeat what
    has settled. scheduled: a scheduler has started the ranks and will say why one of them was killed.

    Raises `StoreError` when results cannot be kept, `Interrupted` once `interruption` has been heeded, `PeersLostError` where
    `scheduled` and a rank was killed: the run is left as its last sign of life has it.
    """
    hooks = Hooks(progress, interruption=interruption or Interruption(), checkpoint_s=checkpoint_s)
    place = place_in_launch(os.environ) if specs[0].backend == "gloo" else None
    with RunOwnership(
        store, owner or Owner.here(), max_attempts=max_attempts, stale_after_s=stale_after_s, again=again
    ) as ownership:
        if place is not None:
            yield from join(specs, store, ownership, hooks, place, scheduled=scheduled)
            return
        waiting = list(dict.fromkeys(specs))
        while taken := ownership.take(waiting):  # once more at the end: others may have given some back
            waiting = [spec for spec in waiting if spec not in taken]
            starts = ownership.starts(taken)
            for part in ownership.parts(taken, starts):
                own = {spec.run_id: starts.pop(spec.run_id) for spec in part}
                yield from _Part(part, own, store, ownership, hooks, port).carry_out()


@dataclass(frozen=True)
class _Part:
    """Leased runs that stand at the same step and are trained together."""

    specs: Sequence[RunSpec]
    starts: dict[str, Start]
    store: Store
    ownership: RunOwnership
    hooks: Hooks
    port: int

    def carry_out(self) -> Iterator[Outcome]:
        """Begin the runs, train them, and keep how they end."""
        specs = []
        for spec in self.specs:
            begun = self.ownership.begin(spec, self.starts.pop(spec.run_id), len(self.specs))
            if isinstance(begun, Start):
                self.starts[spec.run_id] = begun
                specs.append(spec)
            elif self.ownership.end(begun):
                yield begun
        try:
            for outcome in self._train(specs):
                if self.ownership.end(outcome):
                    yield outcome
        except Interrupted as interrupted:
            self.ownership.interrupt(interrupted.run_ids, interrupted.reason)
            raise

    def _train(self, specs: Sequence[RunSpec]) -> Iterator[Outcome]:
        """The outcomes as they come. What stops the whole group before its runs can end alone ends them all."""
        ended = set()
        try:
            for outcome in self._outcomes(specs):
                ended.add(outcome.run_id)
                yield outcome
        except EXPECTED_FAULTS as error:
            for spec in specs:
                if spec.run_id not in ended:
                    yield failed(spec, fault_status(error))

    def _outcomes(self, specs: Sequence[RunSpec]) -> Iterator[Outcome]:
        if specs and specs[0].backend == "simulated":
            from suite.training.train import train_group

            hooks = self.ownership.hooks(specs[0], self.hooks)
            policy = CheckpointPolicy(hooks.interruption, hooks.checkpoint_s)
            yield from train_group(
                specs, self.starts, hooks.progress, policy=policy, keep=self.ownership.keep
            )
            return
        for spec in specs:
            hooks = self.ownership.hooks(spec, self.hooks)
            yield launch(spec, self.starts[spec.run_id], self.store.folder(spec.run_id), hooks, self.port)
