"""Messages between ranks of a process group, and the all-to-all that is made of them on gloo.

What gloo does with messages decides how they are sent here; shares are of the rate of emulated links, medians of 10 exchanges:

- *It asks before it sends*, and the receiver's answer waits behind data that are under way to the same rank. So receiving is
  begun before sending: two ranks that exchange reach 0.93; the other way round one direction waits for the other, 0.53.
- *Its own all-to-all sends to all at once* and reaches 0.57 to 0.67. One rank after another, the next ones first, it is 0.83 to
  0.95 at 10 and 100 Mbit/s, and 0.63 to 0.84 at 1 Gbit/s, where two cores serve all of 4 or 8 ranks.
- *A wait for a message that runs out of time closes all connections.* So a thread waits, and whoever has less patience waits
  for the thread: a rank may be late.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Iterator
from datetime import timedelta
from queue import SimpleQueue
from typing import Any

import torch.distributed as dist
from torch import Tensor


class Messages:
    """Messages of this rank to others of a group. What is begun is answered as works, to be waited for.

    Args:
        group: None is the default group.
        gloo: Whether gloo carries them, which is so on a CPU.
    """

    def __init__(self, group: dist.ProcessGroup | None, gloo: bool) -> None:
        self._group, self._queue = group, SimpleQueue[_Carried | None]() if gloo else None
        if self._queue is not None:
            threading.Thread(
                target=_carry, args=(self._queue,), name="bandwise-messages", daemon=True
            ).start()
            weakref.finalize(self, self._queue.put, None)

    def exchange(self, sent: Tensor, to: int | None, came: Tensor | None, source: int | None) -> list[Any]:
        """Begin to send to a rank, or to nobody, and to receive from one, or from nobody."""
        operations = [
            dist.P2POp(call, buffer, group=self._group, group_peer=peer)
            for call, buffer, peer in ((dist.irecv, came, source), (dist.isend, sent, to))
            if buffer is not None and peer is not None
        ]
        works = dist.batch_isend_irecv(operations) if operations else []
        return works if self._queue is None else [self._carried(works)]

    def all_to_all(self, pieces: Tensor, x: Tensor) -> list[Any]:
        """Begin to send piece j of `x`, [n k], to rank j, and to receive that of rank j as piece j of `pieces`, [n k]."""
        if self._queue is None:
            return [dist.all_to_all_single(pieces, x, group=self._group, async_op=True)]
        rank, n = dist.get_rank(self._group), dist.get_world_size(self._group)
        came, sent = pieces.view(n, -1), x.view(n, -1)
        came[rank].copy_(sent[rank])
        others = [(rank + place) % n for place in range(1, n)]
        group, tag = self._group, 1  # a tag of its own: messages of `exchange` may overtake these
        received = [dist.irecv(came[peer], group=group, tag=tag, group_src=peer) for peer in reversed(others)]

        def works() -> Iterator[Any]:
            for peer in others:
                yield dist.isend(sent[peer], group=group, tag=tag, group_dst=peer)
            yield from received

        return [self._carried(works())]

    def _carried(self, works: Iterable[Any]) -> _Carried:
        assert self._queue is not None
        carried = _Carried(works)
        self._queue.put(carried)
        return carried


class _Carried:
    """Works of torch that a thread waits for, one after another; what makes the next one begins it."""

    def __init__(self, works: Iterable[Any]) -> None:
        self._works, self._over = works, threading.Event()
        self._error: Exception | None = None

    def carry_out(self) -> None:
        """Of the thread."""
        try:
            for work in self._works:
                work.wait()
        except Exception as error:  # noqa: BLE001 - who waits for the thread raises it
            self._error = error
        self._works = ()
        self._over.set()

    def wait(self, timeout: timedelta | None = None) -> None:
        """Raises RuntimeError for what the works raise, or where they take longer than `timeout`: wait again then."""
        if not self._over.wait(None if timeout is None else timeout.total_seconds()):
            raise RuntimeError("the messages are still under way")
        if self._error is not None:
            raise self._error

    def is_completed(self) -> bool:
        """Whether the thread has done with them."""
        return self._over.is_set()


def _carry(queue: SimpleQueue[_Carried | None]) -> None:
    while (carried := queue.get()) is not None:
        carried.carry_out()
