"""Writing down what the steps of a rank ask for.

`RequestLedger` counts the bytes of a rank as every ledger does, and besides writes down what was asked, and where in the step:
in a simulation as the training goes on, or of one rank alone, which is how `bandwise.costs` asks a method for its steps.
"""

from __future__ import annotations

from collections.abc import Sequence

from reference_impls.algorithm import Shard
from reference_impls.collectives import Collective
from reference_impls.drivers.engine import Engine
from reference_impls.drivers.ledger import Ledger
from reference_impls.drivers.trace import Untraced
from reference_impls.requests import Bucket, Request, Step


class RequestLedger(Ledger):
    """The ledger of a rank that writes down its steps; takes the place of the engine's own.

    Args:
        engine: Of the rank, or of all ranks of a simulation, whose first one is written down.
        shards: Of that rank.

    Equal steps are one object in `steps`, so that a long training costs little.
    """

    def __init__(self, engine: Engine, shards: Sequence[Shard]) -> None:
        super().__init__(engine.ledgers[0].rank)
        self.steps: list[Step] = []
        self._shards = shards
        self._seen: dict[Step, Step] = {}
        self._place: str | int = "plan"
        self._asked: dict[str | int, list[Request]] = {}
        engine.ledgers = [self, *engine.ledgers[1:]]
        engine.trace = _Places(self)

    def record(self, collective: Collective, size: int) -> None:
        """Count one collective over a group of `size` ranks, and write it down."""
        super().record(collective, size)
        if size > 1:
            nbytes = collective.buffer.numel() * collective.buffer.element_size()
            dtype = str(collective.buffer.dtype).removeprefix("torch.")
            self._asked.setdefault(self._place, []).append(
                Request(collective.name, collective.stage, size, nbytes, dtype, collective.group)
            )

    def _end_step(self) -> None:
        total = sum(shard.d for shard in self._shards)
        buckets = tuple(
            Bucket(shard.d / total, tuple(self._asked.get(number, ())))
            for number, shard in enumerate(reversed(self._shards))
        )
        step = Step(
            self._shards[0].kind,
            tuple(self._asked.get("plan", ())),
            buckets,
            tuple(self._asked.get("after", ())),
        )
        self.steps.append(self._seen.setdefault(step, step))


class _Places(Untraced):
    """Tells the ledger where in a step, and which bucket, is at work."""

    def __init__(self, ledger: RequestLedger) -> None:
        super().__init__()
        self._ledger = ledger

    def enter(self, phase: str | None) -> str | None:
        """`plan` begins a step; what comes after it belongs to no bucket until one is at work."""
        if phase == "plan":
            self._ledger._asked = {}
            self._ledger._place = "plan"
        elif self._ledger._place == "plan":
            self._ledger._place = "after"
        return None

    def at(self, submission: int | None) -> None:
        """What is asked next is asked for this bucket."""
        self._ledger._place = "after" if submission is None else submission

    def end_step(self) -> None:
        """The step is whole."""
        self._ledger._end_step()
