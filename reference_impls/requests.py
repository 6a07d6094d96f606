"""What a step asks of the network, in numbers: which collectives, over which group, of how many bytes, bucket by bucket.

Plain data, which needs no torch: `reference_impls.drivers.engine` writes it down, `bandwise.costs` reads it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Request:
    """A collective as one rank asks for it. ranks: in its group. nbytes: of the buffer that is handed over. group: world, node or
    cross."""

    collective: str
    stage: str
    ranks: int
    nbytes: float
    dtype: str
    group: str = "world"


@dataclass(frozen=True, slots=True)
class Bucket:
    """A bucket: its share of the model's elements, and the collectives of its `reduce`, one after another."""

    share: float
    requests: tuple[Request, ...]


@dataclass(frozen=True, slots=True)
class Step:
    """One step. plan: before backward. buckets: in the order of submission, the last layers first. after: when all have
    arrived, one after another (what `synchronize` and background exchanges send)."""

    kind: str
    plan: tuple[Request, ...]
    buckets: tuple[Bucket, ...]
    after: tuple[Request, ...]

    def requests(self) -> Iterator[Request]:
        """All of them."""
        yield from self.plan
        for bucket in self.buckets:
            yield from bucket.requests
        yield from self.after
