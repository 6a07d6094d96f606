"""Cases of codecs that say something of every element: signs, integers, powers of two, halves, lookup tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .cases import WORLD_SIZE, Case, decode_adds, module

__all__ = ["CASES", "Keyed"]

LEVELS = (2**7 - 1) // WORLD_SIZE  # what 8 bits leave to each of four ranks
HEAD_ROOM = 2  # log2(WORLD_SIZE) doublings on the way to the sum
NIBBLE_LEVELS = 7  # what 4 bits hold of one rank


class Keyed(Case):
    """A codec with a stream of random numbers."""

    def __init__(self, numel: int) -> None:
        self.key = module("reference_impls.randomness").Key.of(seed=0, step=0, stage="micro", rank=0)
        super().__init__(numel)


class ByProtocol(Keyed):
    """A codec that follows `reference_impls.codecs.codec.Codec`: scales travel inside the message."""

    verbs = ("encode", "decode", "accumulate")

    def __init__(self, numel: int, place: str, name: str, **options: Any) -> None:
        self.codec = getattr(module(f"reference_impls.codecs.{place}"), name)(**options)
        super().__init__(numel)

    def buffer(self, numel: int) -> torch.Tensor:
        return torch.zeros(self.codec.wire_bytes(numel), dtype=torch.uint8)

    def encode(self) -> None:
        self.codec.encode(self.x, self.key, self.wire)

    def decode(self) -> None:
        self.codec.decode(self.wire, self.out)

    def accumulate(self) -> None:
        if decode_adds(self.codec.decode):
            self.codec.decode(self.wire, self.out, add=True)
        else:  # as long as it cannot add itself, what it decodes is added in another pass
            spare = module("reference_impls.buffers").empty_like(self.out)
            self.codec.decode(self.wire, spare)
            self.out.add_(spare)


class EqualLevels(ByProtocol):
    """All elements under one number, packed: codes on a scale that is there (given), or on the largest magnitude."""

    def __init__(self, numel: int, levels: int, *, given: bool) -> None:
        self.given = given
        super().__init__(numel, "uniform_levels", "UniformLevels", levels=levels, norm="linf", block_size=0)
        self.reads = 1 if given else 2

    def buffer(self, numel: int) -> torch.Tensor:
        if not hasattr(self.codec, "encode_by"):
            raise NotImplementedError("this codec finds its scale itself at this commit")
        self.found = self.x.abs().max().view(1, 1)
        return super().buffer(numel)

    def encode(self) -> None:
        if self.given:
            self.codec.encode_by(self.x, self.found, self.key, self.wire)
        else:
            super().encode()


class Signs(Case):
    """One bit an element. Its residual is taken against mean |x|, the best scale for signs; votes send no scale."""

    verbs = ("encode", "decode", "accumulate")

    def buffer(self, numel: int) -> torch.Tensor:
        self.codec = module("reference_impls.codecs.signs")
        self.scales = torch.full((1,), 0.25)
        return torch.zeros(self.codec.wire_bytes(numel), dtype=torch.uint8)

    def encode(self) -> None:
        self.codec.pack_signs(self.x, self.wire, zero=True)

    def decode(self) -> None:
        self.codec.unpack_signs(self.wire, self.out)

    def accumulate(self) -> None:
        self.codec.decode_accumulate(self.wire.unsqueeze(0), self.scales, self.out)

    def restore(self) -> torch.Tensor:
        return super().restore() * self.x.abs().mean()


class StandardDithering(Keyed):
    """Bytes on a scale that all ranks share, as they are added on the way. finds_scale: encoding begins with max |x|."""

    side_bytes = 4
    finds_scale = False
    levels = LEVELS

    def __init__(self, numel: int) -> None:
        super().__init__(numel)
        self.scale = self.largest()
        self.reads = 2 if self.finds_scale else 1

    def largest(self) -> torch.Tensor:
        """As the reducers find it."""
        size_of: Callable[..., torch.Tensor] = module("reference_impls.reducers.shared_scale")._size_of
        return size_of(self.x, "linf")

    def buffer(self, numel: int) -> torch.Tensor:
        self.codec = module("reference_impls.codecs.dithering")
        return torch.zeros(numel, dtype=torch.int8)

    def encode(self) -> None:
        if self.finds_scale:
            self.scale = self.largest()
        self.codec.encode(self.x, self.scale, self.levels, self.key, self.wire)

    def decode(self) -> None:
        self.codec.decode(self.wire, self.scale, self.levels, 1, self.out)


class StandardDitheringGlobal(StandardDithering):
    finds_scale = True


class NibbleDithering(StandardDithering):
    """Two codes a byte, as `reducers.integer_sum` sends them in 4 bits."""

    levels = NIBBLE_LEVELS

    def buffer(self, numel: int) -> torch.Tensor:
        super().buffer(numel)
        self.nibbles = module("reference_impls.codecs.nibbles")
        self.codes = torch.zeros(numel, dtype=torch.int8)
        return torch.zeros(self.nibbles.wire_bytes(numel), dtype=torch.uint8)

    def encode(self) -> None:
        if self.finds_scale:
            self.scale = self.largest()
        self.codec.encode(self.x, self.scale, self.levels, self.key, self.codes)
        self.nibbles.pack(self.codes, self.wire, -self.levels)

    def decode(self) -> None:
        self.nibbles.unpack(self.wire, self.codes, -self.levels)
        self.codec.decode(self.codes, self.scale, self.levels, 1, self.out)


class NibbleDitheringGlobal(NibbleDithering):
    finds_scale = True


class TernaryTwoBit(StandardDithering):
    """TernGrad's codes -1, 0, 1 as they go to their server in 2 bits."""

    levels = 1

    def buffer(self, numel: int) -> torch.Tensor:
        super().buffer(numel)
        self.packing = module("reference_impls.codecs.packed_integers")
        self.codes = torch.zeros(numel, dtype=torch.int8)
        return torch.zeros(self.packing.wire_bytes(numel, 2), dtype=torch.uint8)

    def encode(self) -> None:
        self.codec.encode(self.x, self.scale, self.levels, self.key, self.codes)
        self.packing.pack(self.codes.add_(1), 2, self.wire)

    def decode(self) -> None:
        self.packing.unpack(self.wire, 2, self.codes)
        self.codec.decode(self.codes.sub_(1), self.scale, self.levels, 1, self.out)


