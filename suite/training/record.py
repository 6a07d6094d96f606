"""What is kept of a run while it trains: its curve, its divergence, its bytes; the same for every backend.

A run has diverged when a training loss or the final metric is not finite, or when the training loss, mean over
workers, rises above `EXPLOSION` times the greater of 1 and its first value.

The driver's ledger keeps a row a step; `LedgerSums` empties it step by step into sums, which a checkpoint can carry. Numbers
are added in the order of steps however often a run is interrupted, so that the sums are the same floats.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from suite.runs.files import finite
from suite.runs.provenance import provenance
from suite.runs.spec import RunSpec
from suite.runs.store import Outcome, Status, blank_result
from suite.training.checkpoint import Start

_KEYS: Final = ("rank", "kind", "stage", "collective", "group")


class LedgerSums:
    """Rows of `Ledgers.totals`, one a rank, kind, stage, collective and group. rows: those of an earlier attempt."""

    def __init__(self, rows: Iterable[Mapping[str, Any]] = ()) -> None:
        self._rows = {tuple(row[key] for key in _KEYS): dict(row) for row in rows}

    def take(self, ledger: Ledgers) -> None:
        """Add what the ledger holds and empty it; once a step."""
        for row in ledger.totals():
            key = tuple(row[key] for key in _KEYS)
            total = self._rows.get(key)
            if total is None:
                self._rows[key] = row
                continue
            for name, value in row.items():
                if name not in _KEYS:
                    total[name] += value
        ledger.clear()

    def wire_bytes(self) -> dict[int, float]:
        """Bytes that each rank has sent so far, added as `record.bytes_summary` does; a rank that sent nothing is not in it."""
        sent: dict[int, float] = {}
        for row in self._rows.values():
            sent[row["rank"]] = sent.get(row["rank"], 0.0) + row["wire_bytes"]
        return sent

    def rows(self) -> list[dict[str, Any]]:
        """The rows so far, rank by rank, in the order of first use."""
        return sorted((dict(row) for row in self._rows.values()), key=lambda row: int(row["rank"]))


if TYPE_CHECKING:
    from reference_impls.collectives import Ledgers
    from suite.workloads import Workload

EXPLOSION: Final = 100.0
EXPECTED_FAULTS: Final = (RuntimeError, ValueError, ArithmeticError, MemoryError)
"""What a method or a collective may raise in a step; anything else is a fault of the program and ends the process."""

_NEW: Final = Start()


class Recorder:
    """Follows one run step by step; `outcome` closes it. `status` is None while all is well. gpu: its name, if on one."""

    def __init__(self, spec: RunSpec, workload: Workload, start: Start = _NEW, gpu: str = "") -> None:
        provenance()  # looked up now: at the end the checkout may hold other code
        self.spec = spec
        self._gpu = gpu
        self.status: Status | None = None
        self._workload = workload
        self._attempt = start.attempt
        self._lost_s = start.lost_s
        self._earlier_s = start.checkpoint.train_s if start.checkpoint else 0.0
        held = start.checkpoint.recorder if start.checkpoint else {}
        self.metrics: list[dict[str, Any]] = [dict(line) for line in held.get("metrics", ())]
        self._final: dict[str, float] = {}
        self._kinds: Counter[str] = Counter(held.get("kinds"))
        self._paths: dict[str, set[str]] = {name: set(took) for name, took in held.get("paths", {}).items()}
        self._first_loss: float | None = held.get("first_loss")
        self._last_loss: float | None = held.get("last_loss")
        self._steps: int = held.get("steps", 0)

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps of it, as plain data."""
        return {
            "metrics": [dict(line) for line in self.metrics],
            "kinds": dict(self._kinds),
            "paths": {name: sorted(taken) for name, taken in self._paths.items()},
            "first_loss": self._first_loss,
            "last_loss": self._last_loss,
            "steps": self._steps,
        }

    def trained_s(self, train_s: float) -> float:
        """Seconds trained over all attempts, `train_s` of them in this one."""
        return self._earlier_s + train_s

    def loss(self, value: float) -> None:
        """Note the mean training loss of the step under way; sets `status` when the run has diverged."""
        step = self._steps + 1
        if self._first_loss is None:
            self._first_loss = value
        if not math.isfinite(value):
            self.end("diverged", f"training loss is {value} at step {step}")
        elif value > EXPLOSION * max(1.0, self._first_loss):
            self.end(
                "diverged", f"training loss {value:.3g} at step {step}, {self._first_loss:.3g} at the first"
            )
        self._last_loss = value

    def step(self, kind: str, paths: Mapping[str, set[str]]) -> None:
        """Note a completed step: its kind and which path each compiled function took in it."""
        self._steps += 1
        self._kinds[kind] += 1
        for name, taken in paths.items():
            self._paths.setdefault(name, set()).update(taken)

    def evaluation(self, scores: Mapping[str, float], lr: float, wire_bytes: float) -> None:
        """Note a point of the curve, after the last completed step. wire_bytes: sent so far, mean over ranks.

        Raises ValueError for scores without the workload's metric; so does `judged`.
        """
        self._require_metric(scores)
        self.metrics.append(
            {
                "step": self._steps,
                "lr": lr,
                "train_loss": None if self._last_loss is None else finite(self._last_loss),
                "wire_bytes": wire_bytes,
                **{name: finite(value) for name, value in scores.items()},
            }
        )

    def judged(self, scores: Mapping[str, float]) -> None:
        """Note what the whole test part says at the end; what is not finite means divergence."""
        self._require_metric(scores)
        self._final = dict(scores)
        if not all(math.isfinite(value) for value in scores.values()):
            self.end("diverged", "the final metric is not finite")

    def _require_metric(self, scores: Mapping[str, float]) -> None:
        if (metric := self._workload.metric) not in scores:
            raise ValueError(
                f"workload {self._workload.name} is judged by {metric}, and its evaluate or watch answers "
                f"{', '.join(scores) or 'nothing'}: answer {metric} too"
            )

    def fault(self, error: Exception) -> None:
        """Note an exception raised by the method or a collective."""
        status = fault_status(error)
        self.end(status.state, f"step {self._steps + 1}: {status.reason}")

    def end(self, state: str, reason: str) -> None:
        """Set the terminal status; the first one stands."""
        if self.status is None:
            self.status = Status(state, reason)

    def outcome(
        self, ledger: Sequence[Mapping[str, Any]], train_s: float, sources: Mapping[str, Any]
    ) -> Outcome:
        """Close the run: `done` unless something ended it.

        ledger: rows summed over steps, for all ranks. train_s: of this attempt.
        """
        status = self.status or Status("done")
        metric = self._workload.metric
        values = [line[metric] for line in self.metrics if line[metric] is not None]
        final = self._final if status.state == "done" else {}
        blank = blank_result(self.spec, status)
        result = {
            **blank,
            "provenance": {**blank["provenance"], **({"gpu": self._gpu} if self._gpu else {})},
            "attempt": self._attempt,
            "metric": metric,
            "direction": self._workload.direction,
            "directions": {name: self._workload.direction_of(name) for name in final},
            "final": final,
            "best": (max if self._workload.direction == "higher" else min)(values, default=None),
            "train_loss_last": None if self._last_loss is None else finite(self._last_loss),
            "steps": self._steps,
            "steps_by_kind": dict(sorted(self._kinds.items())),
            "bytes": bytes_summary(ledger, self.spec.world_size),
            "path": {name: "/".join(sorted(taken)) for name, taken in sorted(self._paths.items())},
            "sources": dict(sources),
            "train_s": round(self.trained_s(train_s), 4),
            "lost_s": self._lost_s,
        }
        return Outcome(self.spec.run_id, status, result, self.metrics)


def fault_status(error: Exception) -> Status:
    """The status of a run that ended with an exception."""
    out_of_memory = (
        isinstance(error, MemoryError) or "allocate memory" in str(error) or "out of memory" in str(error)
    )
    return Status("oom" if out_of_memory else "error", f"{type(error).__name__}: {error}")


def bytes_summary(ledger: Sequence[Mapping[str, Any]], world_size: int) -> dict[str, Any]:
    """Mean and maximum over ranks of all bytes of the run, and the rows they are summed from."""
    summary: dict[str, Any] = {}
    for name in ("payload", "wire"):
        per_rank = [0.0] * world_size
        for row in ledger:
            per_rank[row["rank"]] += row[f"{name}_bytes"]
        summary[f"{name}_per_rank_mean"] = math.fsum(per_rank) / world_size
        summary[f"{name}_per_rank_max"] = max(per_rank)
    return {**summary, "by": [dict(row) for row in ledger]}
