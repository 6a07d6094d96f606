"""The compressors as one table of cases, so that every benchmark runs every compressor the same way.

A case holds its buffers and knows how to encode, to decode, for most compressors to add what is decoded to what is there
(`accumulate`, which averaging needs), and how many bytes went over the wire. The control `copy` sends float32 as it is: the time
of a compressor means something only beside a memory copy.

Benchmarks come from the working tree and the code they measure from the commit under test. What a commit does not have
yet therefore raises NotImplementedError, which asv shows as "not available" instead of as a failure.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import math
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
import torch._inductor.compile_fx

VERBS = ("encode", "decode", "accumulate")
WORLD_SIZE = 4
THREADS = 1


def single_thread() -> None:
    """One thread, in every benchmark process: several would measure the machine's other work."""
    torch.set_num_threads(THREADS)


def module(name: str) -> ModuleType:
    """The module, or NotImplementedError where this commit does not have it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise NotImplementedError(f"{name} does not exist at this commit: {error}") from error


@functools.lru_cache(maxsize=1)
def gradient(numel: int) -> torch.Tensor:
    """float32 [numel] of the same numbers always, with heavier tails than a normal: most gradients have them.

    Cases of one size share it, so nobody may write to it.
    """
    source = torch.Generator().manual_seed(20260101)
    normal = torch.randn(numel, generator=source)
    return normal.mul_(torch.rand(numel, generator=source).add_(0.05))


class Case:
    """One compressor on one vector. x, out: float32 [numel]; wire: what is sent; side_bytes: scales sent beside it.

    verbs: what it can do. small_parts: part of its work is on vectors much shorter than x, too short to be compiled for.
    """

    side_bytes = 0
    verbs: tuple[str, ...] = ("encode", "decode")
    small_parts = False

    def __init__(self, numel: int) -> None:
        self.x = gradient(numel)
        self.out = torch.zeros(numel)
        self.wire = self.buffer(numel)

    def buffer(self, numel: int) -> torch.Tensor:
        return torch.zeros(numel, dtype=torch.int8)

    def encode(self) -> None:
        raise NotImplementedError

    def decode(self) -> None:
        raise NotImplementedError

    def accumulate(self) -> None:
        """`out` += what `wire` decodes to."""
        raise NotImplementedError(f"{type(self).__name__} does not add")

    def restore(self) -> torch.Tensor:
        """`x` as it comes out of the wire, scaled as the method scales it: float32 [numel]."""
        self.encode()
        self.decode()
        return self.out

    def sent_bytes(self) -> int:
        return self.wire.numel() * self.wire.element_size() + self.side_bytes


class Copy(Case):
    """The control. Its source is its own, so that no compressor finds its vector in the cache because of it."""

    def __init__(self, numel: int) -> None:
        super().__init__(numel)
        self.x = self.x.clone()

    def buffer(self, numel: int) -> torch.Tensor:
        return torch.zeros(numel)

    def encode(self) -> None:
        self.wire.copy_(self.x)

    def decode(self) -> None:
        self.out.copy_(self.wire)


# Compressors that say something of every element: signs, integers, powers of two, halves, lookup tables


LEVELS = (2**7 - 1) // WORLD_SIZE  # what 8 bits leave to each of four ranks
HEAD_ROOM = 2  # log2(WORLD_SIZE) doublings on the way to the sum
NIBBLE_LEVELS = 7  # what 4 bits hold of one rank


class Keyed(Case):
    """A compressor with a stream of random numbers."""

    def __init__(self, numel: int) -> None:
        self.key = module("reference_impls.core.compute").Key.of(seed=0, step=0, stage="micro", rank=0)
        super().__init__(numel)


class ByProtocol(Keyed):
    """A compressor that follows `reference_impls.compressors.compressor.Compressor`: scales travel inside the message."""

    verbs = ("encode", "decode", "accumulate")

    def __init__(self, numel: int, place: str, name: str, **options: Any) -> None:
        self.compressor = getattr(module(f"reference_impls.{place}"), name)(**options)
        super().__init__(numel)

    def buffer(self, numel: int) -> torch.Tensor:
        return torch.zeros(self.compressor.wire_bytes(numel), dtype=torch.uint8)

    def encode(self) -> None:
        self.compressor.encode(self.x, self.key, self.wire)

    def decode(self) -> None:
        self.compressor.decode(self.wire, self.out)

    def accumulate(self) -> None:
        if "add" in inspect.signature(self.compressor.decode).parameters:
            self.compressor.decode(self.wire, self.out, add=True)
        else:  # as long as it cannot add itself, what it decodes is added in another pass
            spare = module("reference_impls.core.compute").empty_like(self.out)
            self.compressor.decode(self.wire, spare)
            self.out.add_(spare)


class EqualLevels(ByProtocol):
    """All elements under one number, packed: codes on a scale that is there (given), or on the largest magnitude."""

    def __init__(self, numel: int, levels: int, *, given: bool) -> None:
        self.given = given
        super().__init__(
            numel, "compressors.levels", "UniformLevels", levels=levels, norm="linf", block_size=0
        )

    def buffer(self, numel: int) -> torch.Tensor:
        if not hasattr(self.compressor, "encode_by"):
            raise NotImplementedError("this compressor finds its scale itself at this commit")
        self.found = self.x.abs().max().view(1, 1)
        return super().buffer(numel)

    def encode(self) -> None:
        if self.given:
            self.compressor.encode_by(self.x, self.found, self.key, self.wire)
        else:
            super().encode()


class Signs(Case):
    """One bit an element. Its residual is taken against mean |x|, the best scale for signs; votes send no scale."""

    verbs = ("encode", "decode", "accumulate")

    def buffer(self, numel: int) -> torch.Tensor:
        self.compressor = module("reference_impls.compressors.signs")
        self.scales = torch.full((1,), 0.25)
        return torch.zeros(self.compressor.wire_bytes(numel), dtype=torch.uint8)

    def encode(self) -> None:
        self.compressor.pack_signs(self.x, self.wire, zero=True)

    def decode(self) -> None:
        self.compressor.unpack_signs(self.wire, self.out)

    def accumulate(self) -> None:
        self.compressor.decode_accumulate(self.wire.unsqueeze(0), self.scales, self.out)

    def restore(self) -> torch.Tensor:
        return super().restore() * self.x.abs().mean()


class StandardDithering(Keyed):
    """Bytes on a scale that all ranks share, as they are added on the way. finds_scale: encoding begins with max |x|."""

    side_bytes = 4
    levels = LEVELS

    def __init__(self, numel: int, *, finds_scale: bool = False) -> None:
        super().__init__(numel)
        self.finds_scale, self.scale = finds_scale, self.largest()

    def largest(self) -> torch.Tensor:
        """As the aggregators find it."""
        size_of: Callable[..., torch.Tensor] = module("reference_impls.aggregators.integer_sum")._size_of
        return size_of(self.x, "linf")

    def buffer(self, numel: int) -> torch.Tensor:
        self.compressor = module("reference_impls.compressors.dithering")
        return torch.zeros(numel, dtype=torch.int8)

    def encode(self) -> None:
        if self.finds_scale:
            self.scale = self.largest()
        self.compressor.encode(self.x, self.scale, self.levels, self.key, self.wire)

    def decode(self) -> None:
        self.compressor.decode(self.wire, self.scale, self.levels, 1, self.out)


class NibbleDithering(StandardDithering):
    """Two codes a byte, as `aggregators.integer_sum` sends them in 4 bits."""

    levels = NIBBLE_LEVELS

    def buffer(self, numel: int) -> torch.Tensor:
        super().buffer(numel)
        self.packing = module("reference_impls.compressors.packing")
        self.codes = torch.zeros(numel, dtype=torch.int8)
        return torch.zeros(self.packing.nibble_bytes(numel), dtype=torch.uint8)

    def encode(self) -> None:
        if self.finds_scale:
            self.scale = self.largest()
        self.compressor.encode(self.x, self.scale, self.levels, self.key, self.codes)
        self.packing.pack_nibbles(self.codes, self.wire, -self.levels)

    def decode(self) -> None:
        self.packing.unpack_nibbles(self.wire, self.codes, -self.levels)
        self.compressor.decode(self.codes, self.scale, self.levels, 1, self.out)


class TernaryTwoBit(StandardDithering):
    """TernGrad's codes -1, 0, 1 as they go to their server in 2 bits."""

    levels = 1

    def buffer(self, numel: int) -> torch.Tensor:
        super().buffer(numel)
        self.packing = module("reference_impls.compressors.packing")
        self.codes = torch.zeros(numel, dtype=torch.int8)
        return torch.zeros(self.packing.wire_bytes(numel, 2), dtype=torch.uint8)

    def encode(self) -> None:
        self.compressor.encode(self.x, self.scale, self.levels, self.key, self.codes)
        self.packing.pack(self.codes.add_(1), 2, self.wire)

    def decode(self) -> None:
        self.packing.unpack(self.wire, 2, self.codes)
        self.compressor.decode(self.codes.sub_(1), self.scale, self.levels, 1, self.out)


