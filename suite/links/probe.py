"""What a link is worth: round trips and collectives, timed on an initialised process group.

All ranks call the same function at the same time and get the same answer. Seconds are those of the slowest rank, from
a barrier on; a first exchange of the same size is not counted. Bits a second are the bits that a rank has to send over
the median of the seconds: for vectors of B bytes on n ranks, 2 (n - 1) / n x B in a ring all-reduce, (n - 1) x B in an
all-gather of B bytes from each, (n - 1) / n x B in an all-to-all, B where pairs exchange. Headers of the network
are not among them: TCP over Ethernet reaches 94.9 % of its link at the best.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from reference_impls.runtime.engine import all_gather_rows
from reference_impls.runtime.messages import Messages
from suite.links.link import (
    ALL_GATHER,
    ALL_REDUCE_BF16,
    ALL_REDUCE_FP32,
    ALL_TO_ALL,
    EXCHANGE,
    ROUND_TRIP,
)

TARGET_S = 0.3
LONGEST_S = 1.5  # a first exchange beyond this makes the counted ones smaller: a straggler, or a rate that is not reached
MOST_BYTES = 64 << 20  # of a buffer, all ranks may share one machine
PIECE_BYTES = 4096  # buffers are whole numbers of these on every rank


@dataclass(frozen=True)
class Measurement:
    """One thing measured.

    what: ``round-trip 0-<rank>`` or a collective's name. bytes: of the buffer on each rank.
    seconds: one a repeat. bits_per_s: see the module.
    """

    what: str
    bytes: int
    seconds: tuple[float, ...]
    bits_per_s: float


@dataclass(frozen=True)
class _Kind:
    """A collective: its call, the type of its elements, and the bytes a rank sends for each byte of its buffer."""

    call: Callable[[Tensor, Tensor, Messages], None]
    dtype: torch.dtype
    sent: Callable[[int], float]
    answer: Callable[[int], int] = lambda _: 0  # buffers that the answer takes


def _all_reduce(x: Tensor, _: Tensor, __: Messages) -> None:
    dist.all_reduce(x)


def _all_gather(x: Tensor, rows: Tensor, _: Messages) -> None:
    all_gather_rows(rows, x).wait()


def _all_to_all(x: Tensor, pieces: Tensor, messages: Messages) -> None:
    _complete(messages.all_to_all(pieces, x))


def _exchange(x: Tensor, came: Tensor, messages: Messages) -> None:
    """Ranks 0 and 1, 2 and 3, ... give each other what they have; of an odd number the last has nobody."""
    peer = dist.get_rank() ^ 1
    if peer < dist.get_world_size():
        _complete(messages.exchange(x, peer, came, peer))


def _complete(works: list[Any]) -> None:
    for work in works:
        work.wait()


def _ring(n: int) -> float:
    return 2 * (n - 1) / n


COLLECTIVES: Mapping[str, _Kind] = MappingProxyType(
    {
        ALL_REDUCE_FP32: _Kind(_all_reduce, torch.float32, _ring),
        ALL_REDUCE_BF16: _Kind(_all_reduce, torch.bfloat16, _ring),
        ALL_GATHER: _Kind(_all_gather, torch.uint8, lambda n: n - 1.0, lambda n: n),
        ALL_TO_ALL: _Kind(_all_to_all, torch.uint8, lambda n: (n - 1) / n, lambda _: 1),
        EXCHANGE: _Kind(_exchange, torch.uint8, lambda _: 1.0, lambda _: 1),
    }
)


def probe(link_rate_bps: float, repeats: int = 3, device: str = "cpu") -> list[Measurement]:
    """Round trips and the collectives of `COLLECTIVES`; each exchange about 0.3 s on links of `link_rate_bps`.

    device: of the buffers; round trips are of the host.

    Needs a group of at least 2 ranks. Takes about 7 s on 4 ranks. Raises ValueError.
    """
    n = _size()
    if not link_rate_bps > 0:
        raise ValueError(f"link rate {link_rate_bps!r}: give bits a second, as in 1e8")
    measured = round_trip(repeats=10)
    for what, kind in COLLECTIVES.items():
        nbytes = min(link_rate_bps / 8 * TARGET_S / kind.sent(n), MOST_BYTES / max(1, kind.answer(n)))
        measured.append(bandwidth(what, nbytes, repeats, device))
    return measured


def round_trip(repeats: int = 10) -> list[Measurement]:
    """Seconds from rank 0 to each other rank and back, with a message of one float."""
    rank, n = dist.get_rank(), _size()
    message = torch.zeros(1)
    measured = []
    for peer in range(1, n):
        seconds = torch.zeros(repeats, dtype=torch.float64)
        dist.barrier()
        for i in range(-2, repeats):  # the first two make connections and are not counted
            started = time.perf_counter()
            if rank == 0:
                dist.send(message, peer)
                dist.recv(message, peer)
            elif rank == peer:
                dist.recv(message, 0)
                dist.send(message, 0)
            if i >= 0:
                seconds[i] = time.perf_counter() - started
        dist.broadcast(seconds, 0)
        measured.append(
            _measurement(f"{ROUND_TRIP} 0-{peer}", message.nbytes, seconds.tolist(), message.nbytes)
        )
    return measured


def bandwidth(collective: str, nbytes: float, repeats: int = 3, device: str = "cpu") -> Measurement:
    """What a collective reaches with buffers of about so many bytes.

    Args:
        collective: A name of `COLLECTIVES`.
        nbytes: Bytes of the buffer on each rank, made a whole number of pieces.
        repeats: Exchanges that count.
        device: Of the buffers.

    Returns:
        Seconds and bits a second of the slowest rank, the same on all ranks.

    Raises:
        ValueError: There is no such collective.
    """
    if collective not in COLLECTIVES:
        raise ValueError(f"no collective {collective!r}; there are {', '.join(COLLECTIVES)}")
    kind, n = COLLECTIVES[collective], _size()
    buffer_bytes = _whole(nbytes, n)
    messages = Messages(None, gloo=device == "cpu")
    # zeros stay zeros however often they are summed
    x = torch.zeros(buffer_bytes // kind.dtype.itemsize, dtype=kind.dtype, device=device)
    answer = torch.zeros(x.numel() * kind.answer(n), dtype=kind.dtype, device=device)

    def exchange(size: int) -> float:
        """Seconds of the slowest rank."""
        count = size // kind.dtype.itemsize
        given, taken = x[:count], answer[: count * kind.answer(n)]
        longest = torch.tensor(
            [_timed(lambda: kind.call(given, taken, messages), device)], dtype=torch.float64
        )
        dist.all_reduce(longest, dist.ReduceOp.MAX)
        return longest.item()

    first_s = exchange(buffer_bytes)
    size = buffer_bytes if first_s <= LONGEST_S else _whole(buffer_bytes * TARGET_S / first_s, n)
    return _measurement(collective, size, [exchange(size) for _ in range(repeats)], kind.sent(n) * size)


def _size() -> int:
    n = dist.get_world_size()
    if n < 2:
        raise ValueError("a link needs two ends: start at least 2 ranks")
    return n


def _timed(call: Callable[[], None], device: str) -> float:
    dist.barrier()
    started = time.perf_counter()
    call()
    if device != "cpu":
        torch.cuda.synchronize()
    return time.perf_counter() - started


def _whole(nbytes: float, n: int) -> int:
    """`nbytes` as a whole number of pieces for each of `n` ranks, at least one."""
    piece = PIECE_BYTES * n
    return max(1, int(nbytes) // piece) * piece


def _measurement(what: str, nbytes: int, seconds: list[float], sent_bytes: float) -> Measurement:
    return Measurement(what, nbytes, tuple(seconds), 8 * sent_bytes / statistics.median(seconds))
