"""Full precision first, then compressed momenta: the phases that one-bit Adam and one-bit LAMB share."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from reference_impls import wire
from reference_impls.algorithm import FOREVER, Algorithm, Clock, Cost, Traits, option
from reference_impls.algorithms.compressed_momentum import COMPRESSION, CompressedMomentum
from reference_impls.collectives import Group
from reference_impls.errors import UnsupportedError


@dataclass(frozen=True)
class WarmedUp(CompressedMomentum):
    """Kinds of step: ``warm-up`` (fp32 all-reduce of gradients) and ``compressed`` (1-bit momentum)."""

    warmup_steps: int | None = option(
        None, "T_w: steps in full precision; default warmup_fraction of total_steps", ge=0
    )
    warmup_fraction: float = option(0.15, "T_w as a share of total_steps", ge=0, le=1)
    total_steps: int | None = option(None, "steps of the whole training, from which T_w follows", ge=1)
    lr_warmup_steps: int = option(0, "steps of learning-rate warm-up; T_w is never shorter", ge=0)

    when: ClassVar[tuple[str, ...]] = ("warmup_steps", "warmup_fraction", "total_steps", "lr_warmup_steps")
    """The options that decide only when the warm-up ends."""

    unread: ClassVar[tuple[str, ...]] = COMPRESSION
    """The options that the warm-up does not read."""

    @property
    def known_when(self) -> bool:
        """Whether the options alone say when the warm-up ends."""
        return self.warmup_steps is not None or self.total_steps is not None

    @property
    def frozen_from(self) -> int:
        """T_w: the first compressed step."""
        if self.warmup_steps is not None:
            return max(self.warmup_steps, self.lr_warmup_steps)
        assert self.total_steps is not None  # check() has refused anything else
        return max(math.ceil(self.warmup_fraction * self.total_steps), self.lr_warmup_steps)

    def check_freezing(self) -> None:
        """Raise `UnsupportedError` if it is not said when the warm-up ends."""
        if self.warmup_steps is None and self.total_steps is None:
            raise UnsupportedError(
                f"{type(self).__name__} needs warmup_steps, or total_steps from which it takes warmup_fraction"
            )

    def check(self, world: Group) -> None:
        self.check_freezing()
        super().check(world)

    def plan(self, clock: Clock) -> str:
        return "warm-up" if clock.step < self.frozen_from else "compressed"

    def wire_bytes(self, shapes: Sequence[Sequence[int]], n: int) -> Mapping[str, Cost]:
        exact = wire.all_reduce(4 * wire.elements(shapes), n)
        return {"warm-up": exact, "compressed": self.compressed_bytes(shapes, n)}

    def steady(self) -> Mapping[str, Algorithm]:
        found = {
            "warm-up": self.at_defaults(*self.when, *self.unread, warmup_steps=FOREVER),
            # at 0, no coordinate would have a variance
            "compressed": self.at_defaults(*self.when, warmup_steps=1),
        }
        if not self.known_when:
            return found  # either may come
        if self.frozen_from == 0:
            del found["warm-up"]
        elif self.total_steps is not None and self.frozen_from >= self.total_steps:
            del found["compressed"]
        return found

    def traits(self) -> Traits:
        return Traits(
            bits=f"compressed {self.compressed_bits}; warm-up 2 (n-1)/n x 32",
            unbiased=None,
            sums=self.compressor == "none",
            warm_up=not self.known_when or self.frozen_from > 0,
        )
