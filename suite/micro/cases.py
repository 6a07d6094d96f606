"""The codecs as one table of cases, so that every benchmark runs every codec the same way.

A case holds its buffers and knows how to encode, to decode, for most codecs to add what is decoded to what is there
(`accumulate`, which averaging needs), how many bytes went over the wire, and how many bytes of memory have to be touched
at least. The control `copy` sends float32 as it is: the time of a codec means something only beside a memory copy.

Benchmarks come from the working tree and the code they measure from the commit under test. What a commit does not have
yet therefore raises NotImplementedError, which asv shows as "not available" instead of as a failure.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable
from types import ModuleType

import torch
import torch._inductor.compile_fx

__all__ = [
    "CODECS",
    "THREADS",
    "WORLD_SIZE",
    "Case",
    "Copy",
    "build",
    "decode_adds",
    "gradient",
    "module",
    "single_thread",
]

# A literal, not a look at the package: the list of an old commit must be the list of today.
CODECS = (
    "copy",
    "signs",
    "scaled-signs",
    "standard-dithering-4bit",
    "standard-dithering-4bit-global",
    "standard-dithering-8bit",
    "standard-dithering-8bit-global",
    "equal-levels-4bit-given",
    "equal-levels-4bit-global",
    "equal-levels-8bit-given",
    "equal-levels-8bit-global",
    "equal-levels-4bit",
    "equal-levels-4bit-linf",
    "equal-levels-8bit",
    "geometric-levels-4bit",
    "exponential-dithering",
    "natural-9bit",
    "ternary-2bit",
    "ternary-trits",
    "min-max-4bit",
    "lion-8bit-l1",
    "scaled-rounding-8bit",
    "thc-4bit",
    "hadamard",
    "bf16",
    "fp16",
    "top-k-1pct",
    "chunk-top-k",
    "count-sketch",
    "low-rank-4",
)
VERBS = ("encode", "decode", "accumulate")
WORLD_SIZE = 4
THREADS = 1
FLOAT = 4  # bytes
_HOMES = ("dense_cases", "sparse_cases")


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


def decode_adds(decode: Callable[..., object]) -> bool:
    """Whether this decoder can add to what is there (an argument ``add``)."""
    return "add" in inspect.signature(decode).parameters


class Case:
    """One codec on one vector. x, out: float32 [numel]; wire: what is sent; side_bytes: scales sent beside it.

    verbs: what it can do. small_parts: part of its work is on vectors much shorter than x, too short to be compiled for.
    reads: how often x has to be read to encode it: twice where what is found in all of it must be known before the first
    element can be written.
    """

    side_bytes = 0
    verbs: tuple[str, ...] = ("encode", "decode")
    small_parts = False
    reads = 1

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

    def touched(self, verb: str) -> float:
        """Bytes an element between processor and memory that no implementation can avoid, large vectors assumed.

        What is read counts once for each time it must be read; what is written counts twice, since a processor reads a
        line of the cache before it writes to it; what is added to is read and written. A copy touches 4 + 8.
        """
        sent = self.sent_bytes() / max(self.x.numel(), 1)
        return self.reads * FLOAT + 2 * sent if verb == "encode" else sent + 2 * FLOAT


class Copy(Case):
    """The control. Its source is its own, so that no codec finds its vector in the cache because of it."""

    def __init__(self, numel: int) -> None:
        super().__init__(numel)
        self.x = self.x.clone()

    def buffer(self, numel: int) -> torch.Tensor:
        return torch.zeros(numel)

    def encode(self) -> None:
        self.wire.copy_(self.x)

    def decode(self) -> None:
        self.out.copy_(self.wire)


def build(codec: str, numel: int, threads: int = THREADS) -> Case:
    """The case of a name in `CODECS` on a vector of `numel` elements, to be run on this many threads."""
    torch.set_num_threads(threads)
    if codec == "copy":
        return Copy(numel)
    for home in _HOMES:
        cases = importlib.import_module(f".{home}", __package__).CASES
        if codec in cases:
            case: Case = cases[codec](numel)
            return case
    raise KeyError(codec)
