"""Are all ranks in the same step, with the same settings? And which one does not come?

Settings are compared through the store at construction, and before the first step and the first after a load: all ranks compare
with all, and the process that hosts the store lingers until the others have read the verdict. Later steps are held together by
one small all-reduce in every sixteenth step that communicates: the maximum of (step, kind, hash of the settings) and of its
negative, awaited one such step later, so that it costs no waiting. Only where it shows a difference do ranks put their settings
into the store and name it.

Collectives themselves are torch's to compare: with TORCH_DISTRIBUTED_DEBUG=DETAIL it does so before each launch, and what it
finds is told with the step. Without it another dtype or size may kill a process outside of Python, and another collective hangs.

A rank that is finished, or has failed, says so in the store; one that waits reads it once a second, and needs not wait
until its time is up. Who it is that is silent, and where it stands, `reference_impls.drivers.faults` finds out.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor

from reference_impls.drivers.faults import OUTSIDE, Witness, findings, odd_ones
from reference_impls.errors import MismatchError, PeerError, UnsupportedError

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

Check = Literal["first", "each", "off"]
Settings = Mapping[str, Any]
"""What must be equal on all ranks, by name; values that JSON can hold."""
EVERY = 16
"""Steps that communicate between two comparisons of the settings."""
ENDED = "has ended its training"
"""What a rank says that leaves of its own accord."""
_RESTART = "Start again from the last checkpoint; the log of the rank that fell silent says why"
_UNEVEN = (
    "Ranks must take the same number of steps: give them the same number of batches (drop_last=True), or train inside "
    "`with torch.distributed.algorithms.Join([optimizer]):`"
)
_ON_ALL = "Such a call communicates: make it on all ranks, after the same step"
_UNLIKE = "mismatch between collectives"
"""In torch's words, where TORCH_DISTRIBUTED_DEBUG=DETAIL has it compare them."""
_LINGER_S = 5.0
_POLL_S = 1.0


