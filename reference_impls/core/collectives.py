"""Collectives as plain descriptions, the verbs with which methods ask for them, and the ledger that counts their bytes.

A method never communicates: it is a generator that yields a `Collective` and is sent the answer. Drivers
(`reference_impls.runtime`) carry the descriptions out on a process group or among simulated workers, check that all
ranks ask for the same thing, and count the bytes. Authors do not write ``yield`` themselves; they write
``mean = yield from bucket.world.mean(x, "gradient")``.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, Protocol, TypeVar, cast

import torch
from torch import Tensor

from reference_impls.core.errors import UnsupportedError, UsageError

if TYPE_CHECKING:
    import pandas as pd


T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class Collective:
    """One collective operation, as one rank asks for it.

    `buffer` is 1-D, contiguous and has at least one element. `stage` names the purpose ("signs-up"): ledger and
    mismatch check key on it. `group` is the name of the group of ranks that takes part.
    """

    buffer: Tensor
    stage: str
    group: str = "world"

    name: ClassVar[str] = "collective"

    def signature(self) -> tuple[str, ...]:
        """What all ranks of the group must agree on, as short strings."""
        return (
            self.name,
            self.stage,
            self.group,
            str(self.buffer.numel()),
            str(self.buffer.dtype).removeprefix("torch."),
        )

    def payload_bytes(self) -> int:
        """Bytes of the buffer that this rank hands to the collective."""
        return self.buffer.numel() * self.buffer.element_size()

    @staticmethod
    def sent(payload: float, size: int) -> float:
        """Bytes that a rank sends in the bandwidth-optimal form, which hands over `payload` bytes, over `size` ranks."""
        raise NotImplementedError

    def wire_bytes(self, size: int) -> float:
        """Bytes that this rank sends in the bandwidth-optimal form of the collective over `size` ranks."""
        return float(self.sent(self.payload_bytes(), size))

    def received_bytes(self, size: int) -> float:
        """Bytes that this rank receives; in symmetric collectives as many as it sends."""
        return self.wire_bytes(size)


@dataclass(frozen=True, slots=True, eq=False)
class AllReduce(Collective):
    """Element-wise sum or maximum over all ranks. Answers *in* its buffer. Ring: 2 (n-1)/n of the payload."""

    op: Literal["sum", "max"] = "sum"
    name: ClassVar[str] = "all-reduce"

    def signature(self) -> tuple[str, ...]:
        return (*Collective.signature(self), self.op)

    @staticmethod
    def sent(payload: float, size: int) -> float:
        return 2 * (size - 1) * payload / size


@dataclass(frozen=True, slots=True, eq=False)
class AllGather(Collective):
    """[k] -> [n, k], row j from rank j. Ring: n-1 times the payload."""

    name: ClassVar[str] = "all-gather"

    @staticmethod
    def sent(payload: float, size: int) -> float:
        return (size - 1) * payload


@dataclass(frozen=True, slots=True, eq=False)
class AllToAll(Collective):
    """[n * k] -> [n, k]: piece j goes to rank j, row j came from rank j. (n-1)/n of the payload."""

    name: ClassVar[str] = "all-to-all"

    @staticmethod
    def sent(payload: float, size: int) -> float:
        return (size - 1) * payload / size


@dataclass(frozen=True, slots=True, eq=False)
class SendRecv(Collective):
    """To someone or nobody, from someone or nobody; every rank of the group takes part. Answers [k] or None."""

    to: int | None = None
    source: int | None = None
    name: ClassVar[str] = "send-recv"

    def payload_bytes(self) -> int:
        return Collective.payload_bytes(self) if self.to is not None else 0

    @staticmethod
    def sent(payload: float, size: int) -> float:
        return payload

    def received_bytes(self, size: int) -> float:
        return float(Collective.payload_bytes(self)) if self.source is not None else 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Start:
    """Start a whole exchange in the background; answers a `Pending` at once."""

    exchange: Exchange[Any]


@dataclass(frozen=True, slots=True, eq=False)
class Finish:
    """Wait for a started exchange; answers its result."""

    pending: Pending


@dataclass(slots=True, eq=False)
class Pending:
    """A started exchange. Its driver keeps it moving; methods only carry it from one step to a later one."""

    in_flight: Any = None
    rank_index: int = 0
    result: Any = None
    done: bool = False


Request = Collective | Start | Finish
Exchange = Generator[Request, Any, T]


def start(exchange: Exchange[T]) -> Exchange[Pending]:
    """Let `exchange` run in the background. It owns the tensors and state it touches until it is finished."""
    return cast(Pending, (yield Start(exchange)))


def finish(pending: Pending) -> Exchange[Any]:
    """The result of a started exchange, waiting for it if need be."""
    return (yield Finish(pending))


def _checked(x: Tensor, stage: str) -> Tensor:
    if isinstance(x, Generator):
        raise UsageError(
            f"stage {stage!r}: got a generator instead of a tensor; a `yield from` is missing before it"
        )
    if x.dim() != 1 or not x.is_contiguous() or x.numel() == 0:
        raise UnsupportedError(
            f"stage {stage!r}: collectives take 1-D contiguous tensors of at least one element, got shape "
            f"{tuple(x.shape)} with strides {x.stride()}; flatten it or send one padding element"
        )
    return x


@dataclass(frozen=True, slots=True)
class Group:
    """The ranks that take part in a collective, seen from one of them. All verbs are exchanges (``yield from``)."""

    name: str
    rank: int
    size: int

    def sum(self, x: Tensor, stage: str) -> Exchange[Tensor]:
        """Sum over ranks, in place: `x` is consumed and is the answer."""
        yield AllReduce(_checked(x, stage), stage, self.name, "sum")
        return x

    def max(self, x: Tensor, stage: str) -> Exchange[Tensor]:
        """Maximum over ranks, in place. NaN counts as +inf, since gloo's maximum may lose a NaN."""
        if x.is_floating_point():
            _checked(x, stage).nan_to_num_(nan=torch.inf, posinf=torch.inf, neginf=-torch.inf)
        yield AllReduce(_checked(x, stage), stage, self.name, "max")
        return x

    def mean(self, x: Tensor, stage: str) -> Exchange[Tensor]:
        """Mean over ranks, in place: a sum, then a division, on every backend."""
        yield AllReduce(_checked(x, stage), stage, self.name, "sum")
        return x.div_(self.size)

    def gather(self, x: Tensor, stage: str) -> Exchange[Tensor]:
        """[k] -> [n, k]: row j is what rank j gave. Only reads `x`."""
        return cast(Tensor, (yield AllGather(_checked(x, stage), stage, self.name)))

    def all_to_all(self, x: Tensor, stage: str) -> Exchange[Tensor]:
        """[n * k] -> [n, k]: piece j of `x` goes to rank j, row j is the piece that rank j sent here. Only reads `x`."""
        if _checked(x, stage).numel() % self.size:
            raise UnsupportedError(
                f"stage {stage!r}: {x.numel()} elements do not split over {self.size} ranks; pad them"
            )
        return cast(Tensor, (yield AllToAll(x, stage, self.name)))

    def send_recv(self, x: Tensor, stage: str, to: int | None, source: int | None) -> Exchange[Tensor | None]:
        """Send `x` to rank `to` (or nobody) and answer what rank `source` sent (or None). All ranks take part."""
        return cast("Tensor | None", (yield SendRecv(_checked(x, stage), stage, self.name, to, source)))


