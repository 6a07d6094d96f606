"""One run of a group that is trained together: its cluster in its rows of the shared buffers, its recorder."""

from __future__ import annotations

import math
from collections.abc import Mapping

from torch import Tensor

from reference_impls import SimulatedCluster
from reference_impls.compilation import paths
from suite.runs.checkpoint import Checkpoint, Start
from suite.runs.from_spec import learning_rate, sources
from suite.runs.spec import RunSpec
from suite.training.gradients import first_difference, flatten, shapes_of, split
from suite.training.ledger_sums import LedgerSums
from suite.training.probes import AtProbes
from suite.training.record import EXPECTED_FAULTS, Outcome, Recorder
from suite.workloads import Task


class Member:
    """One run of the group, from its start or from a checkpoint."""

    def __init__(
        self,
        spec: RunSpec,
        task: Task,
        initial: Mapping[str, Tensor],
        storage: tuple[Tensor, Tensor],
        start: Start,
    ) -> None:
        self.spec = spec
        self.recorder = Recorder(spec, task.workload, start)
        self._bytes = LedgerSums(start.checkpoint.ledger if start.checkpoint else ())
        self._task = task
        self._rate = learning_rate(spec)
        self._params = storage[0]
        self._shapes = shapes_of(initial)
        self._cluster: SimulatedCluster | None = None
        storage[0].copy_(flatten(initial))
        try:
            self._cluster = SimulatedCluster(
                spec.algorithm.name,
                list(initial.values()),
                world_size=spec.world_size,
                lr=spec.lr.peak,
                seed=spec.seed,
                names=list(initial),
                bucket_bytes=spec.bucket_bytes,
                storage=storage,
                **spec.algorithm.options,
            )
            if start.checkpoint is not None:
                self._cluster.load_state_dict(dict(start.checkpoint.state))
        except EXPECTED_FAULTS as error:
            self.recorder.fault(error)

    @property
    def cluster(self) -> SimulatedCluster | None:
        """The cluster; None when the run has ended."""
        return self._cluster if self.recorder.status is None else None

    def step(self, step: int, loss: float, probes: AtProbes) -> None:
        """Apply the gradients in the rows, and those at the method's probes, unless the run has ended."""
        if self.recorder.status is None:
            self.recorder.loss(loss)
        if self.recorder.status is not None or self._cluster is None:
            return
        before = paths()
        self._cluster.observe(loss=loss)
        try:
            self._cluster.step(lr=self._rate(step), probes=probes)
        except EXPECTED_FAULTS as error:
            self.recorder.fault(error)
            return
        self._bytes.take(self._cluster.ledger)
        self.recorder.step(self._cluster.kind, taken(before, paths()))

    def evaluate(self, step: int) -> None:
        """Evaluate rank 0's parameters as they are after this step."""
        if self.recorder.status is None:
            scores = self._task.evaluate(
                {name: rows[0] for name, rows in split(self._params, self._shapes).items()}
            )
            sent = math.fsum(self._bytes.wire_bytes().values()) / self.spec.world_size
            self.recorder.evaluation(scores, self._rate(step), sent)

    def compare_replicas(self) -> None:
        """At the end all ranks must hold the same bits: what was evaluated would else be one rank's own model."""
        if self.recorder.status is not None:
            return
        difference = first_difference(self._params, self._shapes)
        if difference:
            self.recorder.end("invalid", difference)

    def checkpoint(self, train_s: float) -> Checkpoint | None:
        """All that the run needs to go on, `train_s` seconds into this attempt; None when it has ended, or ends now."""
        if self.cluster is None:
            return None
        try:
            state = self.cluster.state_dict()
        except EXPECTED_FAULTS as error:
            self.recorder.fault(error)
            return None
        self._bytes.take(self.cluster.ledger)
        return Checkpoint(
            run_id=self.spec.run_id,
            source=sources(self.spec)["algorithm"],
            step=self.cluster.steps,
            train_s=self.recorder.trained_s(train_s),
            recorder=self.recorder.state(),
            ledger=self._bytes.rows(),
            state=state,
        )

    def outcome(self, train_s: float) -> Outcome:
        """Close the run, `train_s` seconds into this attempt."""
        return self.recorder.outcome(self._bytes.rows(), train_s, sources(self.spec))


def taken(
    before: Mapping[str, Mapping[str, int]], after: Mapping[str, Mapping[str, int]]
) -> dict[str, set[str]]:
    """Which paths each compiled function took between two counts."""
    grown = {
        name: {path for path, calls in counts.items() if calls > before.get(name, {}).get(path, 0)}
        for name, counts in after.items()
    }
    return {name: found for name, found in grown.items() if found}