class Agreement:
    """Compares requests among ranks.

    Args:
        store: Shared by the ranks, and by nobody else.
        rank: Of this process.
        size: Number of ranks.
        check: ``first`` compares settings before the first step, the first after a load, and in every sixteenth step that
            communicates, ``each`` in every step, ``off`` never.
        timeout_s: Seconds to wait for another rank, in the store and in a collective.
        end_hung: Whether the process of a rank that others name as hanging ends itself.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        size: int,
        check: Check = "first",
        timeout_s: float = 600.0,
        end_hung: bool = False,
    ) -> None:
        if check not in ("first", "each", "off"):
            raise UnsupportedError(f"check must be first, each or off, got {check!r}")
        if not timeout_s > 0:
            raise UnsupportedError(f"timeout_s must be positive, got {timeout_s}")
        self._store = store
        self._rank = rank
        self._size = size
        self._process = os.getpid()
        self._check = check
        self._timeout_s = timeout_s
        self._number = 0
        self._fresh = check != "off"
        self._label = "construction"
        self._step = 0
        self._communicating = 0
        self._verdict: tuple[Any, Tensor, Settings] | None = None
        self._note: str | None = None
        self._completed = 0
        self.witness = Witness(store, rank, size, timeout_s, end_hung)
        self.replicated: Callable[[], Settings] = dict
        """Answers what is equal on all ranks after a step besides the settings; set by who holds the parameters."""

    def begin_step(self, step: int, kind: str) -> None:
        """Tell which step comes."""
        self._step = step
        self._label = f"step {step} ({kind})"
        self.witness.does(step, kind)

    def first(self, settings: Callable[[], Settings]) -> None:
        """Compare settings if the step that has begun is the first, or the first after a load, or each is compared.

        Raises:
            MismatchError: Two ranks and the first value in which they differ are named.
            PeerError: A rank stayed silent.
        """
        if self._check == "each" or self._fresh:
            self._fresh = False
            self.compare_settings(settings())

    def end_step(self, settings: Callable[[], Settings], launch: Callable[[Tensor], Any]) -> None:
        """Compare settings now and then; called after every step that communicated.

        Args:
            settings: Answers what must be equal on all ranks.
            launch: Begins the element-wise maximum of an int64 tensor over all ranks, in place, and answers its work.

        Raises:
            MismatchError: The settings of two ranks differed when they were last compared; both are named.
            PeerError: A rank stayed silent.
        """
        if self._check == "off" or self._size == 1:
            return
        if self._verdict is not None:
            work, held, mine = self._verdict
            self._verdict = None
            self.wait_for(work, ("settings",))
            highest, lowest = held.tolist()[:3], held.tolist()[3:]
            if highest != [-value for value in lowest]:
                self.compare_settings(mine)
        self._communicating += 1
        if self._communicating % (1 if self._check == "each" else EVERY) == 0:
            mine = {**settings(), **self.replicated()}
            words = [self._step, _hash(self._label), _hash(json.dumps(mine, sort_keys=True))]
            held = torch.tensor([*words, *(-word for word in words)], dtype=torch.int64)
            self._verdict = launch(held), held, {"step": self._label, **mine}

    def reset(self) -> None:
        """The next step counts as the first again (after a checkpoint was loaded)."""
        self._fresh = self._check != "off"

    def before(self, signature: tuple[str, ...]) -> None:
        """This rank asks for the collective of this signature next."""
        self.witness.does(self._step, f"({', '.join(signature)})", asks=True)

    def together(self, call: str) -> None:
        """Wait until all ranks are at `call`, which communicates outside of a step; compared unless `check` is off.

        Without it the collective of a call that one rank makes alone pairs with the next one of a step.

        Raises:
            MismatchError: Another rank is at another call, or has gone on with its training; both are named.
            PeerError: A rank has ended or stayed silent.
        """
        if self._check == "off" or self._size == 1:
            return
        self._label = f"{call}, between steps"
        words = self._gathered(self._label, aside=True)
        if len(set(words)) > 1:
            self._linger()
            other = next(i for i, theirs in enumerate(words) if theirs != words[0])
            raise MismatchError(
                f"{odd_ones(words)}rank 0 is at {words[0]}, but rank {other} at {words[other]}. {_ON_ALL}"
            )

    def compare_settings(self, settings: Settings, *, always: bool = False) -> None:
        """Compare what must be equal on all ranks, value by value; unless `check` is off, or `always`.

        Raises:
            MismatchError: Two ranks and the first value in which they differ are named.
            PeerError: A rank stayed silent.
        """
        if (self._check == "off" and not always) or self._size == 1:
            return
        self.witness.does(self._step, "(settings)", asks=True)
        if len(set(self._gathered(str(_hash(json.dumps(settings, sort_keys=True)))))) == 1:
            return
        words = self._gathered(json.dumps(settings))
        for other, word in enumerate(words):
            if word == words[0]:
                continue
            self._linger()
            mine, theirs = json.loads(words[0]), json.loads(word)
            name = next(key for key in {**mine, **theirs} if mine.get(key) != theirs.get(key))
            values = [json.dumps(json.loads(word).get(name)) for word in words]
            raise MismatchError(
                f"{mine.get('step', self._label)}: {odd_ones(values)}rank 0 has {name} = {mine.get(name, 'none')}, "
                f"but rank {other} has {name} = {theirs.get(name, 'none')}. All ranks must build the same model, give the same "
                "options, step their schedulers alike and take the same steps: end this training, make them equal, and go on "
                "from a checkpoint"
            )

    @property
    def compares(self) -> bool:
        """Whether anything is compared at all."""
        return self._check != "off"

    def wait_for(self, work: Any, signature: tuple[str, ...]) -> None:
        """Wait for a collective on the CPU, `timeout_s` at most, and no longer than all ranks still take part.

        Args:
            work: What torch.distributed answered at its launch.
            signature: Names it.

        Raises:
            PeerError: A rank is finished, has failed, is lost, or stayed silent; it is named.
        """
        deadline = time.monotonic() + self._timeout_s
        while True:
            try:
                work.wait(timedelta(seconds=min(_POLL_S, self._timeout_s)))
                return
            except RuntimeError as error:
                if work.is_completed():
                    try:
                        work.wait()  # it may have come to its end just now
                        return
                    except RuntimeError as final:
                        if not of_a_peer(final):
                            raise
                        raise self.failed(signature, final) from final
                ended, advice = self._ended()
                if ended:
                    raise self._peer_error(f"{self._asks(signature)}, but {ended}.", advice) from error
                if time.monotonic() >= deadline:
                    raise self._peer_error(
                        f"{self._asks(signature)}, and waited for {self._timeout_s:g} s. Look at the "
                        "log of the rank that is silent; if it is merely slow, raise timeout_s.",
                        _UNEVEN,
                    ) from error

    def leave(self, why: str, advice: str = _UNEVEN) -> None:
        """Tell the others that this rank takes no further part, why, and what they should advise; the first reason counts."""
        if self._note is not None or self._size == 1 or os.getpid() != self._process:
            return  # the end of a forked child is not that of the rank
        self.witness.notices(True)
        ends = why == ENDED
        if ends:
            self.witness.stop()
            if (uncaught := getattr(sys, "last_value", None)) is not None:
                why = f"has stopped ({type(uncaught).__name__}: {uncaught})"
        try:
            self._note = f"ended/{self._store.add('ended', 1)}"
            self._store.set(self._note, json.dumps([self._rank, self._completed, why, advice]))
        except RuntimeError:
            return  # the host of the store is gone, and who waits for this rank has noticed
        if not ends:
            self.witness.linger()

    def completed(self, steps: int) -> None:
        """This rank has completed so many steps; if it had stopped, it goes on after all."""
        self._completed = steps
        self.witness.notices(False)
        self.witness.does(steps, OUTSIDE)
        if self._note is not None:
            with suppress(RuntimeError):  # nobody reads there any more
                self._store.delete_key(self._note)
            self._note = None

    def _ended(self, aside: bool = False) -> tuple[str, str]:
        """Who has ended without completing the present step (aside: at all), and their advice; empty if nobody."""
        try:
            left = findings(self._store)
        except RuntimeError:
            return "", ""
        late = {rank: own for rank, own in left.items() if aside or own.steps <= self._step}
        words = "; ".join(f"rank {rank} {own.why} after {own.steps} steps" for rank, own in late.items())
        return words, ". ".join(dict.fromkeys(own.advice for own in late.values()))

    def value_of(self, key: str) -> str:
        """What a rank has put into the store under `key`, as soon as one has."""
        return self._awaited(
            key, f"rank {self._rank} waits for the settings of {self._label}, but another rank"
        )

    def _awaited(self, key: str, who: str, aside: int | None = None) -> str:
        """The value of `key`. who: the beginning of the sentence that says who left it out; aside: which rank, outside of a step.

        It is asked for again and again: a wait of the store's own that ends in vain writes a warning to the log each time.
        """
        started, asked_at, pause_s = time.monotonic(), time.monotonic(), 0.0005
        while True:
            try:
                if self._store.check([key]):
                    return str(self._store.get(key).decode())
            except RuntimeError as error:  # torch raises DistStoreError, a RuntimeError
                raise self._peer_error(
                    f"{who} can tell it: the store is gone ({_first_line(error)}).", _RESTART
                ) from error
            now = time.monotonic()
            if now - asked_at >= min(_POLL_S, self._timeout_s):
                asked_at = now
                ended, advice = self._ended(aside is not None)
                if ended:
                    raise self._peer_error(f"{who} has not; {ended}.", advice)
                if aside is not None and (elsewhere := self.witness.ahead(aside)):
                    raise MismatchError(f"{who} {elsewhere}. {_ON_ALL}")
            if now - started >= self._timeout_s:
                raise self._peer_error(
                    f"{who} has asked for nothing within {self._timeout_s:g} s. Look at the log "
                    "of the rank that is silent; if it is merely slow, raise timeout_s.",
                    _UNEVEN,
                )
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, 0.02)

    def _gathered(self, word: str, aside: bool = False) -> list[str]:
        """The words of all ranks; aside: outside of a step."""
        self._number += 1
        prefix = f"agree/{self._number}"
        self._store.set(f"{prefix}/{self._rank}", word)
        asks = f"rank {self._rank} {'is at' if aside else 'asks for'} {word[:200]}, but rank"
        words = [
            self._awaited(f"{prefix}/{rank}", f"{asks} {rank}", rank if aside else None)
            for rank in range(self._size)
        ]
        if self._number > 2:  # nobody can still be reading the words before the last
            self._store.delete_key(f"agree/{self._number - 2}/{self._rank}")
        return words

    def failed(self, signature: tuple[str, ...], error: RuntimeError) -> MismatchError | PeerError:
        """The error for a collective that failed since ranks differ, or a peer or the line to it is lost."""
        mine = self._asks(signature)
        if _UNLIKE in str(error):
            return MismatchError(
                f"{mine}; {_first_line(error)}. What a method sends must depend on its options, the step and agreed values "
                "only; do all ranks run the same code with the same options?"
            )
        ended, advice = self._ended()
        if ended:
            return self._peer_error(f"{mine}, but {ended}.", advice)
        return self._peer_error(f"{mine}; it failed: {_first_line(error)}.", _RESTART)

    def _peer_error(self, what: str, advice: str) -> PeerError:
        """`what` and the advice, with the ranks in front whose fault it is; the others hear of it, and give the same advice."""
        self.witness.notices(True)
        culprits, words = self.witness.culprits()
        because = ", ".join(f"rank {rank}" for rank in culprits) or "others"
        self.leave(f"has stopped because of {because}", advice)
        what = f"{what} {advice}"
        return PeerError(f"{words}. {what}" if words else what)

    def _asks(self, signature: tuple[str, ...]) -> str:
        return f"rank {self._rank} asks for {self._label}: ({', '.join(signature)})"

    def _linger(self) -> None:
        """Wait until all ranks have read the verdict (bounded): the host of the store must outlive the others."""
        key = f"agree/{self._number}/0/read"
        read = self._store.add(key, 1)
        deadline = time.monotonic() + _LINGER_S
        while self._rank == 0 and read < self._size and time.monotonic() < deadline:
            time.sleep(0.01)
            read = self._store.add(key, 0)


def described(options: object) -> str:
    """A configuration in words that are the same in every process: functions in it lie elsewhere in each."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(options))


def of_a_peer(error: RuntimeError) -> bool:
    """Whether a collective failed since another rank or the line to it did; else torch could not do what was asked."""
    words = ("gloo/", "onnection", "Broken pipe", "monitoredBarrier", _UNLIKE)
    return isinstance(error, dist.DistError) or any(word in str(error) for word in words)


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
