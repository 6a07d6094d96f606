"""Do all ranks ask for the same collective? Compared through the store before the launch, since afterwards is too late.

On gloo a wrong dtype or a wrong meaning gives wrong numbers without an error, a wrong size kills the process outside
Python, and another collective hangs. All ranks compare with all; the process that hosts the store lingers until the
others have read the verdict. Reads: n - 1 a collective and rank. In a group within
or across nodes only its members compare.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Literal

from reference_impls.errors import MismatchError, PeerError, UnsupportedError

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

Check = Literal["first", "each", "off"]
_LINGER_S = 5.0


class Agreement:
    """Compares requests among ranks.

    check: ``first`` compares the first two steps of every kind (and all after a load), ``each`` every collective,
    ``off`` none. timeout_s: how long a rank waits for the word of another.
    """

    def __init__(
        self, store: Store, rank: int, size: int, check: Check = "first", timeout_s: float = 60.0
    ) -> None:
        if check not in ("first", "each", "off"):
            raise UnsupportedError(f"check must be first, each or off, got {check!r}")
        self._store = store
        self._rank = rank
        self._size = size
        self._check = check
        self._timeout = timedelta(seconds=timeout_s)
        self._number = 0
        self._compared: dict[tuple[int, ...], list[int]] = {}
        self._seen: dict[str, int] = {}
        self._active = check != "off"
        self._words: deque[str] = deque(maxlen=4)

    def begin_step(self, step: int, kind: str) -> None:
        """Tell which step comes; decides whether its collectives are compared."""
        self._label = f"step {step} ({kind})"
        times = self._seen.get(kind, 0)
        self._seen[kind] = times + 1
        self._active = self._check == "each" or (self._check == "first" and times < 2)

    def reset(self) -> None:
        """Compare the first steps of every kind again (after a checkpoint was loaded)."""
        self._seen.clear()

    def before(self, signature: tuple[str, ...], members: Sequence[int] | None = None) -> None:
        """Compare `signature` with that of all `members` (all ranks).

        `MismatchError` names two ranks, `PeerError` a silent one.
        """
        group = tuple(range(self._size) if members is None else members)
        word = f"{self._label}: ({', '.join(signature)})"
        self._words.append(word)
        if not self._active or len(group) == 1:
            return
        self._number += 1
        prefix = f"agree/{self._number}"
        self._store.set(f"{prefix}/{self._rank}", word)
        words = []
        for rank in group:
            try:
                self._store.wait([f"{prefix}/{rank}"], self._timeout)
            except RuntimeError as error:  # torch raises DistStoreError, a RuntimeError
                raise PeerError(
                    f"rank {self._rank} asks for {word}, but rank {rank} has asked for nothing within "
                    f"{self._timeout.total_seconds():g} s. {self._last_words()} Look at the log of rank {rank}; if it is "
                    "merely slow, raise timeout_s"
                ) from error
            words.append(self._store.get(f"{prefix}/{rank}").decode())
        if len(set(words)) > 1:
            self._linger(f"{prefix}/{group[0]}", len(group))
            other = next(i for i, theirs in enumerate(words) if theirs != words[0])
            raise MismatchError(
                f"rank {group[0]} asks for {words[0]}, but rank {group[other]} for {words[other]}. What a method sends "
                "must depend on its options, the step and agreed values only; do all ranks run the same code with the "
                "same options?"
            )
        numbers = self._compared.setdefault(group, [])
        numbers.append(self._number)
        if len(numbers) > 2:  # of this group nobody can still be reading the words before the last
            self._store.delete_key(f"agree/{numbers.pop(0)}/{self._rank}")

    def peer_lost(self, signature: tuple[str, ...], error: RuntimeError) -> PeerError:
        """The error for a collective that failed under way, with what the others asked for last."""
        mine = self._words[-1] if self._words else ", ".join(signature)
        try:
            self._store.set(f"last/{self._rank}", mine)
        except RuntimeError:
            return PeerError(
                f"rank {self._rank}: {mine} failed and the store is gone too ({_first_line(error)}); {_ADVICE}"
            )
        return PeerError(
            f"rank {self._rank}: {mine} failed: {_first_line(error)}. {self._last_words()} {_ADVICE}"
        )

    def _last_words(self) -> str:
        time.sleep(0.2)  # let the others leave theirs
        heard, silent = [], []
        for rank in range(self._size):
            if rank == self._rank:
                continue
            try:
                known = self._store.check([f"last/{rank}"])
            except RuntimeError:
                return "The store is gone."
            if known:
                heard.append(f"rank {rank}: {self._store.get(f'last/{rank}').decode()}")
            else:
                silent.append(str(rank))
        return (
            ("Last words of " + "; ".join(heard) + ". " if heard else "")
            + (f"No word from rank {', '.join(silent)}." if silent else "")
        ).strip()

    def _linger(self, prefix: str, readers: int) -> None:
        """Wait until all ranks have read the verdict (bounded): the host of the store must outlive the others."""
        read = self._store.add(f"{prefix}/read", 1)
        deadline = time.monotonic() + _LINGER_S
        while self._rank == 0 and read < readers and time.monotonic() < deadline:
            time.sleep(0.01)
            read = self._store.add(f"{prefix}/read", 0)


_ADVICE = "Start again from the last checkpoint; the log of the rank that fell silent says why"


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
