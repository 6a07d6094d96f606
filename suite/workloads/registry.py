"""Name -> workload, with the nearest match when a name or an option is mistyped.

Workloads from outside come the ways that methods come (`reference_impls.core.registry`): a plugin file calls `add`, and an
installed package names its classes in the entry-point group ``bandwise.workloads`` (name -> ``module:Class``).
"""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import importlib
import importlib.metadata
import importlib.util
import inspect
import math
import re
import sys
import typing
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from reference_impls import list_algorithms
from reference_impls.core.errors import nearest
from suite.workloads.base import Workload, WorkloadOptionError

BUILT_IN: Final[Mapping[str, str]] = {
    "byte-mlm": "suite.workloads.code:ByteMLM",
    "causal-lm": "suite.workloads.language:CausalLM",
    "cifar10": "suite.workloads.vision:Cifar10",
    "cifar100": "suite.workloads.vision:Cifar100",
    "code-gpt": "suite.workloads.code:CodeGPT",
    "code-packages": "suite.workloads.code:CodePackages",
    "ctr-zipf": "suite.workloads.synthetic:CtrZipf",
    "digits-cnn": "suite.workloads.digits:DigitsCNN",
    "digits-mlp": "suite.workloads.digits:DigitsMLP",
    "digits-noisy": "suite.workloads.digits:DigitsNoisy",
    "image-folder": "suite.workloads.vision:ImageFolder",
    "label-noise-diagonal": "suite.workloads.synthetic:LabelNoiseDiagonal",
    "masked-lm": "suite.workloads.language:MaskedLM",
    "quadratic": "suite.workloads.synthetic:Quadratic",
}
ENTRY_POINTS: Final = "bandwise.workloads"
NAME: Final = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
SCORE: Final = re.compile(r"[a-z][a-z0-9_]*")
OF_THE_RUN: Final = frozenset({"step", "lr", "train_loss", "wire_bytes"})
"""What a point of a run's curve says besides the scores, so that no score may have such a name."""


class UnknownWorkloadError(ValueError):
    """No workload has this name."""


class WorkloadDeclarationError(ValueError):
    """A workload from outside does not say of itself what it has to; the message names it and what is wrong."""


@dataclasses.dataclass(frozen=True)
class OptionInfo:
    """One option of a workload: its default, its type, what it does."""

    default: Any
    type: type
    help: str


@dataclasses.dataclass(frozen=True)
class Outside:
    """A workload from outside. source_hash: of the code that was loaded, by which a result is found to be older."""

    workload: type[Workload]
    source_hash: str


_outside: dict[str, Outside] = {}


def add(workload: type[Workload]) -> None:
    """Register a workload of one's own under its `name`, in every process that loads the file that says so.

    Args:
        workload: A frozen dataclass derived from `Workload`.

    Raises:
        WorkloadDeclarationError: The name is taken, or what the class says of itself cannot be.
    """
    _check(workload)
    name, known = workload.name, {**_entry_points(), **BUILT_IN}
    taken = _where(_outside[name].workload) if name in _outside else known.get(name, _where(workload))
    if name in _outside or taken != _where(workload):
        raise WorkloadDeclarationError(
            f"{_where(workload)}: there is a workload called {name} already, {taken}: choose another name"
        )
    _outside[name] = Outside(workload, _source_hash(workload))


def names() -> list[str]:
    """The names of all workloads, sorted."""
    return sorted({*BUILT_IN, *_registered(), *_entry_points()})


def from_outside() -> list[str]:
    """The names of the workloads that were registered by `add` in this process so far, sorted."""
    return sorted(_outside)


def source_hash(name: str) -> str | None:
    """The hash of the file, or of all files of the package, that a workload from outside is declared in; None for ours.

    Ours are not hashed: their draws are held by tests, and their `version` moves with them. Raises UnknownWorkloadError.
    """
    if name in BUILT_IN:
        return None
    _load(name)
    return _outside[name].source_hash