class ExponentialDithering(Keyed):
    side_bytes = 4

    def __init__(self, numel: int) -> None:
        super().__init__(numel)
        self.scale = self.x.abs().max()

    def buffer(self, numel: int) -> torch.Tensor:
        self.compressor = module("reference_impls.compressors.dithering")
        return torch.zeros(numel, dtype=torch.uint8)

    def encode(self) -> None:
        self.compressor.encode_powers(self.x, self.scale, HEAD_ROOM, self.key, self.wire)

    def decode(self) -> None:
        self.compressor.decode_powers(self.wire, self.scale, HEAD_ROOM, 1, self.out)


class ScaledRounding(Keyed):
    """IntSGD's integers: a factor that is known before, and whether all was finite."""

    def buffer(self, numel: int) -> torch.Tensor:
        self.compressor = module("reference_impls.algorithms.intsgd")
        self.codes = torch.zeros(numel, dtype=torch.int32)
        self.factor = LEVELS / (4 * self.x.square().mean().sqrt())
        return torch.zeros(numel, dtype=torch.int8)

    def encode(self) -> None:
        self.compressor.encode(self.x, self.factor, LEVELS, "stochastic", self.key, self.codes)
        self.wire.copy_(self.codes)

    def decode(self) -> None:
        self.out.copy_(self.wire).div_(self.factor)


