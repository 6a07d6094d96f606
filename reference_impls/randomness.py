"""Counter-based random streams: every draw is a pure function of what it is for.

A `Key` names a stream by (seed, step, stage, rank or none, name or none) and an element index counts within it, so a
draw does not depend on the order of calls, on threads, on how the parameters are cut into buckets, on the device, or
on whether the code that draws is compiled. There is no state and the global generator is never touched.

The stream, to the bit
----------------------
*Key.* ``k0, k1`` = the first and second little-endian signed 32-bit word of the 8-byte BLAKE2b digest (personalised
with ``b"bandwise-rng-v1"``) of: seed, step and rank as little-endian signed 64-bit integers (rank -1 when the stream is
shared), then for stage and name (no name: the empty string) the UTF-8 length as a little-endian unsigned 32-bit
integer and the bytes. `start` is not hashed: it is the index of the stream's first element, modulo 2**32.

*Bits.* Element ``i`` is, in 32-bit wrap-around arithmetic with logical shifts::

    x = (start + i) ^ k0;  x = mix(x);  x = x + k1;  x = mix(x)
    mix(x):  x ^= x >> 16;  x *= 0x7FEB352D;  x ^= x >> 15;  x *= 0x846CA68B;  x ^= x >> 16

and is read as a signed 32-bit integer. A stream is a permutation of its 2**32 indices and then repeats.

*Uniform.* The top 24 bits times 2**-24: a float32 in [0, 1) on a grid of 2**-24, exact.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass

import torch
from torch import Tensor

from reference_impls import buffers
from reference_impls.compilation import compiled

__all__ = ["Key", "as_uniform", "bits", "bits_at", "uniform"]

_PERSON = b"bandwise-rng-v1"
_FIRST = 0x7FEB352D
_SECOND = 0x846CA68B - (1 << 32)  # the same 32 bits, read as signed


def _mix(x: Tensor) -> Tensor:
    """A bijection of 32-bit integers in which every input bit moves every output bit about half of the time."""
    x = (x ^ ((x >> 16) & 0xFFFF)) * _FIRST  # >> on int32 is arithmetic: the mask makes it logical
    x = (x ^ ((x >> 15) & 0x1FFFF)) * _SECOND
    return x ^ ((x >> 16) & 0xFFFF)


def bits_at(words: Tensor, index: Tensor) -> Tensor:
    """Random int32 [..., *index] at the places `index` (int32) of the streams `words` (int32 [..., 3]: k0, k1, start).

    Also inside compiled code, like all functions here.
    """
    k = words.view(*words.shape[:-1], *[1] * index.dim(), 3)
    return _mix(_mix((k[..., 2] + index) ^ k[..., 0]) + k[..., 1])


def bits(words: Tensor, numel: int) -> Tensor:
    """Random int32 [..., numel], the first ones of the streams; `words` as in `bits_at`."""
    return bits_at(words, torch.arange(numel, dtype=torch.int32, device=words.device))


def as_uniform(random: Tensor) -> Tensor:
    """Random int32 -> float32 in [0, 1), multiples of 2**-24."""
    return ((random >> 8) & 0xFFFFFF).to(torch.float32) * 2.0**-24


def uniform(words: Tensor, numel: int) -> Tensor:
    """Random float32 [..., numel] in [0, 1), multiples of 2**-24; `words` as in `bits_at`."""
    return as_uniform(bits(words, numel))


@compiled
def _fill_bits(out: Tensor, words: Tensor) -> None:
    out.copy_(bits(words, out.shape[-1]))


@compiled
def _fill_uniform(out: Tensor, words: Tensor) -> None:
    out.copy_(uniform(words, out.shape[-1]))


def _signed(word: int) -> int:
    return ((word + (1 << 31)) & 0xFFFFFFFF) - (1 << 31)


@dataclass(frozen=True, eq=False)
class Key:
    """One stream. `words`: int32 [3] on the CPU, (k0, k1, start); [..., 3] is a batch of streams, one a row.

    A tensor and not three integers: compiled functions take it as data and are not compiled again for each step.
    """

    words: Tensor

    def __post_init__(self) -> None:
        if self.words.dtype != torch.int32 or self.words.shape[-1:] != (3,):
            raise ValueError(
                f"a key is int32 [..., 3], not {self.words.dtype} {tuple(self.words.shape)}: build it with Key.of"
            )

    @classmethod
    def of(
        cls,
        *,
        seed: int,
        step: int,
        stage: str,
        rank: int | None = None,
        name: str | None = None,
        start: int = 0,
    ) -> Key:
        """The stream for this purpose.

        Args:
            seed: of the run; any signed 64-bit integer.
            step: of the training run.
            stage: what the draw is for; one stage name a draw.
            rank: whose private stream; None = one stream shared by all ranks.
            name: of the tensor, for draws that are made tensor by tensor; "" is the same as none.
            start: index of element 0, so that a part of a vector draws what the whole would have drawn there.
        """
        if rank is not None and rank < 0:
            raise ValueError(f"rank {rank} is negative; use rank=None for a stream shared by all ranks")
        message = struct.pack("<qqq", seed, step, -1 if rank is None else rank)
        for text in (stage, name or ""):
            encoded = text.encode()
            message += struct.pack("<I", len(encoded)) + encoded
        digest = hashlib.blake2b(message, digest_size=8, person=_PERSON).digest()
        k0, k1 = struct.unpack("<ii", digest)
        return cls(torch.tensor([k0, k1, _signed(start)], dtype=torch.int32))

    def at(self, offset: int) -> Key:
        """The same stream from `offset` elements further on: `key.at(a).bits(n)` equals `key.bits(a + n)[a:]`."""
        words = self.words.clone()  # in place, on whatever device it is: nothing is sent there
        words[..., 2] += _signed(offset)
        return Key(words)

    def bits(self, numel: int, device: torch.device | str | None = None) -> Tensor:
        """int32 [..., numel], all 32 bits random."""
        words = self.words if device is None else self.words.to(device)
        out = buffers.empty((*words.shape[:-1], numel), torch.int32, words.device)
        _fill_bits(out, words)
        return out

    def uniform(self, numel: int, device: torch.device | str | None = None) -> Tensor:
        """float32 [..., numel] in [0, 1), multiples of 2**-24."""
        words = self.words if device is None else self.words.to(device)
        out = buffers.empty((*words.shape[:-1], numel), torch.float32, words.device)
        _fill_uniform(out, words)
        return out
