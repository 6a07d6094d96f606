"""A case: one thing whose seconds a session measures, and the identity by which results are joined to it.

A method whose steps are not all alike is several cases, one a kind of step; methods that differ only in *when* they
take a step of some kind share a case.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Final, Literal

from suite.runs.files import identity, plain

ROUND: Final = "round-"
"""Kinds that are rounds of local steps start with this; the number of steps follows."""
AVERAGE: Final = "average"
"""Kind of the step that ends a round of local steps."""

PLACES: Final = ("stage", "collective", "group")
SENT: Final = ("calls", "payload_bytes", "wire_bytes", "received_bytes")
"""Keys of a block's `stages`: where bytes belong, and what is counted a unit."""

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
    def from_dict(cls, data: Mapping[str, Any]) -> Case:
        """Read back what `as_dict` gave."""
        return cls(**{key: value for key, value in data.items() if key != "case_id"})

    def _fields(self) -> dict[str, Any]:
        return {field.name: plain(getattr(self, field.name), field.name) for field in fields(self)}