def options(name: str) -> dict[str, OptionInfo]:
    """The options of workload `name`, in their order. Raises UnknownWorkloadError."""
    cls = _load(name)
    types = typing.get_type_hints(cls)
    return {
        field.name: OptionInfo(field.default, types[field.name], field.metadata.get("help", ""))
        for field in dataclasses.fields(cls)
    }


def get(name: str, **values: Any) -> Workload:
    """The workload `name` with these options; options not named keep their defaults.

    Raises UnknownWorkloadError for the name and WorkloadOptionError (both are ValueErrors) for an option's
    name, type or value. An integer is taken where a float is due.
    """
    known = options(name)
    for key in values:
        if key not in known:
            raise WorkloadOptionError(f'workload {name} has no option "{key}"{nearest(key, known)}')
    return _load(name)(**{key: _typed(name, key, value, known[key].type) for key, value in values.items()})


def _load(name: str) -> type[Workload]:
    if name in BUILT_IN:
        return _imported(BUILT_IN[name])
    if name not in _registered():
        points = _entry_points()
        if name not in points:
            raise UnknownWorkloadError(f'unknown workload "{name}"{nearest(name, names())}')
        found = _imported(points[name])
        if getattr(found, "name", None) != name:
            raise WorkloadDeclarationError(
                f"the entry point {name} of group {ENTRY_POINTS} is {points[name]}, whose name is "
                f"{getattr(found, 'name', None)!r}: give both one name"
            )
        if name not in _outside:  # else its module has said so itself
            add(found)
    return _outside[name].workload


def _imported(target: str) -> type[Workload]:
    module, _, attribute = target.partition(":")
    try:
        cls: type[Workload] = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        if target in BUILT_IN.values():
            raise
        raise WorkloadDeclarationError(
            f"{target}, an entry point of group {ENTRY_POINTS}, cannot be loaded: {error}; mend its package or uninstall it"
        ) from error
    return cls


def _registered() -> Mapping[str, Outside]:
    """What is registered, once the plugin files that the environment names have been executed."""
    list_algorithms()
    return _outside


def _entry_points() -> dict[str, str]:
    """Name -> ``module:Class`` of installed packages. Raises WorkloadDeclarationError for a name of ours."""
    found = {point.name: point.value for point in importlib.metadata.entry_points(group=ENTRY_POINTS)}
    if taken := sorted(found.keys() & BUILT_IN.keys()):
        raise WorkloadDeclarationError(
            f"the entry point {taken[0]} of group {ENTRY_POINTS}, {found[taken[0]]}, has the name of a workload that is there "
            "already: choose another name"
        )
    return found


def _where(workload: Any) -> str:
    return f"{getattr(workload, '__module__', '?')}:{getattr(workload, '__qualname__', workload)}"


def _check(workload: Any) -> None:
    """Raise WorkloadDeclarationError for the first thing that keeps a class from being a workload."""
    if (wrong := next(_problems(workload), "")) != "":
        raise WorkloadDeclarationError(f"{_where(workload)} cannot be a workload: {wrong}")


def _problems(workload: Any) -> Iterator[str]:
    if not (isinstance(workload, type) and issubclass(workload, Workload)):
        yield "derive it from suite.workloads.Workload"
    if "__dataclass_params__" not in vars(workload) or not workload.__dataclass_params__.frozen:
        yield "write @dataclasses.dataclass(frozen=True) above the class"
    if inspect.isabstract(workload):
        yield f"it lacks {', '.join(sorted(workload.__abstractmethods__))}"
    for name, (holds, wanted) in _STATED.items():
        value = getattr(workload, name, None)
        if not holds(value):
            yield (
                f"{name} is {value!r}: state {wanted}"
                if hasattr(workload, name)
                else f"state {name}, {wanted}"
            )
    try:
        types = typing.get_type_hints(workload)
    except NameError as error:
        yield f"a type of it is not known: {error}"
        return
    for field in dataclasses.fields(workload):
        if types[field.name] not in _PHRASES:
            yield f"option {field.name} is of type {field.type}: options are int, float, str or bool"
        if field.default is dataclasses.MISSING:
            yield f"option {field.name} has no default"


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and value.strip() != ""


