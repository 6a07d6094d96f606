"""What compressors compute with: functions that are compiled when that pays, memory that is used again, random streams.

*One source for reference and speed.* `@compiled` wraps a function of tensors. The wrapped function itself, `.eager`, is the
oracle; calling the wrapper runs it through `torch.compile` when its first tensor argument has at least `THRESHOLD`
elements, unless compilation is off (``BANDWISE_COMPILE=0``) or tensors are on the CPU and there is no C++ compiler or no
Python.h. A failed compilation falls back to eager with one warning. Each combination of dtypes, numbers of dimensions and
devices is compiled by itself, since the compiler gives up on a function after a few variants; on the CPU what was compiled
is kept for later processes (`compile_cache.py`). Every call of the wrapper is counted under the path that it took: a benchmark
must report the path that ran and not the one that was asked for.

Sizes and integers may change from call to call. A float or a text is compiled in, and so is an integer that a function
holds instead of being given it: what changes often is passed as a tensor. Memory that is written may be that of another
argument as a whole, but must not overlap with one otherwise.

Only element-wise integer and IEEE arithmetic belongs in such functions (no float reduction: its order is the compiler's
choice): then compiled and eager agree to the bit. Sums of floats go through `compressors.sums.fixed_sum`.

*Memory.* On the CPU the C library gives large memory back to the system and takes it anew, and every fresh page costs a
fault: careless code spends more time there than on arithmetic. Buffers from here come from a pool. One goes back into it by
itself when nobody holds it or a view of it any more, so callers keep no account and may keep a buffer as long as they like,
across a collective, say. In a steady state, with the same sizes step after step, nothing is allocated.

Small buffers and other devices, whose allocators keep their memory, are torch's affair. As with `torch.empty`, contents are
whatever was there before.

*Random streams* are counter-based: every draw is a pure function of what it is for. A `Key` names a stream by (seed, step,
stage, rank or none, name or none) and an element index counts within it, so a draw does not depend on the order of calls,
on threads, on how the parameters are cut into buckets, on the device, or on whether the code that draws is compiled. There
is no state and the global generator is never touched.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import math
import os
import shutil
import struct
import sysconfig
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType
from typing import Any, Final, Generic, ParamSpec, TypeVar, cast

import torch
from torch import Tensor

from reference_impls.core import compile_cache as programs

# ---- compiled functions -----------------------------------------------------------------------------------------------


P = ParamSpec("P")
R = TypeVar("R")

THRESHOLD: Final = 65536
"""Elements of the first tensor from which on a call is compiled."""

GPU_OPTIONS: Final[dict[str, Any]] = {
    "emulate_precision_casts": True,  # which also forbids that a product and a sum become one rounding
    "eager_numerics.division_rounding": True,  # IEEE quotients
    "eager_numerics.disable_ftz": True,  # subnormal numbers
}
"""What makes compiled code on a GPU give the codes of the eager function: IEEE arithmetic, one rounding an operation."""


class PathRecord:
    """Which path each compiled function took, and why one could not be compiled."""

    def __init__(self) -> None:
        self._calls: dict[str, Counter[str]] = {}
        self._failures: dict[str, str] = {}

    def count(self, name: str, path: str) -> None:
        """One more call of a function, under the path that it took."""
        self._calls.setdefault(name, Counter())[path] += 1

    def fail(self, name: str, reason: str) -> None:
        """A function cannot be compiled."""
        self._failures[name] = reason

    def paths(self) -> dict[str, dict[str, int]]:
        """Calls so far by function and path: ``{"signs.pack_words": {"compiled": 12, "eager": 3}}``."""
        return {name: dict(sorted(calls.items())) for name, calls in sorted(self._calls.items())}

    def failures(self) -> dict[str, str]:
        """Functions that could not be compiled, with the first line of the reason."""
        return dict(sorted(self._failures.items()))

    def reset(self) -> None:
        """Forget the counts of `paths` (not the failures), before a run in a process that has done others, say."""
        self._calls.clear()


_RECORD: Final = PathRecord()  # of this process
count, paths, failures, reset_paths = _RECORD.count, _RECORD.paths, _RECORD.failures, _RECORD.reset


@functools.cache
def _compiles_for_cpu(chosen: str | None) -> bool:
    """Whether there are a C++ compiler and Python's header files, which the compiled code includes."""
    names = [chosen] if chosen else ["g++", "clang++", "c++"]
    headers = Path(sysconfig.get_path("include"), "Python.h")
    missing = []
    if not any(shutil.which(name) is not None for name in names):
        missing.append(f"no C++ compiler ({', '.join(names)})")
    if not headers.is_file():
        missing.append(f"no {headers}")
    if missing:  # this function is called once
        warnings.warn(
            f"{' and '.join(missing)}: compressors run eagerly, several times slower, and so do timings of this process. "
            "Install them (`bandwise session --doctor` says how), or set BANDWISE_COMPILE=0 if that is meant.",
            RuntimeWarning,
            stacklevel=4,
        )
    return not missing


