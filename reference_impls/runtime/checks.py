"""Are all ranks in the same step, with the same settings? And which one does not come?

Settings are compared at construction by one small all-reduce, the maximum of a hash of them and of its negative: only where it
shows a difference do ranks put them into the store and name it. So are step, kind and settings in every sixteenth step that
communicates, awaited one such step later, so that it costs no waiting. Before the first step and the first after a load, to which
a rank may come alone, they are compared through the store. Collectives themselves are torch's to compare
(TORCH_DISTRIBUTED_DEBUG=DETAIL).

A rank that dies or hangs leaves the others waiting in a collective, which knows that somebody did not come, and not who. So every
process has a thread that writes a *sign of life* into the store about once a second: how many collectives this rank has asked
for, and what it does; the training itself only sets an attribute. Whoever waits in vain reads the signs of all: one that no
longer changes is of a process that has died, one with fewer collectives of a rank that is alive and elsewhere. Whoever ends, or
has found out who is at fault, leaves a *note* in the store; those who wait look for one once a second, and the first one counts.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from reference_impls.core import compute
from reference_impls.core.errors import ExchangeError, MismatchError, PeerError, UnsupportedError, one_of

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

Check = Literal["first", "each", "off"]
Settings = Mapping[str, Any]
"""What must be equal on all ranks, by name; values that JSON can hold."""
EVERY: Final = 16
"""Steps that communicate between two comparisons of the settings."""
ENDED: Final = "has ended its training"
"""What a rank says that leaves of its own accord."""
_ADVICE: Final = (
    "All ranks must take the same steps: give them the same number of batches (drop_last=True), and make calls that communicate "
    "on all. Look at the log of the rank named (if it is merely slow, raise timeout_s), and start again from the last checkpoint"
)
_UNLIKE: Final = "mismatch between collectives"
"""In torch's words, where TORCH_DISTRIBUTED_DEBUG=DETAIL has it compare them."""
_OUTSIDE: Final = "code outside of the optimizer (data, forward, backward, evaluation)"
_POLL_S: Final = 1.0


class _Sign(NamedTuple):
    """Of life. asked: for how many collectives so far."""

    number: int
    asked: int
    doing: str
    place: str


