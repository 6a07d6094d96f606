"""Compiled functions that are kept on disk: a later process loads one in hundredths of a second and need not trace it.

The compiler's own caches hold machine code, but it is found only after the function has been traced again, which takes
longer than loading everything else. A *program* is a function compiled for a kind of arguments, together with the
conditions (guards) under which it may be used: dtypes, relations between sizes and strides, the values of flags. They
are checked at each call, here without the rest of the compiler's machinery, and so a call costs less as well.

Programs are kept beside the compiler's cache (``TORCHINDUCTOR_CACHE_DIR``), under a name that stands for all source
files of this package, the versions of Python and torch, the processor, and what the caller says about the arguments;
so a change of any of them is a new program, and a file that cannot be read is compiled anew. Functions from elsewhere
are compiled for the process alone. Like the compiler's cache the folder must belong to who runs this: reading a
program runs code.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import inspect
import io
import logging
import os
import pickle
import platform
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from types import FunctionType
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

LOCK_SECONDS: Final = 120
"""How long to wait for another process that compiles the same function. A stopped process holds its lock for ever."""

_ROOT: Final = Path(__file__).resolve().parents[1]
"""Of the package."""


@functools.cache
def _say_that_it_takes_long() -> None:
    """Once a process, before the first function is compiled that no earlier process has kept."""
    logging.getLogger("bandwise").warning(
        "bandwise compiles its compressors for this machine: the first steps take some seconds longer, and later processes load "
        "what was compiled (BANDWISE_COMPILE=0 runs them as plain torch, slower, with the same bits)"
    )


def name_of(function: Callable[..., Any]) -> str:
    """ "module.function", leading underscores left out."""
    return f"{function.__module__.rpartition('.')[2]}.{function.__name__.lstrip('_')}"


@functools.cache
def _say_that_it_is_not_kept(name: str, reason: str) -> None:
    """Once a process and function."""
    logging.getLogger("bandwise").warning(
        "%s is compiled anew by each process, since torch %s keeps nothing of it: %s",
        name,
        torch.__version__,
        reason,
    )


def settings(args: Sequence[Any]) -> contextlib.AbstractContextManager[None]:
    """How functions are traced for `args`: floats are compiled in, and so are the integers that a function holds, if it is
    given none. Torch up to 2.12 cannot shift by an integer that it leaves open, nor view what was added to one as floats.
    """
    given = any(type(a) is int for a in args)
    patched: contextlib.AbstractContextManager[None] = torch._dynamo.config.patch(
        specialize_float=True, specialize_int=not given, enable_aot_compile=True
    )  # the last is so by default from 2.12 on
    return patched


def fix_rows(args: Sequence[Any]) -> None:
    """Let all dimensions of tensors but the first be compiled as they are."""
    for tensor in args:
        if isinstance(tensor, Tensor):
            for dimension in range(1, tensor.dim()):
                torch._dynamo.mark_static(tensor, dimension)


@functools.cache
def _sources() -> str:
    """A hash of what a program may depend on apart from its arguments."""
    digest = hashlib.sha256()
    for path in sorted(_ROOT.rglob("*.py")):
        digest.update(str(path.relative_to(_ROOT)).encode() + b"\0" + path.read_bytes() + b"\0")
    versions = (platform.python_version(), torch.__version__, str(torch.version.git_version))
    digest.update(repr((versions, torch.backends.cpu.get_cpu_capability(), platform.processor())).encode())
    return digest.hexdigest()


def _settings() -> str:
    """The compiler's settings."""
    from torch._inductor import config

    return repr(sorted(config.save_config_portable().items()))


@functools.cache
def _folder() -> Path:
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    folder = Path(cache_dir(), "bandwise")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _same_instructions(recorded: str) -> bool:
    """Whether code of today would use the vector instructions of a program.

    What has been built here for them need not be tried out again, which takes a second and more.
    """
    from torch._inductor import config, cpu_vec_isa

    with config.patch("cpp.vec_isa_ok", True):
        same = str(cpu_vec_isa.pick_vec_isa()) == recorded
    if not same:
        cpu_vec_isa.valid_vec_isa_list.cache_clear()
    return same


@functools.cache
def _wait_less() -> None:
    """A lock that is held for longer ends in an error, which the caller answers by running eagerly and saying so."""
    from torch._inductor import codecache

    codecache.LOCK_TIMEOUT = min(codecache.LOCK_TIMEOUT, LOCK_SECONDS)


def _most() -> int:
    """Programs of one variant."""
    from torch._dynamo import config

    return config.recompile_limit


class CompileError(RuntimeError):
    """The function is not compiled for these arguments."""


class _Program(NamedTuple):
    accepts: Callable[[dict[str, Any]], bool]
    run: Callable[..., Any]


def _program(loaded: Any) -> _Program:
    loaded.disable_guard_check()  # done below, without binding names at each call
    return _Program(loaded._artifacts.guard_manager.check, loaded.fn)


