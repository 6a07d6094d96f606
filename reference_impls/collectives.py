"""Collectives as plain descriptions, and the verbs with which methods ask for them.

A method never communicates: it is a generator that yields a `Collective` and is sent the answer. Drivers
(`reference_impls.drivers`) carry the descriptions out on a process group or among simulated workers, check that all
ranks ask for the same thing, and count the bytes. Authors do not write ``yield`` themselves; they write
``mean = yield from shard.world.mean(x, "gradient")``.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, TypeVar, cast

import torch
from torch import Tensor

from reference_impls import wire
from reference_impls.errors import UnsupportedError, UsageError

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

    def wire_bytes(self, size: int) -> float:
        """Bytes that this rank sends in the bandwidth-optimal form of the collective over `size` ranks."""
        raise NotImplementedError(f"{type(self).__name__} does not say what it costs")

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

    def wire_bytes(self, size: int) -> float:
        return wire.all_reduce(self.payload_bytes(), size)


@dataclass(frozen=True, slots=True, eq=False)
class AllGather(Collective):
    """[k] -> [n, k], row j from rank j. Ring: n-1 times the payload."""

    name: ClassVar[str] = "all-gather"

    def wire_bytes(self, size: int) -> float:
        return float(wire.all_gather(self.payload_bytes(), size))


@dataclass(frozen=True, slots=True, eq=False)
class AllToAll(Collective):
    """[n * k] -> [n, k]: piece j goes to rank j, row j came from rank j. (n-1)/n of the payload."""

    name: ClassVar[str] = "all-to-all"

    def wire_bytes(self, size: int) -> float:
        return wire.all_to_all(self.payload_bytes(), size)


@dataclass(frozen=True, slots=True, eq=False)
class SendRecv(Collective):
    """To someone or nobody, from someone or nobody; every rank of the group takes part. Answers [k] or None."""

    to: int | None = None
    source: int | None = None
    name: ClassVar[str] = "send-recv"

    def payload_bytes(self) -> int:
        return Collective.payload_bytes(self) if self.to is not None else 0

    def wire_bytes(self, size: int) -> float:
        return float(self.payload_bytes())

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


class Pending:
    """A started exchange. Its driver keeps it moving; methods only carry it from one step to a later one."""

    __slots__ = ("in_flight", "rank_index", "result", "done")

    def __init__(self) -> None:
        self.in_flight: Any = None
        self.rank_index = 0
        self.result: Any = None
        self.done = False

    @classmethod
    def completed(cls, result: Any) -> Pending:
        """A pending that is already done (as loaded from a checkpoint)."""
        pending = cls()
        pending.result, pending.done = result, True
        return pending


Request = Collective | Start | Finish
Exchange = Generator[Request, Any, T]


def start(exchange: Exchange[T]) -> Exchange[Pending]:
    """Let `exchange` run in the background. It owns the tensors and slots it touches until it is finished."""
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


class Transport(Protocol):
    """Carries collectives out for the local `ranks` of `size`."""

    ranks: Sequence[int]
    size: int

    def launch(self, requests: Sequence[Collective]) -> Any:
        """Begin one collective; `requests[i]` comes from local rank `ranks[i]`. Answers a handle."""

    def wait(self, handle: Any) -> list[Any]:
        """Wait for a launched collective; one answer per local rank."""
