"""The codecs as one table of cases, so that every benchmark runs every codec the same way.

A case holds its buffers and knows three things: how to encode, how to decode, and how many bytes went over the wire.
The control `copy` sends float32 as it is: the time of a codec means something only beside the time of a memory copy.

Benchmarks come from the working tree and the code they measure from the commit under test. What a commit does not have
yet therefore raises NotImplementedError, which asv shows as "not available" instead of as a failure.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType

import torch
import torch._inductor.compile_fx

__all__ = ["CODECS", "THREADS", "WORLD_SIZE", "Case", "build", "gradient", "module", "single_thread"]

# A literal, not a look at the package: the list of an old commit must be the list of today.
CODECS = (
    "copy",
    "signs",
    "standard-dithering-8bit",
    "exponential-dithering",
    "lion-8bit-l1",
    "scaled-signs",
    "equal-levels-4bit",
    "geometric-levels-4bit",
    "natural-9bit",
    "min-max-4bit",
    "bf16",
    "top-k-1pct",
    "chunk-top-k",
)
WORLD_SIZE = 4
THREADS = 1
LEVELS = 31  # (2**7 - 1) // WORLD_SIZE, what 8 bits leave to each of four ranks
HEAD_ROOM = 2  # log2(WORLD_SIZE) doublings on the way to the sum


def single_thread() -> None:
    """One thread, in every benchmark process: several would measure the machine's other work."""
    torch.set_num_threads(THREADS)


def module(name: str) -> ModuleType:
    """The module, or NotImplementedError where this commit does not have it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise NotImplementedError(f"{name} does not exist at this commit: {error}") from error


def gradient(numel: int) -> torch.Tensor:
    """float32 [numel] of the same numbers always, with heavier tails than a normal: most gradients have them."""
    source = torch.Generator().manual_seed(20260101)
    normal = torch.randn(numel, generator=source)
    return normal * torch.rand(numel, generator=source).add_(0.05)


class Case:
    """One codec on one vector. x, out: float32 [numel]; wire: what is sent; side_bytes: scales sent beside it."""

    side_bytes = 0

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

    def restore(self) -> torch.Tensor:
        """`x` as it comes out of the wire, scaled as the method scales it: float32 [numel]."""
        self.encode()
        self.decode()
        return self.out

    def sent_bytes(self) -> int:
        return self.wire.numel() * self.wire.element_size() + self.side_bytes


class Copy(Case):
    def buffer(self, numel: int) -> torch.Tensor:
        return torch.zeros(numel)

    def encode(self) -> None:
        self.wire.copy_(self.x)

    def decode(self) -> None:
        self.out.copy_(self.wire)


class Signs(Case):
    """One bit an element. Its residual is taken against mean |x|, the best scale for signs; votes send no scale."""

    def buffer(self, numel: int) -> torch.Tensor:
        self.codec = module("reference_impls.codecs.signs")
        return torch.zeros(self.codec.wire_bytes(numel), dtype=torch.uint8)

    def encode(self) -> None:
        self.codec.pack_signs(self.x, self.wire, zero=True)

    def decode(self) -> None:
        self.codec.unpack_signs(self.wire, self.out)

    def restore(self) -> torch.Tensor:
        return super().restore() * self.x.abs().mean()


class Keyed(Case):
    """A codec that rounds at random on a scale all ranks share."""

    side_bytes = 4

    def __init__(self, numel: int) -> None:
        super().__init__(numel)
        randomness = module("reference_impls.randomness")
        self.key = randomness.Key.of(seed=0, step=0, stage="micro", rank=0)
        self.scale = self.x.abs().max()


class StandardDithering(Keyed):
    def buffer(self, numel: int) -> torch.Tensor:
        self.codec = module("reference_impls.codecs.dithering")
        return torch.zeros(numel, dtype=torch.int8)

    def encode(self) -> None:
        self.codec.encode(self.x, self.scale, LEVELS, self.key, self.wire)

    def decode(self) -> None:
        self.codec.decode(self.wire, self.scale, LEVELS, 1, self.out)


class ExponentialDithering(Keyed):
    def buffer(self, numel: int) -> torch.Tensor:
        self.codec = module("reference_impls.codecs.exponential")
        return torch.zeros(self.codec.wire_bytes(numel), dtype=torch.uint8)

    def encode(self) -> None:
        self.codec.encode(self.x, self.scale, HEAD_ROOM, self.key, self.wire)

    def decode(self) -> None:
        self.codec.decode(self.wire, self.scale, HEAD_ROOM, 1, self.out)


class LionIntegers(Case):
    """Votes in small integers. No scale is sent: a receiver takes the sign of their sum, which is the decoding here."""

    def buffer(self, numel: int) -> torch.Tensor:
        self.codec = module("reference_impls.codecs.lion_integers")
        return torch.zeros(numel, dtype=torch.int8)

    def encode(self) -> None:
        self.codec.encode(self.x, [slice(0, self.x.numel())], "l1", LEVELS, self.wire)

    def decode(self) -> None:
        self.out.copy_(self.wire.sign())

    def restore(self) -> torch.Tensor:
        """What the votes say of x, by the scale that made them (gain 0.5)."""
        self.encode()
        return self.wire * (self.codec.scale_of(self.x, "l1") / (0.5 * LEVELS))


class ByProtocol(Case):
    """A codec that follows `reference_impls.codecs.codec.Codec`, at its defaults: scales travel inside the message."""

    def __init__(self, numel: int, place: str, name: str) -> None:
        self.codec = getattr(module(f"reference_impls.codecs.{place}"), name)()
        self.key = module("reference_impls.randomness").Key.of(seed=0, step=0, stage="micro", rank=0)
        super().__init__(numel)

    def buffer(self, numel: int) -> torch.Tensor:
        return torch.zeros(self.codec.wire_bytes(numel), dtype=torch.uint8)

    def encode(self) -> None:
        self.codec.encode(self.x, self.key, self.wire)

    def decode(self) -> None:
        self.codec.decode(self.wire, self.out)


def _by_protocol(place: str, name: str) -> Callable[[int], Case]:
    return lambda numel: ByProtocol(numel, place, name)


_CASES: dict[str, Callable[[int], Case]] = dict(
    zip(
        CODECS,
        (
            Copy,
            Signs,
            StandardDithering,
            ExponentialDithering,
            LionIntegers,
            _by_protocol("scaled_signs", "ScaledSigns"),
            _by_protocol("uniform_levels", "UniformLevels"),
            _by_protocol("geometric_levels", "GeometricLevels"),
            _by_protocol("natural", "Natural"),
            _by_protocol("min_max", "MinMax"),
            _by_protocol("halves", "Halves"),
            _by_protocol("sparse", "TopK"),
            _by_protocol("chunk_top_k", "ChunkTopK"),
        ),
        strict=True,
    )
)


def build(codec: str, numel: int) -> Case:
    """The case of a name in `CODECS` on a vector of `numel` elements."""
    single_thread()
    return _CASES[codec](numel)
