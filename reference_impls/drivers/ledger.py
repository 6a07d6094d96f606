"""The byte ledger: what each rank really handed to collectives, counted by the driver and by nobody else.

Two numbers a call: *payload* (bytes of the buffer given to the collective) and *wire* (bytes that the rank sends, and
receives, in the bandwidth-optimal form of that collective over its group; `Collective.wire_bytes`).

A training on real processes may be long, so its ledger keeps the rows of the last `KEPT_STEPS` steps and adds up older ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

from reference_impls.collectives import Collective
from reference_impls.errors import UsageError

if TYPE_CHECKING:
    import pandas as pd

KEPT_STEPS: Final = 1000
"""Steps whose rows a ledger keeps apart on real processes."""
EARLIER: Final = -1
"""What stands for their number where older steps were added up."""
_NUMBERS = ("calls", "payload_bytes", "wire_bytes", "received_bytes")
_Key = tuple[str, str, str, str]
_Rows = dict[_Key, list[float]]


@dataclass
class Ledger:
    """The bytes of one rank. `step` and `kind` are set by the driver before it carries anything out.

    keep: of how many steps, the last that sent anything, rows are kept apart; None is of all.
    """

    rank: int
    keep: int | None = None
    step: int = 0
    kind: str = "step"
    _rows: dict[int, _Rows] = field(default_factory=dict)
    _earlier: _Rows = field(default_factory=dict)

    def record(self, collective: Collective, size: int) -> None:
        """Count one collective over a group of `size` ranks."""
        if self.step not in self._rows:
            self._rows[self.step] = {}
            if self.keep is not None and len(self._rows) > self.keep:
                for key, numbers in self._rows.pop(next(iter(self._rows))).items():
                    _add(self._earlier, key, numbers)
        numbers = [
            1,
            collective.payload_bytes(),
            collective.wire_bytes(size),
            collective.received_bytes(size),
        ]
        key = (self.kind, collective.stage, collective.name, collective.group)
        _add(self._rows[self.step], key, numbers)

    def rows(self) -> list[dict[str, Any]]:
        """One row per step, kind, stage, collective and group, in the order of first use; those of `EARLIER` first."""
        names = ("step", "kind", "stage", "collective", "group", *_NUMBERS)
        return [
            dict(zip(names, (step, *key, *numbers), strict=True))
            for step, rows in ((EARLIER, self._earlier), *self._rows.items())
            for key, numbers in rows.items()
        ]

    def clear(self) -> None:
        """Forget everything counted so far."""
        self._rows.clear()
        self._earlier.clear()


class Ledgers:
    """The ledgers of several ranks, as one table."""

    def __init__(self, ledgers: Sequence[Ledger]) -> None:
        self._ledgers = {ledger.rank: ledger for ledger in ledgers}

    def frame(self, rank: int | Literal["own"] | None = "own") -> pd.DataFrame:
        """The bytes of one rank, or of all ranks that are held here.

        Args:
            rank: A rank; ``own`` is this process's (of a simulation, rank 0); None gives all that are held here, with a
                leading column `rank`.

        Returns:
            Table of step, kind, stage, collective, group, calls, payload_bytes, wire_bytes, received_bytes. On real processes
            the steps before the last `KEPT_STEPS` are added up, as step `EARLIER`, so that sums over the table are of all.

        Raises:
            UsageError: The rank's bytes are counted in another process.
        """
        import pandas as pd  # here, since it takes half a second

        columns = ["step", "kind", "stage", "collective", "group", *_NUMBERS]
        if rank is not None:
            rank = next(iter(self._ledgers)) if rank == "own" else rank
            if rank not in self._ledgers:
                raise UsageError(
                    f"the bytes of rank {rank} are not counted here, only those of {', '.join(map(str, self._ledgers))}: "
                    "leave rank out, or ask on that rank"
                )
            return _typed(pd.DataFrame(self._ledgers[rank].rows(), columns=columns))
        rows = [{"rank": r, **row} for r, ledger in self._ledgers.items() for row in ledger.rows()]
        return _typed(pd.DataFrame(rows, columns=["rank", *columns]))

    def totals(self) -> list[dict[str, Any]]:
        """Rows summed over steps, one per rank, kind, stage, collective and group; needs no pandas."""
        return [
            {"rank": rank, **row}
            for rank, ledger in sorted(self._ledgers.items())
            for row in _sum_over_steps(ledger.rows())
        ]

    def clear(self) -> None:
        """Forget everything counted so far."""
        for ledger in self._ledgers.values():
            ledger.clear()


def _add(rows: _Rows, key: _Key, numbers: Sequence[float]) -> None:
    row = rows.setdefault(key, [0, 0, 0.0, 0.0])
    for i, number in enumerate(numbers):
        row[i] += number


def _sum_over_steps(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    sums: dict[tuple[str, ...], dict[str, Any]] = {}
    for row in rows:
        key = (row["kind"], row["stage"], row["collective"], row["group"])
        total = sums.setdefault(
            key,
            {**{k: row[k] for k in ("kind", "stage", "collective", "group")}, **dict.fromkeys(_NUMBERS, 0)},
        )
        for name in _NUMBERS:
            total[name] += row[name]
    return list(sums.values())


def _typed(table: pd.DataFrame) -> pd.DataFrame:
    return table.astype(
        {"calls": "int64", "payload_bytes": "int64", "wire_bytes": "float64", "received_bytes": "float64"}
    )
