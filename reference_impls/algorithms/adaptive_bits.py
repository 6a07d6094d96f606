"""The shape of quantisers that choose their bits a coordinate step by step: QSGD, of a width that `plan` decides.

The kind of a step names the width ("4-bit"), so bytes are exact by kind and all ranks send messages of one length. `plan`
runs before the gradient exists: widths follow from numbers that `remember` kept of the last step's mean gradient, which
all ranks have. A method's own file has its rule, `plan`, and what it remembers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from reference_impls import buffers
from reference_impls.algorithm import (
    DEFAULT,
    Timed,
    option,
)
from reference_impls.algorithms.compressed_gradient import CompressedGradient
from reference_impls.algorithms.qsgd import QSGD
from reference_impls.codecs.blocks import Norm
from reference_impls.codecs.codec import Codec
from reference_impls.codecs.sums import fixed_sum
from reference_impls.collectives import Group
from reference_impls.errors import UnsupportedError

WIDEST = 16


@dataclass(frozen=True)
class AdaptiveBits(CompressedGradient):
    """Kinds of step: ``<b>-bit`` for the widths that may come, and ``warm-up``."""

    norm: Norm = option("linf", "what is sent as the scale: largest magnitude (linf) or 2-norm (l2)")
    block_size: int = option(0, "elements that share a scale; 0: all of a message", ge=0)
    min_bits: int = option(
        2, "fewest bits a coordinate, sign included (one bit is a sign without a level)", ge=2, le=WIDEST
    )
    max_bits: int = option(WIDEST, "most bits a coordinate", ge=2, le=WIDEST)

    def check(self, world: Group) -> None:
        if self.min_bits > self.max_bits:
            raise UnsupportedError(f"min_bits {self.min_bits} is more than max_bits {self.max_bits}")
        super().check(world)

    def fixed(self, bits: int) -> QSGD:
        """QSGD that takes every step with this width."""
        return QSGD(
            optimizer=self.optimizer, form=self.form, granularity=self.granularity,
            error_feedback=self.error_feedback, warmup_steps=self.warmup_steps,
            bits=bits, norm=self.norm, block_size=self.block_size,
        )  # fmt: skip

    def codec(self, n: int) -> Codec:
        return self.fixed(max(self.max_bits, 2)).codec(n)

    @property
    def plans_from_data(self) -> bool:
        return True

    def of_kind(self, kind: str) -> QSGD:
        """QSGD that takes steps of this kind."""
        return self.fixed(self.max_bits if kind == "warm-up" else int(kind.removesuffix("-bit")))

    @property
    def widths(self) -> range:
        """The widths that may come."""
        return range(self.min_bits, self.max_bits + 1)

    when: ClassVar[Sequence[str]] = ()
    """Options that only decide which width a step has."""

    @property
    def timed(self) -> Timed:  # type: ignore[override]
        widths = {
            f"{bits}-bit": {**dict.fromkeys(self.when, DEFAULT), "min_bits": bits, "max_bits": bits}
            for bits in self.widths
        }
        return {**widths, "warm-up": CompressedGradient.timed["warm-up"]} if self.warmup_steps else widths


def whole_norm(parts: Sequence[Tensor], norm: Norm) -> float:
    """Norm of all parts together; not finite where an element is not."""
    if norm == "linf":
        return float(torch.stack([torch.stack(part.aminmax()).abs().amax() for part in parts]).amax())
    squares = [fixed_sum(buffers.empty_like(part, torch.float64).copy_(part).square_()) for part in parts]
    return float(fixed_sum(torch.stack(squares)).sqrt())
