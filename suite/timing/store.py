"""Records of sessions: what stands in them, and where: ``<root>/sessions/<name>/<session_id>/session.json``, replaced whole.

Declared is what readers rely on. A *case* is one thing whose seconds a session measures, with the identity by which results are
joined to it: a method whose steps are not all alike is several cases, one a kind of step, and methods that differ only in *when*
they take a step of some kind share one.
"""

import secrets
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import Field
from typing_extensions import TypedDict

from suite.runs.files import (
    JSON,
    Amount,
    Count,
    Positive,
    RefusedError,
    dump,
    identity,
    plain,
    problem,
    write_atomic,
)
from suite.runs.store import Provenance, read_version

SESSION_VERSION: Final = 1
FILE: Final = "session.json"
AGAIN: Final = "move its folder away, and run the session again"

# Cases


ROUND: Final = "round-"
"""Kinds that are rounds of local steps start with this; the number of steps follows."""
AVERAGE: Final = "average"
"""Kind of the step that ends a round of local steps."""

Role = Literal["ddp", "method"]
Mode = Literal["run", "null", "serial"]
"""run: as in training. null: collectives replaced by local copies. serial: every collective waited for at once, so
that phases can be told apart."""


@dataclass(frozen=True)
class Case:
    """What is timed.

    role: ``ddp`` (torch's DistributedDataParallel, measured as it is) or ``method`` (one of ours). label: for people, unique
    in a session. kind: the kind of step that counts; others are passed by. unit_steps: steps in a timed unit, a round from
    one synchronisation to the next, or as many rounds as take a model in fragments once over. algorithm: a registered name,
    or for ``ddp`` one of ``fp32``, ``bf16``, ``powersgd``. options: all options that decide what a step of this kind does,
    defaults filled in.
    """

    role: Role
    label: str
    kind: str
    unit_steps: int
    algorithm: str
    options: Mapping[str, Any]

    @cached_property
    def case_id(self) -> str:
        """16 hex digits: the hash of everything but the label, worked out once."""
        return identity({key: value for key, value in self._fields().items() if key != "label"})

    @property
    def overlaps(self) -> bool:
        """Whether a later step waits for what a step has sent: methods that can do so have the option `overlap`, in steps."""
        return bool(self.options.get("fields", {}).get("overlap"))

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values, the id included."""
        return {"case_id": self.case_id, **self._fields()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Case":
        """Read back what `as_dict` gave."""
        return cls(**{key: value for key, value in data.items() if key != "case_id"})

    def _fields(self) -> dict[str, Any]:
        return {field.name: plain(getattr(self, field.name), field.name) for field in fields(self)}


# Records


class Block(TypedDict):
    """A case timed once in a round."""

    __pydantic_config__ = JSON  # type: ignore[misc]
    round: Annotated[Count, Field(description="Number of the round.")]
    position: Annotated[Count, Field(description="Place in the round's drawn order.")]
    attempt: Annotated[Count, Field(description="Above 0: a repetition of a block that was disturbed.")]
    case_id: Annotated[str, Field(description="What was timed.")]
    mode: Annotated[str, Field(description="run, null or serial.")]
    unit_s: Annotated[Amount, Field(description="Seconds a unit of the slowest rank over the block.")]
    disturbed: Annotated[bool, Field(description="Whether other load was seen beside it.")]


class LinkRecord(TypedDict):
    """What was measured on a link."""

    __pydantic_config__ = JSON  # type: ignore[misc]
    label: Annotated[str, Field(description="For people: rate and delay.")]
    link: Annotated[
        dict[str, Any],
        Field(description="Rate in bits a second, delay in seconds; or what a real link is."),
    ]
    status: Annotated[str, Field(description="How the link ended.")]
    reason: Annotated[str, Field(description="Why it is not done; empty where it is.")]
    blocks: Annotated[list[Block], Field(description="What was timed, block by block.")]
    direct: Annotated[list[dict[str, Any]], Field(description="Whole trainings.")]
    probe: Annotated[list[dict[str, Any]], Field(description="Rates that were measured before.")]


class SessionRecord(TypedDict):
    """The record of a timing session."""

    __pydantic_config__ = JSON  # type: ignore[misc]
    schema_version: Annotated[Positive, Field(description="Version of this file, 1.")]
    name: Annotated[str, Field(description="The session's name.")]
    session_id: Annotated[str, Field(description="When it was begun, UTC, and eight random hex digits.")]
    status: Annotated[
        Literal["done", "disturbed", "unavailable", "error", "cancelled"],
        Field(
            description="How it ended. done: a link has numbers; disturbed: none has; unavailable: no cluster can be made."
        ),
    ]
    reason: Annotated[str, Field(description="Why it is not done; empty where it is.")]
    fix: Annotated[str, Field(description="The command that helps, where there is one.")]
    started: Annotated[str, Field(description="When it was begun, UTC.")]
    ended: Annotated[str, Field(description="When it was last written, UTC.")]
    title: Annotated[str, Field(description="One line from the session file.")]
    sweep: Annotated[str | None, Field(description="The sweep that it times. Null: it belongs to none.")]
    spec: Annotated[dict[str, Any], Field(description="The session file with its defaults.")]
    workload: Annotated[dict[str, Any], Field(description="What is timed.")]
    parameters: Annotated[Positive, Field(description="Parameters of its model.")]
    world_size: Annotated[Positive, Field(description="Ranks.")]
    batch_size: Annotated[Positive, Field(description="Examples a rank and step.")]
    bucket_bytes: Annotated[Positive, Field(description="Bytes of a gradient bucket.")]
    shardings: Annotated[list[str], Field(description="How the data is spread; - without a sweep.")]
    provenance: Annotated[Provenance, Field(description="As in a run's result.")]
    machine: Annotated[
        dict[str, Any],
        Field(
            description="Cores, ranks, threads, oversubscription, allocator, governor, load, congestion control; real nodes."
        ),
    ]
    cases: Annotated[list[dict[str, Any]], Field(description="What was timed, below.")]
    uses: Annotated[dict[str, Any], Field(description="Arm, sharding, kind of step: the id of the case.")]
    links: Annotated[list[LinkRecord], Field(description="What was measured on each link.")]


def new_id(now: datetime | None = None) -> str:
    """``20261120T183000Z-ab12cd34``: when it was begun, and eight random hex digits. Sorts by time."""
    return f"{(now or datetime.now(UTC)):%Y%m%dT%H%M%SZ}-{secrets.token_hex(4)}"


def path_of(root: Path | str, name: str, session_id: str) -> Path:
    """The file of a record, whether it exists or not."""
    return Path(root) / "sessions" / name / session_id / FILE


def put(root: Path | str, record: Mapping[str, Any]) -> Path:
    """Write a record as it is now; returns the file. Raises `StoreError`."""
    path = path_of(root, record["name"], record["session_id"])
    write_atomic(path, dump(record, indent=1) + "\n")
    return path


def records(root: Path | str, name: str) -> list[dict[str, Any]]:
    """All records of a session of that name that can be read, oldest first; `refused` lists the others."""
    paths = (Path(root) / "sessions" / name).glob(f"*/{FILE}")
    return [found for found in _found(paths) if isinstance(found, dict)]


def refused(root: Path | str) -> list[RefusedError]:
    """The records of all sessions that are damaged, or of a version that this code does not read."""
    paths = (Path(root) / "sessions").glob(f"*/*/{FILE}")
    return [found for found in _found(paths) if isinstance(found, RefusedError)]


def _found(paths: Iterable[Path]) -> Iterator[dict[str, Any] | RefusedError]:
    for path in sorted(paths):
        try:
            found = read_version(path, SESSION_VERSION, partial(problem, SessionRecord), AGAIN)
            if found is not None:
                yield found
        except RefusedError as error:
            yield error
