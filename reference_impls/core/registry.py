"""Methods by name.

Listing methods imports no torch; a method's module is imported when it is first asked for. Third parties add methods through
the entry-point group ``bandwise.algorithms`` (name -> ``module:Class``), or by a plugin file that calls ``registry.add``. The
paths of plugin files stand in ``BANDWISE_PLUGINS``, which processes inherit, so that whoever carries a run out knows the methods
that whoever started it knows.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import hashlib
import importlib
import importlib.metadata
import importlib.util
import itertools
import math
import os
import re
import sys
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from reference_impls.core.catalogue import BUILT_IN, FORMER, Entry, Family
from reference_impls.core.errors import (
    UnknownAlgorithmError,
    UnknownOptionError,
    UnsupportedError,
    nearest,
)
from reference_impls.core.options import HYPERPARAMETERS, Declared, declared, hyperparameters

if TYPE_CHECKING:
    from reference_impls.core.algorithm import Algorithm

ENTRY_POINTS = "bandwise.algorithms"
PLUGINS = "BANDWISE_PLUGINS"
"""Variable: paths of plugin files, separated like those of PATH."""


@dataclass(frozen=True)
class AlgorithmInfo:
    """What can be said of an algorithm without running it. `source_hash`: of its module and all modules of this package
    that it uses."""

    name: str
    family: Family
    paper: str
    summary: str
    version: int
    options: Mapping[str, Declared]
    hyperparameters: Mapping[str, Declared]
    differences: str
    source_hash: str


@dataclass(frozen=True)
class Method:
    """A configured algorithm: name, algorithm object and hyper-parameters of its parameter groups (lr excepted)."""

    name: str
    algorithm: Algorithm
    hyperparameters: Mapping[str, Any]

    def group(self, **own: Any) -> dict[str, Any]:
        """What a parameter group carries.

        Args:
            own: lr, and what this group says otherwise than the method.

        Returns:
            All hyper-parameters of the group, in their plain form.

        Raises:
            UnsupportedError: a value is out of its bounds, or of another type.
        """
        return hyperparameters(self.name, {**self.hyperparameters, **own})

    def clipped(self, norm: float | None) -> tuple[Method, float | None]:
        """The method that clips to `norm`, and what is left for the driver to clip.

        Args:
            norm: largest 2-norm of the gradient; None for no clipping, nor is there any at infinity.

        Returns:
            The method with its own option set and None, or this method and the norm, by which the driver clips what
            `reduce` answers.

        Raises:
            UnsupportedError: the method neither reduces a gradient nor clips by itself, or was given another norm.
        """
        own = self.algorithm
        if norm is None or own.reduces_gradient:
            return self, norm
        if not own.clipping:
            raise UnsupportedError(
                f"{self.name} does not reduce a gradient and has no clipping of its own: leave clip_norm out, or clip in a "
                "method that averages gradients"
            )
        if norm == math.inf:
            return self, None
        option = declared(type(own))[own.clipping]
        given = getattr(own, own.clipping)
        if given not in (option.default, norm):
            raise UnsupportedError(
                f"{self.name}: clip_norm={norm} sets its option {own.clipping}, which is {given} already: give one of them"
            )
        value = option.checked(self.name, norm)
        return dataclasses.replace(self, algorithm=dataclasses.replace(own, **{own.clipping: value})), None


AnyMethod: TypeAlias = "str | Algorithm | Method"
"""What names a method: a registered name, an object of its class, or a configured one."""


class Registry:
    """Names -> entries: the built-in ones, entry points of installed packages, and what plugin files register."""

    def __init__(self, built_in: Mapping[str, Entry]) -> None:
        self._entries = dict(built_in)
        self._searched = False
        self.plugins: set[Path] = set()
        """Files that were executed here."""

    def names(self) -> list[str]:
        """All names, sorted."""
        return sorted(self._all())

    def add(self, name: str, entry: Entry) -> None:
        """Register a method. A name can be taken once; `ValueError` otherwise."""
        if name in self._entries:
            raise ValueError(
                f"algorithm {name!r} is already registered by {self._entries[name].target}; choose another name"
            )
        self._entries[name] = entry

    def entry(self, name: str) -> Entry:
        """The entry of a name; `UnknownAlgorithmError` with the nearest match."""
        entries = self._all()
        if name not in entries:
            raise UnknownAlgorithmError(f"no algorithm called {name!r}{nearest(name, entries)}")
        return entries[name]

    def load(self, name: str) -> type[Algorithm]:
        """The algorithm's class, imported now. `TypeError` if it is not an `Algorithm` dataclass."""
        from reference_impls.core.algorithm import Algorithm  # here, since it needs torch

        module, _, attribute = self.entry(name).target.partition(":")
        cls = getattr(importlib.import_module(module), attribute)
        if not (isinstance(cls, type) and issubclass(cls, Algorithm) and dataclasses.is_dataclass(cls)):
            raise TypeError(
                f"{self.entry(name).target} must be a frozen dataclass derived from reference_impls.core.algorithm.Algorithm"
            )
        return cls

    def _all(self) -> dict[str, Entry]:
        if not self._searched:
            self._searched = True
            for point in importlib.metadata.entry_points(group=ENTRY_POINTS):
                if point.name not in self._entries:
                    self._entries[point.name] = Entry(point.value, "plugin", "", f"from {point.value}")
            self._load_named()
        return self._entries

    def _load_named(self) -> None:
        """Load the plugin files that the environment names. Raises `UnsupportedError` for one that is not there."""
        paths = [Path(path).resolve() for path in os.environ.get(PLUGINS, "").split(os.pathsep) if path]
        for path in paths:
            try:
                load_plugin(path)
            except FileNotFoundError as error:
                self._searched = False
                raise UnsupportedError(f"{error}, which {PLUGINS} names: correct or unset it") from None