class LionIntegers(Case):
    """Votes in small integers. No scale is sent: a receiver takes the sign of their sum, which is the decoding here."""

    def buffer(self, numel: int) -> torch.Tensor:
        self.compressor = module("reference_impls.algorithms.lion_integers")
        return torch.zeros(numel, dtype=torch.int8)

    def encode(self) -> None:
        self.compressor.encode(self.x, [slice(0, self.x.numel())], "l1", LEVELS, self.wire)

    def decode(self) -> None:
        self.out.copy_(self.wire).sign_()

    def restore(self) -> torch.Tensor:
        """What the votes say of x, by the scale that made them (gain 0.5)."""
        self.encode()
        scale: torch.Tensor = self.compressor.scale_of(self.x, "l1")
        return self.wire * (scale / (0.5 * LEVELS))


class Lookup(Keyed):
    """THC's published table on numbers as they are after the rotation: of variance 1. Its decoding is that of one rank."""

    def buffer(self, numel: int) -> torch.Tensor:
        self.table = module("reference_impls.compressors.lookup").table("published", 4, 30, 1 / 32)
        self.packing = module("reference_impls.compressors.packing")
        self.x = self.x / self.x.square().mean().sqrt()
        self.indices = torch.zeros(numel, dtype=torch.int32)
        return torch.zeros(self.packing.wire_bytes(numel, self.table.bits), dtype=torch.uint8)

    def encode(self) -> None:
        self.table.encode(self.x, self.key, self.indices)
        self.packing.pack(self.indices, self.table.bits, self.wire)

    def decode(self) -> None:
        self.packing.unpack(self.wire, self.table.bits, self.indices)
        self.table.decode(self.indices, self.out)


class Hadamard(Keyed):
    """The rotation that THC encodes after; nothing is sent by itself, `wire` are the rotated numbers."""

    CHUNK = 1024

    def buffer(self, numel: int) -> torch.Tensor:
        self.chunks = module("reference_impls.compressors.transforms").Chunks(numel, self.CHUNK)
        coins = self.key.bits(self.chunks.padded) & 1
        self.signs = (coins * 2 - 1).to(torch.float32)
        return torch.zeros(self.chunks.padded)

    def encode(self) -> None:
        self.wire = self.chunks.rotate(self.chunks.pad(self.x), self.signs)

    def decode(self) -> None:
        self.out = self.chunks.rotate_back(self.wire, self.signs)

    def restore(self) -> torch.Tensor:
        restored = super().restore()
        sizes: torch.Tensor = self.chunks.spread(self.chunks.sizes(restored.device))
        return restored / sizes[: restored.numel()]


def by_protocol(place: str, name: str, **options: Any) -> Callable[[int], Case]:
    return lambda numel: ByProtocol(numel, place, name, **options)


# Compressors that say little: some coordinates, sums of coordinates, two thin matrices


RANK = 4


class Sparse(ByProtocol):
    """Some coordinates: of defaults 1 %, and 64 of 4096."""

    small_parts = True