class TernaryTrits(TernaryTwoBit):
    """The same, five a byte."""

    def buffer(self, numel: int) -> torch.Tensor:
        super().buffer(numel)
        self.trits = module("reference_impls.codecs.trits")
        return torch.zeros(self.trits.wire_bytes(numel), dtype=torch.uint8)

    def encode(self) -> None:
        self.codec.encode(self.x, self.scale, self.levels, self.key, self.codes)
        self.trits.pack(self.codes, self.wire, -1)

    def decode(self) -> None:
        self.trits.unpack(self.wire, self.codes, -1)
        self.codec.decode(self.codes, self.scale, self.levels, 1, self.out)


class ExponentialDithering(Keyed):
    side_bytes = 4

    def __init__(self, numel: int) -> None:
        super().__init__(numel)
        self.scale = self.x.abs().max()

    def buffer(self, numel: int) -> torch.Tensor:
        self.codec = module("reference_impls.codecs.exponential")
        return torch.zeros(self.codec.wire_bytes(numel), dtype=torch.uint8)

    def encode(self) -> None:
        self.codec.encode(self.x, self.scale, HEAD_ROOM, self.key, self.wire)

    def decode(self) -> None:
        self.codec.decode(self.wire, self.scale, HEAD_ROOM, 1, self.out)


class ScaledRounding(Keyed):
    """IntSGD's integers: a factor that is known before, and whether all was finite."""

    def buffer(self, numel: int) -> torch.Tensor:
        self.codec = module("reference_impls.codecs.scaled_rounding")
        self.codes = torch.zeros(numel, dtype=torch.int32)
        self.factor = LEVELS / (4 * self.x.square().mean().sqrt())
        return torch.zeros(numel, dtype=torch.int8)

    def encode(self) -> None:
        self.codec.encode(self.x, self.factor, LEVELS, "stochastic", self.key, self.codes)
        self.wire.copy_(self.codes)

    def decode(self) -> None:
        self.out.copy_(self.wire).div_(self.factor)


