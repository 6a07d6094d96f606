"""How a run stands: a closed vocabulary, each with a reason where it is not the hoped-for one.

Terminal words come in two sorts. *Settled*: the outcome belongs to the method and would come again (done, diverged,
skipped), so a sweep never repeats it. *Circumstance*: something outside of it (memory, time, a lost node, a fault
in the program), so the next sweep tries again. The others are never terminal: `interrupted` has a checkpoint and will
go on, `queued` waits in a scheduler.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Final

from pydantic import ConfigDict, Field, Strict
from pydantic.dataclasses import dataclass as declared

from suite.runs.spec import AS_GIVEN, Text, Whole

SETTLED: Final = frozenset({"done", "diverged", "skipped"})
CIRCUMSTANCE: Final = frozenset({"oom", "timeout", "preempted", "node_lost", "error", "cancelled", "invalid"})
TERMINAL: Final = SETTLED | CIRCUMSTANCE
Seconds = Annotated[float, Strict(), Field(ge=0), AS_GIVEN]
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


@declared(frozen=True, config=ConfigDict(extra="ignore", allow_inf_nan=False))
class Note:
    """What a run's status.json says. A key that is not given has its default."""

    state: Text = Field(description="A word of the closed vocabulary.")
    reason: Text = Field(default="", description="Why, where it is not the hoped-for one.")
    attempt: Annotated[Whole, Field(ge=0)] = Field(
        default=0, description="How often the run has begun, this time included."
    )
    updated_s: Seconds = Field(default=0.0, description="Time of the last change, seconds since 1970.")
    step: Annotated[Whole, Field(ge=0)] = Field(
        default=0, description="Completed steps that its checkpoint holds."
    )
    owner: Text = Field(default="", description="Who works on the run.")
    tries: Annotated[Whole, Field(ge=0)] = Field(
        default=0,
        description="Attempts in a row that began at that step, all before the last ended without a word.",
    )
    lost_s: Seconds = Field(
        default=0.0,
        description="Seconds trained in vain by attempts that ended without a word, as far as signs of life tell.",
    )
    together: Annotated[Whole, Field(ge=1)] = Field(
        default=1, description="Runs that share its process's time."
    )

    def as_dict(self) -> dict[str, Any]:
        """Plain data, as it is written."""
        return asdict(self)


def counts(statuses: Iterable[Status]) -> dict[str, int]:
    """How many of each state, most frequent first."""
    found: dict[str, int] = {}
    for status in statuses:
        found[status.state] = found.get(status.state, 0) + 1
    return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))