class Backend(Protocol):
    """Carries collectives out for the local `ranks` of `size`."""

    ranks: Sequence[int]
    size: int

    def launch(self, requests: Sequence[Collective]) -> Any:
        """Begin one collective; `requests[i]` comes from local rank `ranks[i]`. Answers a handle."""

    def wait(self, handle: Any) -> list[Any]:
        """Wait for a launched collective; one answer per local rank."""


# ---- the ledger -------------------------------------------------------------------------------------------------------


KEPT_STEPS: Final = 1000
"""Steps whose rows a ledger keeps apart on real processes."""
EARLIER: Final = -1
"""What stands for their number where older steps were added up."""
_AMOUNTS: Final = {
    "calls": "int64",
    "payload_bytes": "int64",
    "wire_bytes": "float64",
    "received_bytes": "float64",
}
_COLUMNS: Final = ["step", "kind", "stage", "collective", "group", *_AMOUNTS]
_Key = tuple[str, str, str, str]
_Rows = dict[_Key, list[float]]


@dataclass
class Ledger:
    """What one rank really handed to collectives, counted by the engine and by nobody else.

    Two numbers a call: *payload* (bytes of the buffer given to the collective) and *wire* (`Collective.wire_bytes`).

    keep: of how many steps, the last that sent anything, rows are kept apart, while those of older ones are added up; None is of
    all. step, kind: set by the driver before it carries anything out.
    """

    rank: int
    keep: int | None = None
    step: int = 0
    kind: str = "step"
    _rows: dict[int, _Rows] = field(default_factory=lambda: {EARLIER: {}})

    def record(self, collective: Collective, size: int) -> None:
        """Count one collective over a group of `size` ranks."""
        numbers = [
            1,
            collective.payload_bytes(),
            collective.wire_bytes(size),
            collective.received_bytes(size),
        ]
        self._count((self.kind, collective.stage, collective.name, collective.group), numbers)

    def add(self, other: Ledger) -> None:
        """Count what `other` has counted, in this step."""
        for rows in other._rows.values():
            for key, numbers in rows.items():
                self._count(key, numbers)

    def _count(self, key: _Key, numbers: Sequence[float]) -> None:
        if self.step not in self._rows:
            self._rows[self.step] = {}
            if self.keep is not None and len(self._rows) > 1 + self.keep:
                oldest = next(step for step in self._rows if step != EARLIER)
                for own, earlier in self._rows.pop(oldest).items():
                    _add(self._rows[EARLIER], own, earlier)
        _add(self._rows[self.step], key, numbers)

    def rows(self) -> list[dict[str, Any]]:
        """One row per step, kind, stage, collective and group, in the order of first use; those of `EARLIER` first."""
        return [
            dict(zip(_COLUMNS, (step, *key, *numbers), strict=True))
            for step, rows in self._rows.items()
            for key, numbers in rows.items()
        ]

    def totals(self) -> list[dict[str, Any]]:
        """The rows summed over steps."""
        sums: _Rows = {}
        for rows in self._rows.values():
            for key, numbers in rows.items():
                _add(sums, key, numbers)
        return [dict(zip(_COLUMNS[1:], (*key, *numbers), strict=True)) for key, numbers in sums.items()]

    def clear(self) -> None:
        """Forget everything counted so far."""
        self._rows = {EARLIER: {}}


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

        if rank is None:
            rows = [{"rank": r, **row} for r, ledger in self._ledgers.items() for row in ledger.rows()]
            return pd.DataFrame(rows, columns=["rank", *_COLUMNS]).astype(_AMOUNTS)
        rank = next(iter(self._ledgers)) if rank == "own" else rank
        if rank not in self._ledgers:
            raise UsageError(
                f"the bytes of rank {rank} are not counted here, only those of {', '.join(map(str, self._ledgers))}: "
                "leave rank out, or ask on that rank"
            )
        return pd.DataFrame(self._ledgers[rank].rows(), columns=_COLUMNS).astype(_AMOUNTS)

    def totals(self) -> list[dict[str, Any]]:
        """Rows summed over steps, one per rank, kind, stage, collective and group; needs no pandas."""
        return [
            {"rank": rank, **row} for rank, ledger in sorted(self._ledgers.items()) for row in ledger.totals()
        ]

    def clear(self) -> None:
        """Forget everything counted so far."""
        for ledger in self._ledgers.values():
            ledger.clear()


def _add(rows: _Rows, key: _Key, numbers: Sequence[float]) -> None:
    row = rows.setdefault(key, [0, 0, 0.0, 0.0])
    for i, number in enumerate(numbers):
        row[i] += number


def piece_size(d: int, n: int, multiple: int = 8) -> int:
    """Elements of one of n equal pieces of a vector of d elements, padded to `multiple` (`Bucket.chunk_size`)."""
    return -(-d // (multiple * n)) * multiple
