"""Which sessions may stand in one curve over the number of workers: those that are alike in everything else.

A weak-scaling curve says what a further worker costs; a session of another model, batch a worker, bucket size, link or
machine differs by more than that, and is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from suite.analysis.published import sessions_held
from suite.analysis.session_tables import load_facts
from suite.costs.samples import MEASURED, link_of, workload_name
from suite.links.link import Link


class JoinError(ValueError):
    """Sessions that do not belong into one curve; the message says what differs."""


@dataclass(frozen=True)
class Held:
    """One link of a session. batch_size: examples a worker. threads: a worker. link: of every worker. machine: kind of it."""

    session: str
    machine: str
    workload: str
    batch_size: int
    bucket_bytes: int
    threads: int
    link: Link

    @property
    def world_size(self) -> int:
        """Workers."""
        return self.link.workers

    @property
    def words(self) -> str:
        """For people: session and link."""
        return f"{self.session} at {self.link.label}"


@dataclass(frozen=True)
class Series:
    """Sessions that are alike but for their workers, the fewest workers first."""

    members: tuple[Held, ...]

    @property
    def like(self) -> Held:
        """One of them, for what they have in common."""
        return self.members[0]

    @property
    def sizes(self) -> tuple[int, ...]:
        """Numbers of workers, each once."""
        return tuple(sorted({one.world_size for one in self.members}))


SAME: Final[Mapping[str, str]] = {
    "machine": "machine",
    "workload": "workload",
    "batch_size": "batch a worker",
    "bucket_bytes": "bucket bytes",
    "threads": "threads a worker",
}
"""Field -> words, of what has to be the same."""


def differences(one: Held, other: Held) -> list[str]:
    """What differs besides the number of workers, in words."""
    found = [
        f"{words} {getattr(one, name)} and {getattr(other, name)}"
        for name, words in SAME.items()
        if getattr(one, name) != getattr(other, name)
    ]
    if one.link.label != other.link.label:  # it tells rates, delay and stragglers
        found.append(f"link {one.link.label} and {other.link.label}")
    return found


def joined(members: Sequence[Held]) -> Series:
    """The sessions as one series. Raises `JoinError` where two differ in more than their workers, or none does in that."""
    first, *rest = members
    for other in rest:
        if unlike := differences(first, other):
            raise JoinError(f"{first.words} and {other.words} are not alike: {'; '.join(unlike)}")
    if len({one.world_size for one in members}) < 2:
        raise JoinError(
            f"{first.words} was held with {first.world_size} workers alone: nothing to scale over"
        )
    return Series(tuple(sorted(members, key=lambda one: (one.world_size, one.session))))


def series_of(held: Sequence[Held]) -> tuple[list[Series], list[str]]:
    """All series there are, and in words what belongs to none."""
    groups: list[list[Held]] = []
    for one in held:
        group = next((known for known in groups if not differences(known[0], one)), None)
        if group is None:
            groups.append([one])
        else:
            group.append(one)
    found, alone = [], []
    for group in groups:
        try:
            found.append(joined(group))
        except JoinError as error:
            alone.append(str(error))
    return found, alone


def held_of(results_root: Path) -> list[Held]:
    """Every link that gave numbers, of all sessions with tables, by name and rate. Raises `TableError` for another version."""
    return [
        one
        for name in sessions_held(results_root)
        for one in _held(name, load_facts(results_root, name) or {})
    ]


def _held(session: str, facts: Mapping[str, Any]) -> list[Held]:
    links = [link_of(link["link"]) for link in facts.get("links", ()) if link["status"] == MEASURED]
    return [
        Held(
            session,
            " ".join(f"{name} {facts['provenance'].get(name)}" for name in ("cpu", "cores", "torch")),
            workload_name(facts["workload"]),
            int(facts["batch_size"]),
            int(facts["bucket_bytes"]),
            int(facts["machine"]["threads_per_rank"]),
            link,
        )
        for link in sorted(links, key=lambda link: (link.rate_bps, link.label))
    ]