class Agreement:
    """What one rank compares with the others, and tells them.

    Args:
        store: Shared by the ranks, and by nobody else.
        rank: Of this process.
        size: Number of ranks.
        check: ``first`` compares settings before the first step, the first after a load, and in every sixteenth step that
            communicates, ``each`` in every step, ``off`` never.
        timeout_s: Seconds to wait for another rank, in the store and in a collective.
        device: Where the backend wants tensors to lie.
        group: None is the default group.
        backend: Of `group`, for tensors of `device`.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        size: int,
        check: Check = "first",
        timeout_s: float = 600.0,
        device: torch.device | str = "cpu",
        group: dist.ProcessGroup | None = None,
        backend: str = "gloo",
    ) -> None:
        one_of("check", check, ("first", "each", "off"))
        if not timeout_s > 0:
            raise UnsupportedError(f"timeout_s must be positive, got {timeout_s}")
        self._store, self._rank, self._size = store, rank, size
        self._check, self._timeout_s, self._device = check, timeout_s, device
        self._group, self._backend = group, backend
        self._compares = self._fresh = check != "off"
        self._step, self._label = 0, "construction"
        self._now: tuple[int, str] = (0, self._label)
        """Collectives asked for, and what this rank does."""
        self._gathers = self._communicating = self._completed = self._launched = 0
        self._verdict: tuple[Any, Tensor, Settings] | None = None
        self._note: str | None = None
        self._process, self._over = os.getpid(), threading.Event()
        self._poll_s = min(_POLL_S, timeout_s / 16)
        self._thread: threading.Thread | None = None
        if size > 1 and dist.is_initialized():
            self._thread = threading.Thread(target=self._sign, name="bandwise-signs", daemon=True)
            self._thread.start()

    def begin_step(self, step: int, kind: str) -> None:
        """Tell which step comes."""
        self._step, self._label = step, f"step {step} ({kind})"
        self._now = self._now[0], self._label

    def before(self, signature: tuple[str, ...]) -> None:
        """This rank asks for the collective of this signature next."""
        self._now = self._now[0] + 1, f"{self._label}: ({', '.join(signature)})"

    def completed(self, steps: int) -> None:
        """This rank has completed so many steps; if it had stopped, it goes on after all."""
        self._completed, self._now = steps, (self._now[0], f"{_OUTSIDE} after {steps} steps")
        if self._note is not None:
            with suppress(RuntimeError):  # nobody reads there any more
                self._store.delete_key(self._note)
            self._note = None

    # ---- settings --------------------------------------------------------------------------------------------------

    def first(self, settings: Callable[[], Settings]) -> None:
        """Compare settings if the step that has begun is the first, or the first after a load, or each is compared."""
        if self._check == "each" or self._fresh:
            self._fresh = False
            self.compare_settings(settings())

    def reset(self) -> None:
        """The next step counts as the first again (after a checkpoint was loaded)."""
        self._fresh = self._compares

    def end_step(self, steps: int, launched: int, settings: Callable[[], Settings]) -> None:
        """This rank has completed so many steps. Compare settings now and then, after steps that communicated.

        launched: collectives so far, by which a step that sent nothing is known. Raises `MismatchError` where settings differed
        last time.
        """
        self.completed(steps)
        sent, self._launched = launched != self._launched, launched
        if not sent or not self._compares or self._size == 1:
            return
        if self._verdict is not None:
            verdict, self._verdict = self._verdict, None
            self._judge(*verdict)
        self._communicating += 1
        if self._communicating % (1 if self._check == "each" else EVERY) == 0:
            self._verdict = self._asked({"step": self._label, **settings()})

    def compare_by_collective(self, settings: Settings, *, always: bool = False) -> None:
        """As `compare_settings`, by a collective where nothing differs; unless `check` is off, or `always`.

        A rank that is dead breaks the connections of a collective, but is only silent in the store.
        """
        if (self._compares or always) and self._size > 1:
            self.before(("settings",))
            self._judge(*self._asked(settings))

    def _asked(self, settings: Settings) -> tuple[Any, Tensor, Settings]:
        """Begin the maximum over all ranks of a hash and of its negative; outside of any method, so not counted."""
        word = _hash(settings)
        numbers = torch.tensor([word, -word], dtype=torch.int64)
        held = compute.sent(numbers, self._device)  # NCCL takes none of the CPU
        work = dist.all_reduce(held, dist.ReduceOp.MAX, group=self._group, async_op=True)
        return work, held, settings

    def _judge(self, work: Any, held: Tensor, settings: Settings) -> None:
        self.await_work(work, ("settings",))
        highest, lowest = held.tolist()
        if highest != -lowest:
            self.compare_settings(settings)

    def together(self, call: str) -> None:
        """Wait until all ranks are at `call`, which communicates outside of a step; compared unless `check` is off.

        Without it the collective of a call that one rank makes alone pairs with the next one of a step.
        """
        self._step, self._label = self._completed, f"{call}, after {self._completed} steps"
        if self._compares:
            self.compare_settings({"call": call})

    def compare_settings(self, settings: Settings) -> None:
        """Compare what must be equal on all ranks, value by value, through the store alone.

        Raises `MismatchError` with two ranks and the first value in which they differ, `PeerError` where a rank stayed silent.
        """
        if self._size == 1:
            return
        self._now = self._now[0], f"{self._label}: comparing settings"
        if len(set(self._gathered(str(_hash(settings))))) == 1:
            return
        own = [json.loads(word) for word in self._gathered(json.dumps(settings))]
        other = next((rank for rank, theirs in enumerate(own) if theirs != own[0]), None)
        if other is None:  # one says 1, the other 1.0
            return
        self._linger()
        name = next(key for key in {**own[0], **own[other]} if own[0].get(key) != own[other].get(key))
        raise MismatchError(
            f"{own[0].get('step', self._label)}: rank 0 has {name} = {own[0].get(name, 'none')}, but rank {other} has {name} = "
            f"{own[other].get(name, 'none')}. All ranks must build the same model, give the same options, step their schedulers "
            "alike and take the same steps: end this training, make them equal, and go on from a checkpoint"
        )

    def _gathered(self, word: str) -> list[str]:
        """The words of all ranks."""
        self._gathers += 1
        self._store.set(f"agree/{self._gathers}/{self._rank}", word)
        words = [self._awaited(f"agree/{self._gathers}/{rank}", rank) for rank in range(self._size)]
        if self._gathers > 2:  # nobody can still be reading the words before the last
            self._store.delete_key(f"agree/{self._gathers - 2}/{self._rank}")
        return words

    def _awaited(self, key: str, rank: int) -> str:
        """The value of `key`, which `rank` writes. A wait of the store's own, in vain, would write a warning to the log."""
        started, asked_at, pause_s = time.monotonic(), time.monotonic(), 0.0005
        try:
            while not self._store.check([key]):
                now = time.monotonic()
                if now - asked_at >= self._poll_s:
                    asked_at = now
                    if self._noted():
                        raise self._lost("it need not wait")
                    sign = self._signs().get(rank)
                    if sign is not None and sign.asked > self._now[0] and not self._store.check([key]):
                        raise MismatchError(
                            f"rank {self._rank} is at {self._now[1]}, but rank {rank} at {sign.doing}. {_ADVICE}"
                        )
                if now - started >= self._timeout_s:
                    raise self._lost(f"rank {rank} has not come within {self._timeout_s:g} s")
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, 0.02)
            return str(self._store.get(key).decode())
        except ExchangeError:
            raise
        except RuntimeError as error:  # torch raises DistStoreError, a RuntimeError
            raise self._lost(_first_line(error)) from error

    # ---- who does not come -----------------------------------------------------------------------------------------

    def await_work(self, work: Any, signature: tuple[str, ...]) -> None:
        """Wait for a collective: on gloo `timeout_s` at most, and no longer than all ranks still take part.

        On other backends the wait is a matter of the device's stream, and torch's own watchdog ends it.

        work: what torch.distributed answered at its launch. Raises `PeerError`, which names who is finished, failed or silent.
        """
        deadline = time.monotonic() + self._timeout_s
        while self._backend == "gloo":  # NCCL breaks a group where a wait with a limit is in vain
            try:
                work.wait(timedelta(seconds=self._poll_s))
                return
            except RuntimeError as error:
                if work.is_completed():
                    break  # it may have come to its end just now
                if self._noted() or time.monotonic() >= deadline:
                    raise self._lost(
                        f"nothing came in {time.monotonic() - deadline + self._timeout_s:.0f} s"
                    ) from error
        try:
            work.wait()
        except RuntimeError as error:
            if not of_a_peer(error):
                raise
            raise self.failed(signature, error) from error

    def failed(self, signature: tuple[str, ...], error: RuntimeError) -> MismatchError | PeerError:
        """The error for a collective that failed since ranks differ, or a peer or the line to it is lost."""
        if _UNLIKE in str(error):
            return MismatchError(
                f"rank {self._rank} asks for {self._label}: ({', '.join(signature)}); {_first_line(error)}. What a method sends "
                "must depend on its options, the step and agreed values only; do all ranks run the same code?"
            )
        return self._lost(
            f"{_first_line(error)}; where ranks may ask for different collectives, TORCH_DISTRIBUTED_DEBUG=DETAIL names them"
        )

    @contextmanager
    def telling_the_others(self) -> Iterator[None]:
        """What breaks this rank's training off is told to the ranks that wait for it."""
        try:
            yield
        except Exception as error:
            self.leave(f"has stopped ({type(error).__name__}: {error})")
            raise

    def leave(self, why: str) -> None:
        """Tell the others that this rank takes no further part, and why; the first reason counts."""
        if self._size == 1 or os.getpid() != self._process:
            return  # the end of a forked child is not that of the rank
        if ends := why == ENDED:
            self._over.set()
            if self._thread not in (None, threading.current_thread()):  # the collector runs in any
                self._thread.join(2.0)  # before the interpreter ends it, perhaps within a call of the store's
            if (uncaught := getattr(sys, "last_value", None)) is not None:
                why = f"has stopped ({type(uncaught).__name__}: {uncaught})"
        if self._note is None:
            self._leave_note(f"rank {self._rank} {why} after {self._completed} steps", self._completed)
            if not ends:
                self._linger()

    def _leave_note(self, words: str, steps: int) -> None:
        with suppress(RuntimeError):  # the host of the store is gone, and who waits for this rank has noticed
            note = f"note/{self._store.add('notes', 1)}"
            self._store.set(note, json.dumps([steps, words]))
            self._note = note

    def _noted(self) -> str:
        """The first note of a rank that has not completed the present step, or knows of one; "" if there is none."""
        with suppress(RuntimeError):
            for number in range(self._store.add("notes", 0)):
                note = f"note/{number + 1}"
                if note != self._note and self._store.check(
                    [note]
                ):  # else it is not written yet, or was taken back
                    steps, words = json.loads(self._store.get(note))
                    if steps <= self._step:
                        return str(words)
        return ""

    def _lost(self, what: str) -> PeerError:
        """The error for a wait in vain: who is at fault, if that can be known, and what was seen. Takes up to some seconds."""
        try:
            words = self._noted() or self._from_signs() or f"rank {self._rank} waited in vain"
        except RuntimeError:
            words = (
                "the store is gone: rank 0, whose process hosts it (unless torchrun does), has ended or died"
            )
        if self._note is None:
            self._leave_note(words, self._step)
            self._linger()
        return PeerError(f"{words}. rank {self._rank} is at {self._now[1]}: {what}. {_ADVICE}")

    def _from_signs(self) -> str:
        """Those whose sign no longer changes; else those who have not come as far as this rank."""
        first, deadline = self._signs(), time.monotonic() + max(1.5, 4 * self._poll_s)
        while True:
            time.sleep(self._poll_s / 4)
            if noted := self._noted():
                return noted  # another was faster
            now = self._signs()
            others = [rank for rank in range(self._size) if rank != self._rank]
            dead = [rank for rank in others if now.get(rank) == first.get(rank)]
            if not dead or time.monotonic() >= deadline:
                break
        if dead:
            return "; ".join(
                f"rank {rank} has never given a sign of life"
                if rank not in now
                else f"rank {rank} ({now[rank].place}) has died or is cut off, last seen at {now[rank].doing}"
                for rank in dead
            )
        least = min(now[rank].asked for rank in others)
        behind = [rank for rank in others if now[rank].asked == least < self._now[0]]
        return "; ".join(f"rank {r} ({now[r].place}) is alive and behind, at {now[r].doing}" for r in behind)

    def _signs(self) -> dict[int, _Sign]:
        """Rank -> the last sign that it gave."""
        ranks = [rank for rank in range(self._size) if self._store.check([f"sign/{rank}"])]
        return {rank: _Sign(*json.loads(self._store.get(f"sign/{rank}"))) for rank in ranks}

    def _sign(self) -> None:
        """The thread: signs of life, until the training ends."""
        try:  # a connection of its own: a long wait of the training's must not hold it up
            store: Store = self._store.clone()  # type: ignore[attr-defined]
        except (RuntimeError, NotImplementedError, AttributeError):
            store = self._store
        place = f"{socket.gethostname()}, process {os.getpid()}, rank {dist.get_rank()} of the world"
        number = 0
        with suppress(RuntimeError):  # the store is gone, and who needs it notices
            while not self._over.wait(self._poll_s if number else 0):
                number += 1
                store.set(f"sign/{self._rank}", json.dumps(_Sign(number, *self._now, place)))

    def _linger(self) -> None:
        """Let the others read what there is to read, for some seconds, if this process hosts the store."""
        with suppress(RuntimeError):
            read, deadline = self._store.add("read", 1), time.monotonic() + 3 * self._poll_s
            hosts = dist.is_initialized() and dist.get_rank() == 0
            while hosts and read < self._size and time.monotonic() < deadline:
                time.sleep(0.01)
                read = self._store.add("read", 0)


def described(options: object) -> str:
    """A configuration in words that are the same in every process: functions in it lie elsewhere in each."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(options))


def of_a_peer(error: RuntimeError) -> bool:
    """Whether a collective failed since another rank or the line to it did; else torch could not do what was asked."""
    words = ("gloo/", "onnection", "Broken pipe", "monitoredBarrier", _UNLIKE)
    return isinstance(error, dist.DistError) or any(word in str(error) for word in words)


def _hash(settings: Settings) -> int:
    text = json.dumps(settings, sort_keys=True)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