def _is_whole(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


_STATED: Final[Mapping[str, tuple[Callable[[Any], object], str]]] = {
    "name": (
        lambda v: _is_text(v) and NAME.fullmatch(v),
        "a name in lower case with hyphens, as in my-task",
    ),
    "version": (lambda v: _is_whole(v, 0), "an integer, to be raised whenever a seed would train something else"),
    "summary": (_is_text, "a line of what is trained"),
    "metric": (
        lambda v: _is_text(v) and SCORE.fullmatch(v) and v not in OF_THE_RUN,
        f"a key of what evaluate answers, lower case with underscores, none of {', '.join(sorted(OF_THE_RUN))}",
    ),
    "unit": (_is_text, 'that of the metric, "1" for a plain number'),
    "direction": (lambda v: v in ("higher", "lower"), '"higher" or "lower", whichever is better'),
    "margin": (
        lambda v: isinstance(v, int | float) and not isinstance(v, bool) and math.isfinite(v) and v > 0,
        "the largest difference that counts as equal, above 0, in the metric's unit",
    ),
    "batch_size": (lambda v: _is_whole(v, 1), "examples a worker and step, at least 1"),
    "shardings": (
        lambda v: isinstance(v, tuple) and v != () and all(map(_is_text, v)),
        'a tuple of names, as in ("iid",)',
    ),
}  # fmt: skip
"""What a class has to say of itself: constant -> what holds of it, and what is to be written."""


def _source_hash(workload: type[Workload]) -> str:
    """First 16 hex digits of SHA-256 over the file that declares it and what it imports from beside it, or over all Python
    files of its package."""
    package = importlib.util.find_spec(workload.__module__.partition(".")[0])
    if package is not None and package.submodule_search_locations is not None:
        tops = [Path(top) for top in package.submodule_search_locations]
        files = {path.relative_to(top).as_posix(): path for top in tops for path in top.rglob("*.py")}
    else:
        file = getattr(sys.modules.get(workload.__module__), "__file__", None)
        if file is None:
            raise WorkloadDeclarationError(
                f"{_where(workload)} stands in no file: other processes could not load it, so write it into one"
            )
        files = {Path(file).name: Path(file), **imported_beside(Path(file))}
    digest = hashlib.sha256()
    for name in sorted(files):
        digest.update(f"{name}\0".encode() + files[name].read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def imported_beside(file: Path) -> dict[str, Path]:
    """The Python files that a plugin file imports from its own folder, directly or through one another, without itself.

    A package there counts with all its files. A name that was loaded from elsewhere is somebody else's.

    Args:
        file: Of the plugin.

    Returns:
        Paths by their name relative to the folder.
    """
    folder, found, todo = file.resolve().parent, dict[str, Path](), [file.resolve()]
    while todo:
        for name in _imports(todo.pop()):
            loaded = getattr(sys.modules.get(name), "__file__", None)
            if loaded is not None and not Path(loaded).resolve().is_relative_to(folder):
                continue
            module, package = folder / f"{name}.py", folder / name
            paths = sorted(package.rglob("*.py")) if (package / "__init__.py").is_file() else [module]
            new = {path.relative_to(folder).as_posix(): path for path in paths if path.is_file()}
            todo += [path for key, path in new.items() if key not in found and path != file.resolve()]
            found |= {key: path for key, path in new.items() if path != file.resolve()}
    return found


def _imports(file: Path) -> set[str]:
    """The first parts of the names of all modules that a file imports."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    return names


def _typed(workload: str, key: str, value: Any, wanted: type) -> Any:
    if wanted is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, wanted) or (isinstance(value, bool) and wanted is not bool):
        raise WorkloadOptionError(
            f'option "{key}" of workload {workload} takes {_PHRASES[wanted]}, got {value!r}'
        )
    return value


_PHRASES = {int: "an integer", float: "a number", str: "a string", bool: "true or false"}
