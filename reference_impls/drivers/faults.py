"""Which rank is it? Faults of a real training, named on every other rank, with its step, where it stands and what to do.

A rank that dies, hangs or fails leaves the others waiting in a collective, which knows that somebody did not come, and
not who. So every process has a thread that writes a *sign of life* into the store of the training about once a second: how
many collectives this rank has asked for, its step, what it does, and, once a rank waits in vain, where its program stands. The
training itself only sets an attribute. Whoever waits in vain reads the signs of all:

* a sign that no longer changes: the process has died, or is cut off from the store;
* fewer collectives than this rank: alive and elsewhere; the sign says where;
* a note that the rank has ended or failed (`Agreement.leave`): its own words.

What one rank has found out it leaves in the store: a rank that fails because a witness has gone names the culprit, and not the
witness. The process that hosts the store stays until the others can have read it.

A rank that hangs reads there too that it was named. With ``end_hung`` its thread then ends the process (`EXIT_HUNG`) if the
training does not move for as long as a dead rank is waited for, and has not noticed by itself.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
import weakref
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

__all__ = ["Witness", "digests", "odd_ones"]

SIGN_S: Final = 1.0
"""Seconds between two signs of life; less where timeouts are short."""
_MISSED: Final = 4
"""Signs of life that a rank may leave out before it counts as dead, and no less than `_PATIENCE_S`."""
_PATIENCE_S: Final = 1.5
_LINGER_S: Final = 5.0
EXIT_HUNG: Final = 70
"""Exit code of a process that has ended itself since others named it as hanging."""
OUTSIDE: Final = "code outside of the optimizer (data, forward, backward, evaluation)"


class Sign(NamedTuple):
    """What a rank says of itself. asked: collectives so far. idle_s: how old `doing` is. world: its rank there."""

    number: int
    asked: int
    step: int
    doing: str
    idle_s: float
    place: str
    world: int
    host: str
    pid: int


class Finding(NamedTuple):
    """What a rank has left in the store at its end. blames: the ranks because of which it ended; none: it ended by itself.

    advice: what it tells to do.
    """

    steps: int
    why: str
    advice: str
    blames: Sequence[int]
    words: str


# ---- the thread ----------------------------------------------------------------------------------------------------------


class _Pulse:
    """Writes this rank's sign, and keeps what others left in the store at hand, in case that the store goes away."""

    def __init__(self, store: Store, rank: int, every_s: float, end_hung: bool) -> None:
        try:  # a connection of its own: a long wait of the training's must not hold it up
            self._store: Store = store.clone()  # type: ignore[attr-defined]
        except (RuntimeError, NotImplementedError, AttributeError):
            self._store = store
        self.rank, self.every_s = rank, every_s
        self.end_hung = end_hung
        self.noticed = False
        """Whether the training has found out by itself that it cannot go on."""
        self.now: tuple[int, int, str] = (0, 0, "construction")
        """Collectives asked for, step, what it does: a fresh tuple whenever one of them changes."""
        self.findings: dict[int, Finding] = {}
        self._watched, self._end = threading.get_ident(), threading.Event()
        self._process = os.getpid()
        self._thread = threading.Thread(target=self._run, name="bandwise-signs", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread; before the interpreter does, which would end it within a call of the store's."""
        if os.getpid() != self._process:
            return  # a forked child has no such thread
        self._end.set()
        if self._thread is not threading.current_thread():
            self._thread.join(2.0)

    def _run(self) -> None:
        facts, number = (dist.get_rank(), socket.gethostname(), os.getpid()), 0
        seen, since, gone = self.now, time.monotonic(), False
        named: tuple[float, str] | None = None
        while not self._end.is_set():
            now = self.now
            if now is not seen:
                seen, since, named = now, time.monotonic(), None
            idle_s = time.monotonic() - since
            number += 1
            try:
                if not gone:  # where a program stands is looked up where somebody waits: frames that run are not safe to walk
                    place = _place(self._watched) if self._store.add("where", 0) else ""
                    self._exchange(Sign(number, *now, idle_s, place, *facts))
            except RuntimeError:
                gone = True  # the store, and who needs it notices
                if named is None:
                    return
            if self.end_hung and not self.noticed:
                named = named or self._named()
                if named is not None and time.monotonic() - named[0] >= self.patience_s:
                    self._exit(named[1])
            self._end.wait(self.every_s)

    @property
    def patience_s(self) -> float:
        """Seconds without a sign after which a rank counts as dead."""
        return max(_PATIENCE_S, _MISSED * self.every_s)

    def _exchange(self, sign: Sign) -> None:
        self._store.set(f"sign/{self.rank}", json.dumps(sign))
        if self._store.add("ended", 0):
            self.findings = findings(self._store)

    def _named(self) -> tuple[float, str] | None:
        """Now, and the words of a rank that has ended because of this one."""
        words = [own.words for own in self.findings.values() if self.rank in own.blames]
        return (time.monotonic(), words[0]) if words else None

    def _exit(self, words: str) -> None:
        sys.stderr.write(
            f"rank {self.rank} ends its process (end_hung=True), since others have stopped because of it: {words}. It stands at "
            f"{_place(self._watched) or 'a place unknown'}. Start all ranks again from the last checkpoint\n"
        )
        sys.stderr.flush()
        os._exit(EXIT_HUNG)


def _place(thread: int) -> str:
    """Where a thread's program stands: its innermost line outside of torch and of this package, else its innermost line."""
    frame = innermost = sys._current_frames().get(thread)
    ours = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    while frame is not None:
        file = frame.f_code.co_filename
        if not (file.startswith((ours + os.sep, "<")) or f"{os.sep}torch{os.sep}" in file):
            break
        frame = frame.f_back
    frame = frame or innermost
    return "" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}, in {frame.f_code.co_name}"


