"""Are all ranks in the same step, with the same settings? And which one does not come?

Settings are compared through the store at construction, and before the first step and the first after a load: all ranks compare
with all, and the process that hosts the store lingers until the others have read the verdict. Later steps are held together by
one small all-reduce in every sixteenth step that communicates: the maximum of (step, kind, hash of the settings) and of its
negative, awaited one such step later, so that it costs no waiting. Only where it shows a difference do ranks put their settings
into the store and name it.

Collectives themselves are torch's to compare: with TORCH_DISTRIBUTED_DEBUG=DETAIL it does so before each launch, and what it
finds is told with the step. Without it another dtype or size may kill a process outside of Python, and another collective hangs.

A rank that is finished, or has failed, says so in the store; one that waits reads it once a second, and needs not wait until its
time is up. One that dies or hangs leaves the others waiting in a collective, which knows that somebody did not come, and not who.
So every process has a thread that writes a *sign of life* into the store about once a second: how many collectives this rank has
asked for, its step, what it does, and, once a rank waits in vain, where its program stands. The training itself only sets an
attribute. Whoever waits in vain reads the signs of all: one that no longer changes is of a process that has died, or is cut off;
one with fewer collectives is of a rank that is alive and elsewhere. What one rank has found out it leaves in the store: whoever
fails because a witness has gone names the culprit. The process that hosts the store stays until the others can have read it.

A rank that hangs reads there too that it was named. With ``end_hung`` its thread then ends the process (`EXIT_HUNG`) if the
training does not move for as long as a dead rank is waited for, and has not noticed by itself.
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
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from reference_impls.errors import MismatchError, PeerError, UnsupportedError

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

# ---- which rank does not come -----------------------------------------------------------------------------------------


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


class Witness:
    """Says what this rank does, and finds out who it is that does not come.

    Its thread writes this rank's sign, and keeps what others left in the store at hand, in case that the store goes away. It runs
    until `stop`.

    Args:
        store: Shared by the ranks of one training.
        rank: Of this process among them.
        size: Their number; a lone rank has nobody to tell, and no thread.
        timeout_s: Seconds that a rank waits for another; signs come more often where it is short.
        end_hung: Whether this process ends itself when others have named it and it does not move.
    """

    def __init__(self, store: Store, rank: int, size: int, timeout_s: float, end_hung: bool = False) -> None:
        self._store, self._rank, self._size = store, rank, size
        self._every_s, self._end_hung = min(SIGN_S, timeout_s / 16), end_hung
        self._now: tuple[int, int, str] = (0, 0, "construction")
        """Collectives asked for, step, what it does: a fresh tuple whenever one of them changes."""
        self._noticed = False
        """Whether the training has found out by itself that it cannot go on."""
        self._findings: dict[int, Finding] = {}
        self._gone = 0
        self._world: dict[int, int] = {}
        self._process, self._watched, self._ended = os.getpid(), threading.get_ident(), threading.Event()
        self._thread: threading.Thread | None = None
        if size > 1 and dist.is_initialized():
            self._thread = threading.Thread(target=self._run, name="bandwise-signs", daemon=True)
            self._thread.start()

    def does(self, step: int, what: str, asks: bool = False) -> None:
        """This rank is in `step`, at `what`; asks: which is one more collective."""
        self._now = self._now[0] + asks, step, what

    def notices(self, fault: bool) -> None:
        """The training knows that it cannot go on, or goes on after all."""
        self._noticed = fault

    def stop(self) -> None:
        """No more signs; before the interpreter ends the thread, perhaps within a call of the store's."""
        self._ended.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread() and os.getpid() == self._process:
            thread.join(2.0)  # a forked child has no such thread

    # ---- the thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:  # a connection of its own: a long wait of the training's must not hold it up
            store: Store = self._store.clone()  # type: ignore[attr-defined]
        except (RuntimeError, NotImplementedError, AttributeError):
            store = self._store
        facts, number = (dist.get_rank(), socket.gethostname(), os.getpid()), 0
        seen, since, gone = self._now, time.monotonic(), False
        named: tuple[float, str] | None = None
        while not self._ended.is_set():
            now = self._now
            if now is not seen:
                seen, since, named = now, time.monotonic(), None
            idle_s = time.monotonic() - since
            number += 1
            try:
                if not gone:  # where a program stands is looked up where somebody waits: frames that run are not safe to walk
                    place = _place(self._watched) if store.add("where", 0) else ""
                    store.set(f"sign/{self._rank}", json.dumps(Sign(number, *now, idle_s, place, *facts)))
                    if store.add("ended", 0):
                        self._findings = findings(store)
            except RuntimeError:
                gone = True  # the store, and who needs it notices
                if named is None:
                    return
            if self._end_hung and not self._noticed:
                words = [own.words for own in self._findings.values() if self._rank in own.blames]
                named = named or ((time.monotonic(), words[0]) if words else None)
                if named is not None and time.monotonic() - named[0] >= self._patience_s:
                    self._exit(named[1])
            self._ended.wait(self._every_s)

    @property
    def _patience_s(self) -> float:
        """Seconds without a sign after which a rank counts as dead."""
        return max(_PATIENCE_S, _MISSED * self._every_s)

    def _exit(self, words: str) -> None:
        sys.stderr.write(
            f"rank {self._rank} ends its process (end_hung=True), since others have stopped because of it: {words}. It stands at "
            f"{_place(self._watched) or 'a place unknown'}. Start all ranks again from the last checkpoint\n"
        )
        sys.stderr.flush()
        os._exit(EXIT_HUNG)

    # ---- who it is -------------------------------------------------------------------------------------------------

    def ahead(self, rank: int) -> str:
        """Where a rank is that has asked for more collectives than this one; "" if it has not."""
        sign = None if self._thread is None else self._signs([rank])[rank]
        return "" if sign is None or sign.asked <= self._now[0] else f"is in step {sign.step}, {sign.doing}"

    def culprits(self) -> tuple[Sequence[int], str]:
        """The ranks because of which this one cannot go on, and what is the matter with them; none, if nobody can tell.

        Tells the others too. Takes up to some seconds, which a rank needs to miss its signs.
        """
        if self._thread is None:
            return [], ""
        try:
            found = self._of(findings(self._store))
            found = found if found[0] else self._from_signs()
        except RuntimeError:
            found = self._of(self._findings)
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
        if self._thread is None or _agent_hosts() or dist.get_rank() != 0:
            return
        now = time.monotonic()
        deadline = now + min(_LINGER_S, (_MISSED + 2) * self._every_s)
        least = now + 2 * self._every_s if self._gone and self._end_hung else now
        with suppress(RuntimeError):
            while time.monotonic() < deadline and (
                time.monotonic() < least or len(findings(self._store)) < self._size - self._gone
            ):
                time.sleep(self._every_s / 10)

    def _of(self, left: Mapping[int, Finding]) -> tuple[Sequence[int], str]:
        """Those who ended by themselves before this step was complete; else those whom a witness names."""
        late = {rank: own for rank, own in left.items() if own.steps <= self._now[1] and rank != self._rank}
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
        others = [rank for rank in range(self._size) if rank != self._rank]
        self._store.add("where", 1)
        first, deadline = self._signs(others), time.monotonic() + self._patience_s
        while True:
            time.sleep(self._every_s / 4)
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
        behind = [rank for rank, sign in signs.items() if sign.asked == least < self._now[0]]
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


# ---- do ranks agree ---------------------------------------------------------------------------------------------------


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
        if self._size == 1 or os.getpid() != self._process:
            return  # the end of a forked child is not that of the rank
        self.witness.notices(True)
        if ends := why == ENDED:
            self.witness.stop()
        if self._note is not None:
            return
        if ends and (uncaught := getattr(sys, "last_value", None)) is not None:
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
