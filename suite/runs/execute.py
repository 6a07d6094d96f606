"""Carries runs out in this process and keeps their outcomes.

`bandwise run`, the local pool and cluster jobs all end here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence

from suite.runs.interruption import Interrupted, Interruption
from suite.runs.launch import Place, check_size, join, launch, place_in_launch
from suite.runs.lease import Owner
from suite.runs.record import EXPECTED_FAULTS, Outcome, failed, fault_status
from suite.runs.spec import RunSpec
from suite.runs.store import Store


def execute(
    specs: Sequence[RunSpec],
    store: Store,
    progress: Callable[[int], None] = lambda step: None,
    port: int = 0,
    *,
    owner: Owner | None = None,
    interruption: Interruption | None = None,
    checkpoint_s: float = 60.0,
) -> Iterator[Outcome]:
    """Train a group of runs (see `train.groups`), save each outcome, then yield it. `progress`: completed steps.

    Runs on real processes start their ranks here, meeting at `port` (0: any free one); under torchrun or srun this
    process is one rank, whose own outcome is yielded, and only rank 0 saves. Results are defined on one thread: the
    caller has set `torch.set_num_threads(1)`. Raises `StoreError` when results cannot be kept.
    """
    place = place_in_launch(os.environ) if specs[0].backend == "gloo" else None
    if place is not None:
        for spec in specs:
            check_size(spec, place)
    if place is not None and place.rank > 0:
        for spec in specs:
            yield join(spec, place, 1, progress)
        return
    if owner is not None:
        specs = [spec for spec in specs if not store.status(spec.run_id).settled]
    if not specs:
        return
    attempts = {spec.run_id: store.begin(spec) for spec in specs}

    def alive(step: int) -> None:
        for run_id in attempts:
            store.beat(run_id)
        progress(step)
        if interruption is not None and interruption.requested is not None:
            raise Interrupted(interruption.requested, list(under_way))

    under_way = {spec.run_id: spec for spec in specs}
    try:
        for outcome in _train(specs, attempts, alive, place, port):
            outcome.save(store)
            del under_way[outcome.run_id]
            yield outcome
    finally:
        for run_id in under_way:  # interrupted, or the store is full
            store.abandon(run_id)


def _train(
    specs: Sequence[RunSpec],
    attempts: dict[str, int],
    alive: Callable[[int], None],
    place: Place | None,
    port: int,
) -> Iterator[Outcome]:
    """The outcomes as they come. What stops the whole group before its runs can end alone ends them all."""
    ended = set()
    try:
        for outcome in _train_all(specs, attempts, alive, place, port):
            ended.add(outcome.run_id)
            yield outcome
    except EXPECTED_FAULTS as error:
        for spec in specs:
            if spec.run_id not in ended:
                yield failed(spec, fault_status(error))


def _train_all(
    specs: Sequence[RunSpec],
    attempts: dict[str, int],
    alive: Callable[[int], None],
    place: Place | None,
    port: int,
) -> Iterator[Outcome]:
    if specs[0].backend == "simulated":
        from suite.runs.train import train_group

        yield from train_group(specs, attempts, alive)
        return
    for spec in specs:
        attempt = attempts[spec.run_id]
        yield launch(spec, attempt, alive, port) if place is None else join(spec, place, attempt, alive)
