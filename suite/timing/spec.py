"""What a session is: links, arms, rounds, limits. Read from a YAML file by `session_files`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from suite.links.link import Link
from suite.runs.spec import Part
from suite.runs.sweep import Sweep
from suite.runs.yaml_lines import YamlError

FEWEST_BLOCKS: Final = 6
"""Below six rounds the median has no 95 % interval by order statistics."""
ROUND_LENGTHS: Final = (1, 4, 16, 64)
PRECISIONS: Final = ("fp32", "bf16")
DEFAULT_BUCKET_MB: Final = 25
"""DistributedDataParallel's own."""


class UnknownSessionError(ValueError):
    """No session file of that name; the message gives the nearest match."""


@dataclass(frozen=True)
class ArmChoice:
    """An arm of a session without a sweep; `place` is ``file:line``."""

    label: str
    algorithm: str
    options: Mapping[str, Any]
    place: str

    def error(self, key: str, what: str) -> YamlError:
        """The error that says `what` about `key` of this arm, with file and line."""
        return YamlError(f"{self.place}: key 'arms.{self.label}.{key}': {what}")


@dataclass(frozen=True)
class Reference:
    """How the reference is looked for: every precision with every bucket size (MB), tried in `screen_blocks` rounds."""

    optimizer: str
    options: Mapping[str, Any]
    buckets_mb: tuple[int, ...]
    precisions: tuple[str, ...]
    screen_units: int
    screen_blocks: int


@dataclass(frozen=True)
class Direct:
    """Whole runs beside the blocks. steps: length of such a run. links: rates as in the file, or None for all."""

    arms: tuple[str, ...]
    sharding: str
    repeats: int
    steps: int
    links: tuple[str, ...] | None


@dataclass(frozen=True)
class Limits:
    """When a block counts as disturbed: shares of the machine's processor time. retries: a block and round."""

    foreign_share: float
    steal_share: float
    retries: int


@dataclass(frozen=True)
class SessionSpec:
    """A session file as read. `sweep` is the sweep it belongs to, or None; `arms` are those of sessions without one."""

    name: str
    title: str
    minutes: int
    sweep: Sweep | None
    workload: Part
    shardings: tuple[str, ...]
    world_size: int
    batch_size: int
    bucket_bytes: int
    arms: Mapping[str, ArmChoice]
    links: tuple[Link, ...]
    link_rates: tuple[str, ...]
    blocks: int
    spare_blocks: int
    units: int
    block_s: float
    phase_units: int
    phase_s: float
    null_blocks: int
    serial_blocks: int
    warmup: int
    rounds_h: tuple[int, ...]
    reference: Reference
    powersgd_rank: int
    direct: Direct
    limits: Limits
    seed: int

    def as_dict(self) -> dict[str, Any]:
        """Plain values, as they go into the record."""
        direct = {
            "arms": list(self.direct.arms),
            "sharding": self.direct.sharding,
            "repeats": self.direct.repeats,
            "steps": self.direct.steps,
            "links": "all" if self.direct.links is None else list(self.direct.links),
        }
        reference = {
            **vars(self.reference),
            "options": dict(self.reference.options),
            "buckets_mb": list(self.reference.buckets_mb),
            "precisions": list(self.reference.precisions),
        }
        return {
            "minutes": self.minutes,
            "sweep": self.sweep.name if self.sweep else None,
            "arms": {
                a.label: {"algorithm": a.algorithm, "options": dict(a.options)} for a in self.arms.values()
            },
            "links": [link.as_dict() for link in self.links],
            "blocks": self.blocks,
            "spare_blocks": self.spare_blocks,
            "units": self.units,
            "block_s": self.block_s,
            "phase_units": self.phase_units,
            "phase_s": self.phase_s,
            "null_blocks": self.null_blocks,
            "serial_blocks": self.serial_blocks,
            "warmup": self.warmup,
            "rounds_h": list(self.rounds_h),
            "reference": reference,
            "powersgd": {"rank": self.powersgd_rank},
            "direct": direct,
            "disturbed": dict(vars(self.limits)),
            "seed": self.seed,
        }

    def only_links(self, rates: tuple[str, ...]) -> SessionSpec:
        """The session over some of its links. Raises ValueError for a rate that it does not have."""
        for rate in rates:
            if rate not in self.link_rates:
                raise UnknownSessionError(
                    f"session {self.name} has no link of {rate}; its links: {', '.join(self.link_rates)}"
                )
        kept = [i for i, rate in enumerate(self.link_rates) if rate in rates]
        return replace(
            self,
            links=tuple(self.links[i] for i in kept),
            link_rates=tuple(self.link_rates[i] for i in kept),
        )
