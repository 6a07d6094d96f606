"""How a run stands: a closed vocabulary, each with a reason where it is not the hoped-for one.

Terminal words come in two sorts. *Settled*: the outcome belongs to the method and would come again (done, diverged,
skipped), so a sweep never repeats it. *Circumstance*: something outside of it (memory, time, a lost node, a fault
in the program), so the next sweep tries again. The others are never terminal: `interrupted` has a checkpoint and will
go on, `queued` waits in a scheduler.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Final

SETTLED: Final = frozenset({"done", "diverged", "skipped"})
CIRCUMSTANCE: Final = frozenset({"oom", "timeout", "preempted", "node_lost", "error", "cancelled", "invalid"})
TERMINAL: Final = SETTLED | CIRCUMSTANCE
LIVE: Final = frozenset({"missing", "queued", "running", "interrupted", "stale"})


@dataclass(frozen=True)
class Status:
    """A state out of the vocabulary and why. Raises ValueError for a word outside it, or a bad end without reason."""

    state: str
    reason: str = ""

    def __post_init__(self) -> None:
        if self.state not in TERMINAL | LIVE:
            raise ValueError(f"unknown state {self.state!r}; known: {', '.join(sorted(TERMINAL | LIVE))}")
        if self.state in TERMINAL - {"done"} and not self.reason:
            raise ValueError(f"the state {self.state!r} needs a reason")

    @property
    def terminal(self) -> bool:
        """Whether the run has ended, well or not."""
        return self.state in TERMINAL

    @property
    def settled(self) -> bool:
        """Whether a sweep leaves the run as it is."""
        return self.state in SETTLED


@dataclass(frozen=True)
class Note:
    """What a run's status.json says: `state` and `reason` as of `updated_s` (Unix time).

    attempt: how often the run has begun, this time included. step: completed steps that its checkpoint holds. owner: who
    works on it. tries: how many attempts in a row have begun at that step, all before the last ended without a word.
    lost_s: seconds trained in vain by attempts that ended so, as far as signs of life tell. together: how many runs
    share its process's time.
    """

    state: str
    reason: str = ""
    attempt: int = 0
    updated_s: float = 0.0
    step: int = 0
    owner: str = ""
    tries: int = 0
    lost_s: float = 0.0
    together: int = 1

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Note:
        """Read what `as_dict` gave; fields that an older file lacks have their defaults."""
        known = {field.name for field in fields(cls)}
        return cls(**{key: value for key, value in content.items() if key in known})

    def as_dict(self) -> dict[str, Any]:
        """Plain data, as it is written."""
        return asdict(self)


def counts(statuses: Iterable[Status]) -> dict[str, int]:
    """How many of each state, most frequent first."""
    found: dict[str, int] = {}
    for status in statuses:
        found[status.state] = found.get(status.state, 0) + 1
    return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))