class Programs:
    """The programs of one variant of `function`, a function of tensors and scalars with positional arguments.

    variant: what of the arguments the name of a program stands for. fixed: whether all dimensions but the first of
    tensors of two and more are compiled as they are, rather than for all sizes.
    """

    def __init__(self, function: Callable[..., Any], variant: Hashable, *, fixed: bool = False) -> None:
        self._function = function
        code = function.__code__
        self._names = code.co_varnames[: code.co_argcount]
        rest = code.co_argcount + code.co_kwonlyargcount
        self._rest = code.co_varnames[rest] if code.co_flags & inspect.CO_VARARGS else None
        cells = zip(code.co_freevars, function.__closure__ or (), strict=True)
        self._held = {name: cell.cell_contents for name, cell in cells}
        self._fixed = fixed
        self._programs: list[_Program] = []
        self._looked_for = 0
        self._name = None
        if _is_own(function) and (held := _lasting_name(tuple(self._held.values()))) is not None:
            place = (function.__module__, function.__qualname__, held)
            whole = (_sources(), _settings(), place, variant, fixed)
            self._name = hashlib.sha256(repr(whole).encode()).hexdigest()[:32]

    def __call__(self, *args: Any) -> Any:
        """The function's result. What is wrong with the arguments, or with compiling, is raised as the compiler does."""
        args = _distinct(args)
        named = dict(zip(self._names, args, strict=False))
        if self._rest is not None:
            named[self._rest] = args[len(self._names) :]
        named.update(self._held)
        for program in self._programs:
            if program.accepts(named):
                return program.run(*args)
        return self._new(args, named).run(*args)

    def _new(self, args: tuple[Any, ...], named: dict[str, Any]) -> _Program:
        while (path := self._path()) is not None and path.exists():
            self._looked_for += 1
            if (program := _read(path, self._function)) is not None:
                self._programs.append(program)
                if program.accepts(named):
                    return program
        if len(self._programs) >= _most():
            raise CompileError(f"compiled for {_most()} kinds of arguments, and these are of yet another")
        program, kept = self._compile(args)
        if path is not None and kept is not None:
            _write(path, kept)
            self._looked_for += 1
        self._programs.append(program)
        return program

    def _path(self) -> Path | None:
        if self._name is None or self._looked_for >= _most():
            return None
        return _folder() / f"{self._name}-{self._looked_for}.program"

    def _compile(self, args: tuple[Any, ...]) -> tuple[_Program, Any | None]:
        """A program and what can be kept of it."""
        _wait_less()
        args = _alike(args)
        if self._fixed:
            fix_rows(args)
        _say_that_it_takes_long()
        try:
            with settings(args):
                form: Any = torch.compile(self._function, dynamic=True, fullgraph=True)
                loaded = form.aot_compile((args, {}))
        except TimeoutError as error:
            raise CompileError(
                f"another process has been compiling for {LOCK_SECONDS} s ({error}); if it is stopped, end it"
            ) from error
        except torch._dynamo.exc.TorchDynamoException:
            raise
        except Exception as error:  # noqa: BLE001
            return _Program(lambda named: True, self._not_kept(form, repr(error))), None
        return _program(loaded), loaded

    def _not_kept(self, form: Callable[..., Any], reason: str) -> Callable[..., Any]:
        """What torch keeps in this process: its own errors say more of the arguments, and it may work."""

        def run(*args: Any) -> Any:
            with settings(args):
                result = form(*args)
            _say_that_it_is_not_kept(name_of(self._function), reason)
            return result

        return run


def _lasting_name(value: Any) -> str | None:
    """A text that says all of what a function holds of its surroundings; None for what has none."""
    if isinstance(value, bool | int | float | str | None | torch.dtype | torch.device):
        return repr(value)
    parts: Sequence[Any]
    if isinstance(value, tuple):
        parts = value
    elif isinstance(value, FunctionType) and _is_own(value):
        parts = [cell.cell_contents for cell in value.__closure__ or ()]
    elif dataclasses.is_dataclass(value) and not isinstance(value, type) and _is_own(type(value)):
        parts = [getattr(value, field.name) for field in dataclasses.fields(value)]
    else:
        return None
    names = [_lasting_name(part) for part in parts]
    if None in names:
        return None
    kind = value if isinstance(value, FunctionType) else type(value)
    return f"{kind.__module__}.{kind.__qualname__}({', '.join(name for name in names if name)})"


def _is_own(thing: Any) -> bool:
    """Whether its source is part of this package."""
    return bool(thing.__module__.split(".")[0] == __name__.split(".")[0])


def _distinct(args: Sequence[Any]) -> tuple[Any, ...]:
    """The arguments, those that are one piece of memory as one tensor, which is what a program knows them by."""
    seen: dict[Hashable, Any] = {}
    return tuple(
        seen.setdefault((a.data_ptr(), a.dtype, a.shape), a) if isinstance(a, Tensor) else a for a in args
    )


def _alike(args: Sequence[Any]) -> tuple[Any, ...]:
    """Arguments to compile for: tensors with memory of their own, so that programs do not depend on what is a view of what."""
    made: dict[int, Tensor] = {}
    for a in args:
        if isinstance(a, Tensor) and id(a) not in made:
            made[id(a)] = torch.empty_strided(a.shape, a.stride(), dtype=a.dtype, device=a.device)
    return tuple(made.get(id(a), a) for a in args)


def _read(path: Path, function: Callable[..., Any]) -> _Program | None:
    """The program, or None if it is of no use, for whatever reason: it is then compiled anew."""
    import torch._inductor.compile_fx

    try:
        instructions, data = pickle.loads(path.read_bytes())
        if not _same_instructions(instructions):
            return None
        return _program(
            torch.compiler.load_compiled_function(io.BytesIO(data), f_globals=function.__globals__)
        )
    except Exception:  # noqa: BLE001
        return None


def _write(path: Path, loaded: Any) -> None:
    from torch._inductor.cpu_vec_isa import pick_vec_isa

    with contextlib.suppress(Exception):  # a program that cannot be kept still runs
        unfinished = path.with_suffix(f".{os.getpid()}")
        unfinished.write_bytes(
            pickle.dumps((str(pick_vec_isa()), type(loaded).serialize(loaded).serialized_data))
        )
        unfinished.replace(path)
