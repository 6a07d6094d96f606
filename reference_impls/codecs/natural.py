"""Natural compression: a float32 becomes its sign and a power of two, 9 bits, without bias. Wire format version 1.

Spec: arXiv 1905.10988. The 23 bits of the mantissa, m, are replaced by one draw: the exponent goes up by one with
probability m / 2^23. The message is ``sign * 256 + exponent`` (the biased one of IEEE 754) of each element, packed in 9
bits (`codecs.packed_integers`); there are no scales. r = the lowest 23 bits of the stream's element of the same index; up
where r < m. E|C(x) - x|^2 <= |x|^2 / 8.

* Exponent 0 is zero. Subnormal numbers are rounded without bias to zero or 2^-126, which is 1 / 8 no more.
* From 2^127 on there is no power of two above: magnitudes are rounded down to 2^127, which is biased.
* Infinities and NaN have exponent 255, are sent as such and decode to infinities of their sign.
* A zero of either sign decodes to 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from reference_impls.codecs import packed_integers
from reference_impls.compilation import compiled
from reference_impls.randomness import Key, bits

__all__ = ["BITS", "WIRE_VERSION", "Natural"]

WIRE_VERSION: Final = 1
BITS: Final = 9
_MANTISSA: Final = 0x7FFFFF


@compiled
def _encode(x: Tensor, words: Tensor, codes: Tensor) -> None:
    pattern = x.view(torch.int32)
    exponent = (pattern >> 23) & 255
    up = ((bits(words, x.shape[-1]) & _MANTISSA) < (pattern & _MANTISSA)) & (exponent < 254)
    codes.copy_((exponent + up.to(torch.int32)) | ((pattern < 0).to(torch.int32) << 8))


@compiled
def _decode(codes: Tensor, out: Tensor) -> None:
    exponent = codes & 255
    magnitude = (exponent << 23).view(torch.float32)  # exponent 0: zero; 255: infinity
    out.copy_(torch.where(exponent == 0, 0.0, torch.where(codes > 255, -magnitude, magnitude)))


@dataclass(frozen=True)
class Natural:
    """Codec: sign and exponent."""

    @property
    def unbiased(self) -> bool:
        return True

    def wire_bytes(self, numel: int) -> int:
        return packed_integers.wire_bytes(numel, BITS)

    def encode(self, x: Tensor, key: Key, wire: Tensor) -> None:
        codes = torch.empty(x.shape, dtype=torch.int32, device=x.device)
        _encode(x.contiguous(), key.words.to(x.device), codes)
        packed_integers.pack(codes, BITS, wire)

    def decode(self, wire: Tensor, out: Tensor) -> None:
        codes = torch.empty(out.shape, dtype=torch.int32, device=out.device)
        packed_integers.unpack(wire, BITS, codes)
        _decode(codes, out)