def findings(store: Store) -> dict[int, Finding]:
    """What ranks have left in the store at their end."""
    found = {}
    for number in range(store.add("ended", 0)):
        if not store.check([f"ended/{number + 1}"]):
            continue  # not written yet, or taken back
        rank, steps, why, advice = json.loads(store.get(f"ended/{number + 1}"))
        blames, words = (), ""
        if store.check([f"blames/{rank}"]):
            blames, words = json.loads(store.get(f"blames/{rank}"))
        found[int(rank)] = Finding(int(steps), str(why), str(advice), blames, str(words))
    return found


# ---- who it is -----------------------------------------------------------------------------------------------------------


class Witness:
    """Says what this rank does, and finds out who it is that does not come.

    Args:
        store: Shared by the ranks of one training.
        rank: Of this process among them.
        size: Their number; a lone rank has nobody to tell.
        timeout_s: Seconds that a rank waits for another; signs come more often where it is short.
        end_hung: Whether this process ends itself when others have named it and it does not move.
    """

    def __init__(self, store: Store, rank: int, size: int, timeout_s: float, end_hung: bool = False) -> None:
        self._store, self._rank, self._size = store, rank, size
        self._asked, self._step = 0, 0
        self._gone = 0
        self._world: dict[int, int] = {}
        real = size > 1 and dist.is_initialized()
        self._pulse = _Pulse(store, rank, min(SIGN_S, timeout_s / 16), end_hung) if real else None
        if self._pulse is not None:
            weakref.finalize(self, _Pulse.stop, self._pulse)

    def does(self, step: int, what: str, asks: bool = False) -> None:
        """This rank is in `step`, at `what`; asks: which is one more collective."""
        self._step = step
        self._asked += asks
        if self._pulse is not None:
            self._pulse.now = self._asked, step, what

    def notices(self, fault: bool) -> None:
        """The training knows that it cannot go on, or goes on after all."""
        if self._pulse is not None:
            self._pulse.noticed = fault

    def stop(self) -> None:
        """No more signs."""
        if self._pulse is not None:
            self._pulse.stop()

    def ahead(self, rank: int) -> str:
        """Where a rank is that has asked for more collectives than this one; "" if it has not."""
        sign = None if self._pulse is None else self._signs([rank])[rank]
        return "" if sign is None or sign.asked <= self._asked else f"is in step {sign.step}, {sign.doing}"

    def culprits(self) -> tuple[Sequence[int], str]:
        """The ranks because of which this one cannot go on, and what is the matter with them; none, if nobody can tell.

        Tells the others too. Takes up to some seconds, which a rank needs to miss its signs.
        """
        if self._pulse is None:
            return [], ""
        try:
            found = self._of(findings(self._store))
            found = found if found[0] else self._from_signs()
        except RuntimeError:
            found = self._of(self._pulse.findings)
            if not found[0] and not _agent_hosts() and dist.get_rank() != 0:
                return (
                    [0],
                    "rank 0 of the world has died or has ended: its process hosts the store, which is gone",
                )
        if found[0]:
            self._gone = len(found[0])
            with suppress(RuntimeError):  # with the store its readers are gone
                self._store.set(f"blames/{self._rank}", json.dumps(found))
        return found

    def linger(self) -> None:
        """Stay until the others have ended too, or can have read what there is to read, if this process hosts the store."""
        if self._pulse is None or _agent_hosts() or dist.get_rank() != 0:
            return
        now = time.monotonic()
        deadline = now + min(_LINGER_S, (_MISSED + 2) * self._pulse.every_s)
        least = now + 2 * self._pulse.every_s if self._gone and self._pulse.end_hung else now
        with suppress(RuntimeError):
            while time.monotonic() < deadline and (
                time.monotonic() < least or len(findings(self._store)) < self._size - self._gone
            ):
                time.sleep(self._pulse.every_s / 10)

    def _of(self, left: Mapping[int, Finding]) -> tuple[Sequence[int], str]:
        """Those who ended by themselves before this step was complete; else those whom a witness names."""
        late = {rank: own for rank, own in left.items() if own.steps <= self._step and rank != self._rank}
        first = {rank: late[rank] for rank in sorted(late) if not late[rank].blames}
        if first:
            words = (f"{self._name(rank)} {own.why} after {own.steps} steps" for rank, own in first.items())
            return list(first), "; ".join(words)
        for own in late.values():
            if own.blames and self._rank not in own.blames:
                return list(own.blames), own.words
        return [], ""

    def _from_signs(self) -> tuple[Sequence[int], str]:
        """Those whose sign no longer changes; else those who have not come as far as this rank."""
        assert self._pulse is not None
        others = [rank for rank in range(self._size) if rank != self._rank]
        self._store.add("where", 1)
        first, deadline = self._signs(others), time.monotonic() + self._pulse.patience_s
        while True:
            time.sleep(self._pulse.every_s / 4)
            if (left := self._of(findings(self._store)))[0]:
                return left  # it has said so itself meanwhile, or another witness was faster
            now = self._signs(others)
            dead = [rank for rank in others if now[rank] is None or now[rank] == first[rank]]
            if not dead or time.monotonic() >= deadline:
                break
        if dead:
            return dead, "; ".join(self._dead(rank, now[rank]) for rank in dead)
        signs = {rank: sign for rank, sign in now.items() if sign is not None}
        least = min(sign.asked for sign in signs.values())
        behind = [rank for rank, sign in signs.items() if sign.asked == least < self._asked]
        return behind, "; ".join(self._behind(rank, signs[rank]) for rank in behind)

    def _signs(self, ranks: Sequence[int]) -> dict[int, Sign | None]:
        found: dict[int, Sign | None] = {}
        for rank in ranks:
            is_there = self._store.check([f"sign/{rank}"])
            found[rank] = sign = Sign(*json.loads(self._store.get(f"sign/{rank}"))) if is_there else None
            if sign is not None:
                self._world[rank] = sign.world
        return found

    def _dead(self, rank: int, sign: Sign | None) -> str:
        if sign is None:
            return f"{self._name(rank)} has never given a sign of life: it has died, or has never begun"
        return (
            f"{self._name(rank)} ({sign.host}, process {sign.pid}) has died or is cut off: its last sign of life came from step "
            f"{sign.step}, {sign.doing}"
        )

    def _behind(self, rank: int, sign: Sign) -> str:
        place = f", at {sign.place}" if sign.place else ""
        return (
            f"{self._name(rank)} ({sign.host}, process {sign.pid}) is alive and behind: for {sign.idle_s:.1f} s it has been in "
            f"step {sign.step}, {sign.doing}{place}"
        )

    def _name(self, rank: int) -> str:
        world = self._world.get(rank, rank)
        return f"rank {rank}" if world == rank else f"rank {rank} of its group, {world} of the world,"


def odd_ones(words: Sequence[str]) -> str:
    """Which ranks say something else than most, as the beginning of a sentence; "" where there is no majority."""
    most, times = Counter(words).most_common(1)[0]
    if 2 * times <= len(words):
        return ""
    odd = [f"rank {rank}" for rank, word in enumerate(words) if word != most]
    return f"{', '.join(odd)} {'differs' if len(odd) == 1 else 'differ'} from the {times} others: "


def digests(named: Mapping[str, Tensor]) -> dict[str, Any]:
    """The bits of tensors in a number each, for comparison among ranks that must hold the same.

    Args:
        named: Tensors by name, on one device.

    Returns:
        Sums of their bits as integers, under names that say so.
    """
    sums = []
    for x in named.values():
        flat = x.detach().reshape(-1)
        width = {2: torch.int16, 4: torch.int32, 8: torch.int64}.get(flat.element_size(), torch.uint8)
        sums.append(flat.view(width).sum(dtype=torch.int64))
    values = torch.stack(sums).tolist() if sums else []
    return {f"parameter {name!r} (sum of bits)": own for name, own in zip(named, values, strict=True)}


def _agent_hosts() -> bool:
    """Whether torchrun's agent hosts the store, and no rank."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
