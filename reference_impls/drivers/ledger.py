"""The byte ledger: what each rank really handed to collectives, counted by the driver and by nobody else.

Two numbers a call: *payload* (bytes of the buffer given to the collective) and *wire* (bytes that the rank sends, and
receives, in the bandwidth-optimal form of that collective over its group; `Collective.wire_bytes`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from reference_impls.collectives import Collective
from reference_impls.errors import UsageError

if TYPE_CHECKING:
    import pandas as pd

_NUMBERS = ("calls", "payload_bytes", "wire_bytes", "received_bytes")
_Key = tuple[int, str, str, str, str]


@dataclass
class Ledger:
    """The bytes of one rank. `step` and `kind` are set by the driver before it carries anything out."""

    rank: int
    step: int = 0
    kind: str = "step"
    _rows: dict[_Key, list[float]] = field(default_factory=dict)

    def record(self, collective: Collective, size: int) -> None:
        """Count one collective over a group of `size` ranks."""
        key = (self.step, self.kind, collective.stage, collective.name, collective.group)
        row = self._rows.setdefault(key, [0, 0, 0.0, 0.0])
        row[0] += 1
        row[1] += collective.payload_bytes()
        row[2] += collective.wire_bytes(size)
        row[3] += collective.received_bytes(size)

    def rows(self) -> list[dict[str, Any]]:
        """One row per step, kind, stage, collective and group, in the order of first use."""
        names = ("step", "kind", "stage", "collective", "group", *_NUMBERS)
        return [dict(zip(names, (*key, *numbers), strict=True)) for key, numbers in self._rows.items()]

    def clear(self) -> None:
        """Forget everything counted so far."""
        self._rows.clear()


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
            Table of step, kind, stage, collective, group, calls, payload_bytes, wire_bytes, received_bytes.

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
