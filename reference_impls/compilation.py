"""One source for reference and speed: a plain torch function that is compiled when that pays, and says which path ran.

`@compiled` wraps a function of tensors. The wrapped function itself, `.eager`, is the oracle; calling the wrapper
runs it through `torch.compile` when its first tensor argument has at least `THRESHOLD` elements, unless compilation
is off (``BANDWISE_COMPILE=0``) or tensors are on the CPU and there is no C++ compiler or no Python.h. A failed
compilation falls back to eager with one warning. Each combination of dtypes, numbers of dimensions and devices is
compiled by itself, since the compiler gives up on a function after a few variants; on the CPU what was compiled is
kept for later processes (`programs.py`). Every call of the wrapper is counted under the path that it took: a benchmark
must report the path that ran and not the one that was asked for.

Sizes and integers may change from call to call. A float or a text is compiled in, and so is an integer that a function
holds instead of being given it: what changes often is passed as a tensor. Memory that is written may be that of another
argument as a whole, but must not overlap with one otherwise.

Only element-wise integer and IEEE arithmetic belongs in such functions (no float reduction: its order is the compiler's
choice): then compiled and eager agree to the bit. Sums of floats go through `codecs.sums.fixed_sum`.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import shutil
import sysconfig
import warnings
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from types import FunctionType
from typing import Any, ClassVar, Final, Generic, ParamSpec, TypeVar, cast

import torch
from torch import Tensor

from reference_impls import programs

__all__ = [
    "GPU_OPTIONS",
    "THRESHOLD",
    "Compiled",
    "CompiledTiles",
    "PathRecord",
    "compiled",
    "count",
    "failures",
    "paths",
    "reset_paths",
]

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
        self._calls.setdefault(name, Counter())[path] += 1

    def fail(self, name: str, reason: str) -> None:
        self._failures[name] = reason

    def paths(self) -> dict[str, dict[str, int]]:
        return {name: dict(sorted(calls.items())) for name, calls in sorted(self._calls.items())}

    def failures(self) -> dict[str, str]:
        return dict(sorted(self._failures.items()))

    def reset(self) -> None:
        self._calls.clear()


_RECORD: Final = PathRecord()


def paths() -> dict[str, dict[str, int]]:
    """Calls so far in this process by function and path: ``{"signs.pack_words": {"compiled": 12, "eager": 3}}``."""
    return _RECORD.paths()


def failures() -> dict[str, str]:
    """Functions that could not be compiled in this process, with the first line of the reason."""
    return _RECORD.failures()


def count(name: str, path: str) -> None:
    """One more call of a function that takes a path of its own, for `paths`."""
    _RECORD.count(name, path)


def reset_paths() -> None:
    """Forget the counts of `paths` (not the failures), for instance before a run in a process that has done others."""
    _RECORD.reset()


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
            f"{' and '.join(missing)}: codecs run eagerly, several times slower, and so do timings of this process. "
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
    """A function and its compiled form; see the module's text. `name`: see `programs.name_of`."""

    def __init__(
        self, function: Callable[P, R], threshold: int = THRESHOLD, record: PathRecord = _RECORD
    ) -> None:
        self.eager = function
        self.name = programs.name_of(function)
        self._threshold = threshold
        self._record = record
        self._fills = function.__annotations__.get("return") in ("None", None)
        self._fast: dict[Hashable, Callable[..., R]] = {}
        self._failed = False
        functools.update_wrapper(self, function)

    _fixed: ClassVar[bool] = False

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        if torch.compiler.is_compiling():  # part of a larger compiled function, which is counted as a whole
            return self.eager(*args, **kwargs)
        tensors = [a for a in (*args, *kwargs.values()) if isinstance(a, Tensor)]
        first = next(iter(tensors), None)
        if self._fills and first is not None and first.is_meta:
            return cast(R, None)  # there is no memory to fill
        if first is None or first.numel() < self._threshold or self._failed or not _possible(first):
            self._record.count(self.name, "eager")
            return self.eager(*args, **kwargs)
        if kwargs:
            args = inspect.signature(self.eager).bind(*args, **kwargs).args  # type: ignore[assignment]
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
            (a.dtype, self._shape(a), a.device)
            if isinstance(a, Tensor)
            else a
            if a is None or isinstance(a, bool) or a == 0 or a == 1
            else type(a)
            for a in args
        ]
        return (torch.get_num_threads(), torch.is_grad_enabled(), *kinds)

    def _shape(self, tensor: Tensor) -> Hashable:
        return tensor.dim()

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


class CompiledTiles(Compiled[P, R]):
    """Tensors of two and more dimensions are rows of one fixed shape each; only the number of rows varies.

    Fixed inner dimensions are what vector instructions are chosen by, and every other shape of rows is a variant.
    """

    _fixed = True

    def _shape(self, tensor: Tensor) -> Hashable:
        return tuple(tensor.shape[1:]) if tensor.dim() > 1 else tensor.dim()


def compiled(function: Callable[P, R]) -> Compiled[P, R]:
    """Decorator: `function(tensor, ...)` compiled for large tensors; see the module's text."""
    return Compiled(function)