class LionIntegers(Case):
    """Votes in small integers. No scale is sent: a receiver takes the sign of their sum, which is the decoding here."""

    reads = 2

    def buffer(self, numel: int) -> torch.Tensor:
        self.codec = module("reference_impls.codecs.lion_integers")
        return torch.zeros(numel, dtype=torch.int8)

    def encode(self) -> None:
        self.codec.encode(self.x, [slice(0, self.x.numel())], "l1", LEVELS, self.wire)

    def decode(self) -> None:
        self.out.copy_(self.wire).sign_()

    def restore(self) -> torch.Tensor:
        """What the votes say of x, by the scale that made them (gain 0.5)."""
        self.encode()
        scale: torch.Tensor = self.codec.scale_of(self.x, "l1")
        return self.wire * (scale / (0.5 * LEVELS))


class Lookup(Keyed):
    """THC's published table on numbers as they are after the rotation: of variance 1. Its decoding is that of one rank."""

    def buffer(self, numel: int) -> torch.Tensor:
        self.table = module("reference_impls.codecs.lookup").table("published", 4, 30, 1 / 32)
        self.packing = module("reference_impls.codecs.packed_integers")
        self.x = self.x / self.x.square().mean().sqrt()
        self.indices = torch.zeros(numel, dtype=torch.int32)
        return torch.zeros(self.packing.wire_bytes(numel, self.table.bits), dtype=torch.uint8)

    def encode(self) -> None:
        self.table.encode(self.x, self.key, self.indices)
        self.packing.pack(self.indices, self.table.bits, self.wire)

    def decode(self) -> None:
        self.packing.unpack(self.wire, self.table.bits, self.indices)
        self.out.copy_(self.table.look_up(self.indices)).mul_(2).sub_(self.table.top).mul_(
            self.table.unit / 2
        )


class Hadamard(Keyed):
    """The rotation that THC encodes after; nothing is sent by itself, `wire` are the rotated numbers."""

    CHUNK = 1024

    def buffer(self, numel: int) -> torch.Tensor:
        self.chunks = module("reference_impls.codecs.hadamard").Chunks(numel, self.CHUNK)
        coins = self.key.bits(self.chunks.padded) & 1
        self.signs = (coins * 2 - 1).to(torch.float32)
        return torch.zeros(self.chunks.padded)

    def encode(self) -> None:
        self.wire = self.chunks.rotate(self.chunks.pad(self.x), self.signs)

    def decode(self) -> None:
        self.out = self.chunks.rotate_back(self.wire, self.signs)

    def restore(self) -> torch.Tensor:
        self.encode()
        self.decode()
        sizes: torch.Tensor = self.chunks.spread(self.chunks.sizes(self.out.device))
        return self.out / sizes[: self.out.numel()]

    def touched(self, verb: str) -> float:
        return 3 * 4 + 4  # numbers read, numbers written, signs read


def by_protocol(place: str, name: str, **options: Any) -> Callable[[int], Case]:
    return lambda numel: ByProtocol(numel, place, name, **options)


CASES: dict[str, Callable[[int], Case]] = {
    "signs": Signs,
    "scaled-signs": by_protocol("scaled_signs", "ScaledSigns"),
    "standard-dithering-4bit": NibbleDithering,
    "standard-dithering-4bit-global": NibbleDitheringGlobal,
    "standard-dithering-8bit": StandardDithering,
    "standard-dithering-8bit-global": StandardDitheringGlobal,
    "equal-levels-4bit-given": lambda numel: EqualLevels(numel, 7, given=True),
    "equal-levels-4bit-global": lambda numel: EqualLevels(numel, 7, given=False),
    "equal-levels-8bit-given": lambda numel: EqualLevels(numel, 127, given=True),
    "equal-levels-8bit-global": lambda numel: EqualLevels(numel, 127, given=False),
    "equal-levels-4bit": by_protocol("uniform_levels", "UniformLevels"),
    "equal-levels-4bit-linf": by_protocol("uniform_levels", "UniformLevels", norm="linf"),
    "equal-levels-8bit": by_protocol("uniform_levels", "UniformLevels", levels=127),
    "geometric-levels-4bit": by_protocol("geometric_levels", "GeometricLevels"),
    "exponential-dithering": ExponentialDithering,
    "natural-9bit": by_protocol("natural", "Natural"),
    "ternary-2bit": TernaryTwoBit,
    "ternary-trits": TernaryTrits,
    "min-max-4bit": by_protocol("min_max", "MinMax"),
    "lion-8bit-l1": LionIntegers,
    "scaled-rounding-8bit": ScaledRounding,
    "thc-4bit": Lookup,
    "hadamard": Hadamard,
    "bf16": by_protocol("halves", "Halves"),
    "fp16": by_protocol("halves", "Halves", format="fp16"),
}