registry = Registry(BUILT_IN)


def list_algorithms() -> list[str]:
    """Names of all algorithms, sorted."""
    return registry.names()


def load_plugin(path: str | Path) -> None:
    """Execute a plugin file; it adds its methods with ``registry.add(name, Entry("module:Class", ...))``.

    The file is importable as a module named like the file (without ``.py``), here and in every process that is started from
    here, by the variable ``BANDWISE_PLUGINS``. A file that was executed before is passed over.

    Args:
        path: Of the Python file.

    Raises:
        FileNotFoundError: There is no such file.
        UnsupportedError: It does not end in .py.
        ValueError: It adds a name that is taken.
    """
    path = Path(path).resolve()
    if path in registry.plugins:
        return
    if not path.is_file():
        raise FileNotFoundError(f"no plugin file {path}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise UnsupportedError(f"{path} is not a Python file; a plugin ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    registry.plugins.add(path)
    os.environ[PLUGINS] = os.pathsep.join(sorted(map(str, registry.plugins)))


def former(cls: type) -> dict[str, Any]:
    """Options that a method had, at the value that is left (`FORMER`)."""
    return {
        name: value for base in reversed(cls.__mro__) for name, value in FORMER.get(base.__name__, {}).items()
    }


def create(algorithm: AnyMethod, **options: Any) -> Method:
    """A configured method.

    Args:
        algorithm: A name; an object of a method's class, `DiLoCo(period=100)` say; or what this function answered.
        options: With a name, fields of the algorithm and hyper-parameters of its (local) optimizer together; with an object these
            hyper-parameters alone; lr excepted.

    Returns:
        The method, all values in their plain form.

    Raises:
        UnknownAlgorithmError: There is no such name, or this is no method.
        UnknownOptionError: There is no such option, or it is fixed by what was given.
        UnsupportedError: A value is out of its bounds or of another type.
    """
    if isinstance(algorithm, Method):
        if options:
            raise UnknownOptionError(f"a configured method takes no further options, got {sorted(options)}")
        return algorithm
    if isinstance(algorithm, str):
        return _of_name(algorithm, options)
    from reference_impls.core.algorithm import Algorithm  # here, since it needs torch

    if not isinstance(algorithm, Algorithm):
        raise UnknownAlgorithmError(
            f"a method is a name of list_algorithms(), an object of a method's class or what create() answered, not {algorithm!r}"
        )
    name = _name_of(algorithm)
    if fixed := sorted({f.name for f in dataclasses.fields(algorithm)} & options.keys()):
        raise UnknownOptionError(
            f"{name}: {', '.join(fixed)}: give this to the object, {type(algorithm).__name__}(...)"
        )
    return _with_hyperparameters(name, algorithm, options, ())


def _name_of(algorithm: Algorithm) -> str:
    """The name by which the same class with the most of these options is registered, else that of the class."""
    cls = type(algorithm)
    presets = {
        name: entry.preset
        for name in registry.names()
        if (entry := registry.entry(name)).target == f"{cls.__module__}:{cls.__qualname__}"
        and all(getattr(algorithm, key) == value for key, value in entry.preset.items())
    }
    return max(presets, key=lambda name: len(presets[name]), default=cls.__name__)


def _of_name(name: str, options: dict[str, Any]) -> Method:
    entry, cls = registry.entry(name), registry.load(name)
    fields = {f.name for f in dataclasses.fields(cls)} - entry.preset.keys()
    gone = former(cls)
    options = {key: value for key, value in options.items() if key not in gone or value != gone[key]}
    if fixed := next((key for key in options if key in entry.preset), None):
        raise UnknownOptionError(
            f"{name}: {fixed} is fixed to {entry.preset[fixed]!r} by the name; use another algorithm"
        )
    own = {key: declared(cls)[key].checked(name, value) for key, value in options.items() if key in fields}
    rest = {key: value for key, value in options.items() if key not in fields}
    return _with_hyperparameters(name, cls(**entry.preset, **own), rest, fields)


def _with_hyperparameters(
    name: str, algorithm: Algorithm, given: Mapping[str, Any], fields: Collection[str]
) -> Method:
    """The method, with what `given` says of its parameter groups. fields: the options that may be meant, for errors."""
    known = {key: value for key, value in algorithm.hyperparameters().items() if key != "lr"}
    for key in given:
        if key == "lr":
            raise UnknownOptionError(f"{name}: lr is an argument of its own, not an option of the method")
        if key == "scaler":
            raise UnknownOptionError(
                f"{name}: no GradScaler is taken; train with bfloat16 autocast, which needs none"
            )
        if key not in known:
            raise UnknownOptionError(f"{name} has no option {key!r}{nearest(key, {*fields, *known})}")
    return Method(name, algorithm, hyperparameters(name, {**known, **given}))


def _differences(cls: type) -> str:
    """The *Differences* of a method: of its class, the nearest base, or its file, and what files of bases say of all in them.

    From whom it differs, if not from its paper, stands before the colon: "Differences from torch's hooks: ...".
    """
    files = [
        sys.modules[name].__doc__ or "" for name in dict.fromkeys(base.__module__ for base in cls.__mro__)
    ]
    docs = [base.__doc__ or "" for base in cls.__mro__] + files[:1]
    own = (found for doc in docs if (found := re.search(r"\bDifferences( from [^:]*)?:(.*)", doc, re.DOTALL)))
    shared = (doc.partition("Differences of all:")[2] for doc in files)
    parts = [f"{f'{found[1]}:' if found[1] else ''}{found[2]}" for found in itertools.islice(own, 1)]
    return " ".join(" ".join([*parts, *(f"Of all: {part}" for part in shared if part)]).split())


def info(name: str) -> AlgorithmInfo:
    """Family, paper, options and differences of an algorithm. Raises `UnknownAlgorithmError`."""
    entry = registry.entry(name)
    cls = registry.load(name)
    options = {key: own for key, own in declared(cls).items() if key not in entry.preset}
    hyper = {
        key: dataclasses.replace(
            HYPERPARAMETERS.get(key, Declared(key, ())),
            help="hyper-parameter of the optimizer",
            default=value,
            type=type(value).__name__,
        )
        for key, value in cls(**entry.preset).hyperparameters().items()
        if key != "lr"
    }
    return AlgorithmInfo(
        name,
        entry.family,
        entry.paper,
        entry.summary,
        entry.version,
        options,
        hyper,
        _differences(cls),
        _source_hash(cls.__module__),
    )


@functools.cache
def _source_hash(module: str) -> str:
    """sha256 over the sources of a module and of the modules of its package that it imports: what a method is made of.

    The package's own face does not count, which imports who carries methods out, nor what only annotations name.
    """
    package = module.partition(".")[0]
    todo, sources = [module], {}
    while todo:
        name = todo.pop()
        spec = importlib.util.find_spec(name) if name not in sources else None
        if spec is None or spec.origin is None:
            continue
        text = Path(spec.origin).read_text(encoding="utf-8")
        sources[name] = text
        for node in _imports(ast.parse(text)):
            if node.module and node.module.partition(".")[0] == package:
                found = importlib.util.find_spec(node.module)
                if found is not None and found.submodule_search_locations is not None:
                    todo += [f"{node.module}.{alias.name}" for alias in node.names]
                if node.module != package:
                    todo.append(node.module)
    joined = "\n".join(f"{name}\n{sources[name]}" for name in sorted(sources))
    return hashlib.sha256(joined.encode()).hexdigest()[:16]


def _imports(node: ast.AST) -> Iterator[ast.ImportFrom]:
    """All `from ... import` of a module, those within functions too, but not those under ``if TYPE_CHECKING``."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ImportFrom):
            yield child
        elif not isinstance(child, ast.expr) and not (
            isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING")
        ):
            yield from _imports(child)
