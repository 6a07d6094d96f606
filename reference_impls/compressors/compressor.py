"""What a compressor is: a vector into a message whose length depends on the vector's length alone, and back.

Aggregators (`aggregators.coded_mean`) carry such messages; they need no more of a compressor than this. Whatever a decoder needs,
scales included, travels inside the message. Compressors are frozen dataclasses of options and hold no state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

import torch
from torch import Tensor

from reference_impls.core.compute import Key


class Compressor(Protocol):
    """A message of `wire_bytes(d)` bytes for d elements."""

    def wire_bytes(self, numel: int) -> int:
        """Bytes of the message of `numel` elements; never fewer for more elements; 0 for none."""

    def encode(self, x: Tensor, key: Key, wire: Tensor) -> None:
        """Fill the message.

        Args:
            x: float32 [..., d]; only read. A row encodes as it would alone.
            key: stream of the draws, element i of a row with element i of the stream; ``words`` [3], or [..., 3] with a
                stream a row. Compressors that do not draw pass over it.
            wire: uint8 [..., wire_bytes(d)].
        """

    def decode(self, wire: Tensor, out: Tensor) -> None:
        """Message uint8 [..., wire_bytes(d)] -> `out`, float32 [..., d]. Not finite where a value encoded was not."""


@dataclass(frozen=True)
class PerTensor:
    """The messages of consecutive tensors of `lengths` elements, each encoded alone, behind one another."""

    compressor: Compressor
    lengths: tuple[int, ...]

    def wire_bytes(self, numel: int) -> int:
        self._check(numel)
        return sum(self.compressor.wire_bytes(length) for length in self.lengths)

    def encode(self, x: Tensor, key: Key, wire: Tensor) -> None:
        if wire.is_meta:
            return
        for first, length, message in self._pieces(x.shape[-1], wire):
            self.compressor.encode(x[..., first : first + length], key.at(first), message)

    def decode(self, wire: Tensor, out: Tensor) -> None:
        if out.is_meta:
            return
        for first, length, message in self._pieces(out.shape[-1], wire):
            self.compressor.decode(message, out[..., first : first + length])

    def _pieces(self, numel: int, wire: Tensor) -> Sequence[tuple[int, int, Tensor]]:
        self._check(numel)
        sizes = [self.compressor.wire_bytes(length) for length in self.lengths]
        firsts = accumulate(self.lengths[:-1], initial=0)
        return list(zip(firsts, self.lengths, torch.split(wire, sizes, dim=-1), strict=True))

    def _check(self, numel: int) -> None:
        if numel != sum(self.lengths):
            raise ValueError(f"tensors of {sum(self.lengths)} elements in all cannot cut a vector of {numel}")