class CountSketch(Case):
    """Sketched-SGD's defaults: 5 rows of 0.9 % of the coordinates. Decoding estimates every coordinate."""

    small_parts = True
    ROWS = 5
    COLUMN_RATIO = 0.009

    def buffer(self, numel: int) -> torch.Tensor:
        columns = max(1, math.ceil(self.COLUMN_RATIO * numel))
        self.compressor = module("reference_impls.compressors.count_sketch").CountSketch(
            self.ROWS, columns, seed=1
        )
        return torch.zeros(self.ROWS, columns)

    def encode(self) -> None:
        self.compressor.encode(self.x, self.wire)

    def decode(self) -> None:
        self.compressor.decode(self.wire, self.out)


class LowRank(Keyed):
    """PowerSGD's arithmetic on one matrix, as square as it can be: two products and an orthonormalisation; and P^T Q back.

    The thin factors are what is sent. Collectives, error feedback and the start from the last Q are the aggregator's.
    """

    small_parts = True

    def buffer(self, numel: int) -> torch.Tensor:
        self.compressor = module("reference_impls.algorithms.powersgd")
        rows = next(r for r in range(math.isqrt(numel), 0, -1) if numel % r == 0)
        self.matrix = self.x.view(rows, -1)
        rank = min(RANK, rows)
        self.q = self.compressor.refreshed(torch.zeros(rank, numel // rows), self.key)
        self.p = torch.zeros(rank, rows)
        self.start = self.q.clone()
        return torch.zeros(rank * (rows + numel // rows))

    def encode(self) -> None:
        torch.mm(self.start, self.matrix.T, out=self.p)
        self.p = self.compressor.orthonormal(self.p)
        torch.mm(self.p, self.matrix, out=self.q)
        self.wire[: self.p.numel()] = self.p.view(-1)
        self.wire[self.p.numel() :] = self.q.view(-1)

    def decode(self) -> None:
        torch.mm(self.p.T, self.q, out=self.out.view_as(self.matrix))


CASES: dict[str, Callable[[int], Case]] = {
    "copy": Copy,
    "signs": Signs,
    "scaled-signs": by_protocol("compressors.signs", "ScaledSigns"),
    "standard-dithering-4bit": NibbleDithering,
    "standard-dithering-4bit-global": lambda numel: NibbleDithering(numel, finds_scale=True),
    "standard-dithering-8bit": StandardDithering,
    "standard-dithering-8bit-global": lambda numel: StandardDithering(numel, finds_scale=True),
    "equal-levels-4bit-given": lambda numel: EqualLevels(numel, 7, given=True),
    "equal-levels-4bit-global": lambda numel: EqualLevels(numel, 7, given=False),
    "equal-levels-8bit-given": lambda numel: EqualLevels(numel, 127, given=True),
    "equal-levels-8bit-global": lambda numel: EqualLevels(numel, 127, given=False),
    "equal-levels-4bit": by_protocol("compressors.levels", "UniformLevels"),
    "equal-levels-4bit-linf": by_protocol("compressors.levels", "UniformLevels", norm="linf"),
    "equal-levels-8bit": by_protocol("compressors.levels", "UniformLevels", levels=127),
    "geometric-levels-4bit": by_protocol("compressors.levels", "GeometricLevels"),
    "exponential-dithering": ExponentialDithering,
    "natural-9bit": by_protocol("compressors.levels", "Natural"),
    "ternary-2bit": TernaryTwoBit,
    "min-max-4bit": by_protocol("compressors.levels", "MinMax"),
    "lion-8bit-l1": LionIntegers,
    "scaled-rounding-8bit": ScaledRounding,
    "thc-4bit": Lookup,
    "hadamard": Hadamard,
    "bf16": by_protocol("algorithms.half_precision", "Halves"),
    "fp16": by_protocol("algorithms.half_precision", "Halves", format="fp16"),
    "top-k-1pct": lambda numel: Sparse(numel, "compressors.sparse", "TopK"),
    "chunk-top-k": lambda numel: Sparse(numel, "compressors.sparse", "ChunkTopK"),
    "count-sketch": CountSketch,
    "low-rank-4": LowRank,
}
COMPRESSORS = tuple(CASES)
"""Not a look at the package: the list of an old commit must be the list of today."""


def build(compressor: str, numel: int, threads: int = THREADS) -> Case:
    """The case of a name in `COMPRESSORS` on a vector of `numel` elements, to be run on this many threads."""
    torch.set_num_threads(threads)
    return CASES[compressor](numel)