def _possible(tensor: Tensor) -> bool:
    if tensor.is_meta or os.environ.get("BANDWISE_COMPILE", "1") == "0":
        return False
    return tensor.device.type != "cpu" or _compiles_for_cpu(os.environ.get("CXX"))


def _compiler_errors() -> tuple[type[Exception], ...]:
    """What the compiler raises; importing it takes seconds, so not before it has been used."""
    from torch._dynamo.exc import FailOnRecompileLimitHit, TorchDynamoException
    from torch._inductor.exc import InductorError

    return TorchDynamoException, FailOnRecompileLimitHit, InductorError, programs.CompileError


def _twin(function: Callable[P, R], number: int) -> Callable[P, R]:
    """The same function with code of its own: the compiler counts its variants by code."""
    assert isinstance(function, FunctionType)
    code = function.__code__.replace(co_name=f"{function.__code__.co_name}_{number}")
    twin = FunctionType(
        code, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    twin.__kwdefaults__ = function.__kwdefaults__
    return cast(Callable[P, R], twin)


class Compiled(Generic[P, R]):
    """A function and its compiled form; see the module's text. `name`: "module.function", leading underscores left out.

    tiles: tensors of two and more dimensions are rows of one fixed shape each, and only the number of rows varies. Fixed inner
    dimensions are what vector instructions are chosen by, and every other shape of rows is a variant.
    """

    def __init__(
        self,
        function: Callable[P, R],
        threshold: int = THRESHOLD,
        record: PathRecord = _RECORD,
        *,
        tiles: bool = False,
    ) -> None:
        self.eager = function
        self.name = programs.name_of(function)
        self._threshold = threshold
        self._record = record
        self._fills = function.__annotations__.get("return", "nothing said") in ("None", None)
        self._fast: dict[Hashable, Callable[..., R]] = {}
        self._failed = False
        self._fixed = tiles
        functools.update_wrapper(self, function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        if kwargs:
            raise TypeError(f"{self.name} takes its arguments by position")
        if torch.compiler.is_compiling():  # part of a larger compiled function, which is counted as a whole
            return self.eager(*args, **kwargs)
        tensors = [a for a in args if isinstance(a, Tensor)]
        first = next(iter(tensors), None)
        if self._fills and first is not None and first.is_meta:
            return cast(R, None)  # there is no memory to fill
        if first is None or first.numel() < self._threshold or self._failed or not _possible(first):
            self._record.count(self.name, "eager")
            return self.eager(*args, **kwargs)
        variant = self._variant(args)
        try:
            if (fast := self._fast.get(variant)) is None:
                fast = self._fast[variant] = self._prepare(variant, first.device)
            result = fast(*args)
        except _compiler_errors() as error:  # asked for only when something was raised
            self._fall_back(error)
            self._record.count(self.name, "eager")
            return self.eager(*args, **kwargs)
        self._record.count(self.name, "compiled")
        return result

    def _variant(self, args: Sequence[Any]) -> Hashable:
        """What is compiled by itself: kinds of tensors, flags, and the numbers 0 and 1, which the compiler takes as given."""
        kinds = [
            (a.dtype, tuple(a.shape[1:]) if self._fixed and a.dim() > 1 else a.dim(), a.device)
            if isinstance(a, Tensor)
            else a
            if a is None or isinstance(a, bool) or a == 0 or a == 1
            else type(a)
            for a in args
        ]
        return (torch.get_num_threads(), torch.is_grad_enabled(), *kinds)

    def _prepare(self, variant: Hashable, device: torch.device) -> Callable[..., R]:
        if device.type == "cpu":
            return programs.Programs(self.eager, variant, fixed=self._fixed)
        return self._plain(_twin(self.eager, len(self._fast)))

    def _plain(self, twin: Callable[..., R]) -> Callable[..., R]:
        """The compiled form, for all sizes, that torch keeps in this process."""
        if missing := GPU_OPTIONS.keys() - torch._inductor.list_options():
            raise programs.CompileError(
                f"torch {torch.__version__} has no {', '.join(sorted(missing))}, without which a GPU gives other codes"
            )
        fast = torch.compile(twin, dynamic=True, fullgraph=True, options=GPU_OPTIONS)
        traced: set[Hashable] = set()  # settings cost as much as a launch, and only tracing asks for them

        def run(*args: Any) -> R:
            layout = tuple((a.shape, a.stride()) for a in args if isinstance(a, Tensor))
            if self._fixed:
                programs.fix_rows(args)
            with contextlib.nullcontext() if layout in traced else programs.settings(args):
                result = fast(*args)
            traced.add(layout)
            return result

        return run

    def _fall_back(self, error: Exception) -> None:
        self._failed = True
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        self._record.fail(self.name, reason)
        warnings.warn(
            f"{self.name} could not be compiled and runs eagerly from here on, which is slower: {reason}. "
            "Timings of this process are those of the eager path; set BANDWISE_COMPILE=0 to ask for it, "
            "or check the C++ compiler.",
            RuntimeWarning,
            stacklevel=4,
        )


def compiled(function: Callable[P, R]) -> Compiled[P, R]:
    """Decorator: `function(tensor, ...)` compiled for large tensors; see the module's text."""
    return Compiled(function)


# ---- memory -----------------------------------------------------------------------------------------------------------


SMALLEST: Final = 1 << 16
"""Bytes from which on a buffer comes from the pool; below, the C library keeps what is freed."""

_PATIENCE: Final = 4096  # buffers handed out since, after which an idle one may be given up


@dataclass(slots=True)
class _Block:
    """Memory of the pool. idle: the storage's count of holders when there are none but the pool. used: number of the hand-out."""

    raw: Tensor
    storage: torch.UntypedStorage
    idle: int
    used: int = 0

    def is_idle(self) -> bool:
        return _holders(self.storage) == self.idle


def _holders(storage: torch.UntypedStorage) -> int:
    return int(torch._C._storage_Use_Count(storage._cdata))


class _Pool:
    def __init__(self) -> None:
        self._blocks: dict[int, list[_Block]] = {}
        self._handed_out = 0
        self._lock = threading.Lock()

    def take(self, nbytes: int, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        size = _rounded(nbytes)
        with self._lock:
            self._handed_out += 1
            block = next((b for b in self._blocks.get(size, ()) if b.is_idle()), None)
            block = self._new(size) if block is None else block
            block.used = self._handed_out
            return block.raw[:nbytes].view(dtype).view(shape)

    def give_up(self, before: float) -> None:
        """What is idle and was handed out last before this number."""
        for blocks in self._blocks.values():
            blocks[:] = [b for b in blocks if b.used >= before or not b.is_idle()]

    def _new(self, size: int) -> _Block:
        self.give_up(self._handed_out - _PATIENCE)
        raw = torch.empty(size, dtype=torch.uint8, device="cpu")
        storage = raw.untyped_storage()
        block = _Block(raw, storage, _holders(storage))
        self._blocks.setdefault(size, []).append(block)
        return block


def _rounded(nbytes: int) -> int:
    """The next of eight sizes to a power of two, so that slightly different buffers can follow one another."""
    step = 1 << (nbytes.bit_length() - 4)
    return -(-nbytes // step) * step


_POOL: Final = _Pool()


def empty(shape: Sequence[int] | int, dtype: torch.dtype, device: torch.device | str = "cpu") -> Tensor:
    """An uninitialised contiguous tensor, from the pool if it is large and on the CPU."""
    shape = (shape,) if isinstance(shape, int) else shape
    nbytes = math.prod(shape) * dtype.itemsize
    if nbytes < SMALLEST or torch.compiler.is_compiling() or torch.device(device).type != "cpu":
        return torch.empty(shape, dtype=dtype, device=device)
    return _POOL.take(nbytes, shape, dtype)


def empty_like(x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """`empty` in the shape, on the device and, unless told otherwise, in the dtype of `x`."""
    return empty(x.shape, x.dtype if dtype is None else dtype, x.device)


def as_dtype(x: Tensor, dtype: torch.dtype) -> Tensor:
    """`x` in this dtype, in memory from the pool; `x` itself where it has it."""
    return x if x.dtype == dtype else empty_like(x, dtype).copy_(x)


def zeros(shape: Sequence[int] | int, dtype: torch.dtype, device: torch.device | str = "cpu") -> Tensor:
    """`empty`, filled with zeros."""
    return empty(shape, dtype, device).zero_()


def sent(x: Tensor, device: torch.device | str) -> Tensor:
    """A small tensor on `device`, where what is launched there from now on finds it: the host does not wait for a GPU."""
    device = torch.device(device)
    if x.device == device:
        return x
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            "what the host sends within a step is not sent anew when the step is repeated: see `constant`"
        )
    ready = (
        x.pin_memory() if device.type == "cuda" and not x.is_cuda else x
    )  # out of pageable memory copies wait
    return ready.to(device, non_blocking=True)


def at_hand(x: Tensor) -> bool:
    """Whether the host can look at the values of `x` without waiting for a device."""
    return x.device.type == "cpu"


def add_scaled(x: Tensor, y: Tensor, factor: float | Tensor) -> Tensor:
    """x <- x + factor y, in place; a factor that lies on the device is not waited for."""
    return x.addcmul_(y, factor) if isinstance(factor, Tensor) else x.add_(y, alpha=factor)


def together(values: Sequence[float | Tensor], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Numbers, or tensors of one each on the device, as one tensor there."""
    if isinstance(values[0], Tensor):
        return torch.stack(cast(list[Tensor], values)).to(dtype)
    return sent(torch.tensor(values, dtype=dtype), device)


@functools.cache
def constant(values: float | tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """A small tensor that nobody writes to, sent once."""
    return sent(torch.tensor(values, dtype=dtype), device)


# ---- random streams ---------------------------------------------------------------------------------------------------


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

    The stream, to the bit:

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

    words: Tensor

    def __post_init__(self) -> None:
        if self.words.dtype != torch.int32 or self.words.shape[-1:] != (3,):
            raise ValueError(
                f"a key is int32 [..., 3], not {self.words.dtype} {tuple(self.words.shape)}: build it with Key.of"
            )

    @classmethod
    def of(cls, **purpose: Any) -> Key:
        """The stream for this purpose, as in `numbers`."""
        return cls(torch.tensor(cls.numbers(**purpose), dtype=torch.int32))

    @staticmethod
    def numbers(
        *,
        seed: int,
        step: int,
        stage: str,
        rank: int | None = None,
        name: str | None = None,
        start: int = 0,
    ) -> tuple[int, int, int]:
        """The words of the stream for this purpose.

        Args:
            seed: of the run; any signed 64-bit integer.
            step: of the training run.
            stage: what the draw is for; one stage name a draw.
            rank: whose private stream; None = one stream shared by all ranks.
            name: of the tensor, for draws that are made tensor by tensor; "" is the same as none.
            start: index of element 0, so that a part of a vector draws what the whole would have drawn there.

        Returns:
            k0, k1 and start, signed integers of 32 bits.

        Raises:
            ValueError: The rank is negative.
        """
        if rank is not None and rank < 0:
            raise ValueError(f"rank {rank} is negative; use rank=None for a stream shared by all ranks")
        message = struct.pack("<qqq", seed, step, -1 if rank is None else rank)
        for text in (stage, name or ""):
            encoded = text.encode()
            message += struct.pack("<I", len(encoded)) + encoded
        digest = hashlib.blake2b(message, digest_size=8, person=_PERSON).digest()
        k0, k1 = struct.unpack("<ii", digest)
        return k0, k1, _signed(start)

    def at(self, offset: int) -> Key:
        """The same stream from `offset` elements further on: `key.at(a).bits(n)` equals `key.bits(a + n)[a:]`."""
        words = self.words.clone()  # in place, on whatever device it is: nothing is sent there
        words[..., 2] += _signed(offset)
        return Key(words)

    def on(self, device: torch.device | str) -> Tensor:
        """`words` on a device; see `sent`."""
        return sent(self.words, device)

    def bits(self, numel: int, device: torch.device | str | None = None) -> Tensor:
        """int32 [..., numel], all 32 bits random."""
        return self._drawn(numel, torch.int32, device)

    def uniform(self, numel: int, device: torch.device | str | None = None) -> Tensor:
        """float32 [..., numel] in [0, 1), multiples of 2**-24."""
        return self._drawn(numel, torch.float32, device)

    def _drawn(self, numel: int, dtype: torch.dtype, device: torch.device | str | None) -> Tensor:
        words = self.words if device is None else self.on(device)
        out = empty((*words.shape[:-1], numel), dtype, words.device)
        if takes("compute.fill", out):
            from reference_impls.kernels import randomness

            randomness.fill(out, words)
        else:
            (_fill_bits if dtype == torch.int32 else _fill_uniform)(out, words)
        return out


# ---- Triton's kernels ------------------------------------------------------------------------------------------------


_LONGEST: Final = 1 << 30  # elements of a row, so that places and words of 32 bits do


@functools.cache
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


def takes(name: str, *tensors: Tensor) -> bool:
    """Whether a kernel can do it: on a GPU, rows of neighbours; not where compilation is off. Counts the call as "triton".

    Args:
        name: "module.function", as in `paths`.
        tensors: all that it reads and writes element by element.
    """
    device = tensors[0].device.type
    if device != "cuda" and (device != "cpu" or os.environ.get("TRITON_INTERPRET") != "1"):
        return False
    if torch.compiler.is_compiling() or os.environ.get("BANDWISE_COMPILE", "1") == "0" or not _has_triton():
        return False
    if any(
        t.dim() == 0 or t.shape[-1] > _LONGEST or (t.stride(-1) != 1 and t.shape[-1] > 1) for t in tensors
    ):
        return False
    count(name, "triton")
    return True
