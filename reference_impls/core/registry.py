"""Methods by name, and what their options may be.

Listing methods imports no torch; a method's module is imported when it is first asked for. Third parties add methods through
the entry-point group ``bandwise.algorithms`` (name -> ``module:Class``), or by a plugin file that calls ``registry.add``. The
paths of plugin files stand in ``BANDWISE_PLUGINS``, which processes inherit, so that whoever carries a run out knows the methods
that whoever started it knows.

An option is a dataclass field with a default, a line of help and bounds (`option`); its type is the field's annotation. What
parameter groups carry (lr, betas, momentum, ...) means the same in every method and is declared once for all
(`HYPERPARAMETERS`). Values are answered in their plain form: an integer given for a number becomes that float, a list a tuple. A
number that is not finite is never allowed, nor is 8.0 where an integer is wanted.
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
import numbers
import os
import re
import sys
import types
import typing
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args, get_origin

from reference_impls.core.catalogue import BUILT_IN, FORMER, Entry, Family
from reference_impls.core.errors import (
    UnknownAlgorithmError,
    UnknownOptionError,
    UnsupportedError,
    UsageError,
    nearest,
)

if TYPE_CHECKING:
    from reference_impls.core.algorithm import Algorithm

_REFUSED = object()

# ---- options ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Bounds:
    """The range of a number, or the values that a string may have."""

    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    lt: float | None = None
    choices: tuple[Any, ...] = ()

    def admit(self, value: float) -> bool:
        """Whether a number lies in the range; NaN and infinity lie in none."""
        return (
            math.isfinite(value)
            and (self.ge is None or value >= self.ge)
            and (self.gt is None or value > self.gt)
            and (self.le is None or value <= self.le)
            and (self.lt is None or value < self.lt)
            and (not self.choices or value in self.choices)
        )

    def __str__(self) -> str:
        if self.ge is not None and self.le is not None:
            return f" from {self.ge} to {self.le}"
        low = f"above {self.gt}" if self.gt is not None else f"of at least {self.ge}"
        high = f"below {self.lt}" if self.lt is not None else f"at most {self.le}"
        parts = [low] * (self.ge is not None or self.gt is not None)
        parts += [high] * (self.le is not None or self.lt is not None)
        return "".join(f" {text}" for text in [" and ".join(parts)] if text)


@dataclass(frozen=True)
class Declared:
    """One option or hyper-parameter: its name, the alternatives of its annotation, its bounds, and what it is."""

    name: str
    alternatives: tuple[Any, ...]
    bounds: Bounds = field(default_factory=Bounds)
    help: str = ""

    @property
    def allowed(self) -> str:
        """The values that it may have, in words."""
        return " or ".join(dict.fromkeys(_words(own, self.bounds) for own in self.alternatives))

    def checked(self, owner: str, value: Any) -> Any:
        """`value` in its plain form.

        Args:
            owner: name of the method, for the error.
            value: what was given.

        Returns:
            The value as a Python int, float, bool, str or tuple; other objects as they are.

        Raises:
            UnsupportedError: `value` is of another type or out of bounds.
        """
        for own in self.alternatives:
            plain = _plain(own, self.bounds, value)
            if plain is not _REFUSED:
                return plain
        raise UnsupportedError(
            f"{owner}: {self.name} must be {self.allowed}; got {value!r}{self._hint(value)}"
            + (f" ({self.help})" if self.help else "")
        )

    def _hint(self, value: Any) -> str:
        if int in self.alternatives and isinstance(value, float) and value.is_integer():
            return f": write {int(value)}"
        names = [x for own in self.alternatives for x in _names(own, self.bounds)]
        hint = nearest(str(value), names) if names else ""
        return hint if hint.startswith("; did") else ""  # else the names stand there already


def option(
    default: Any,
    help: str,
    *,
    ge: float | None = None,
    gt: float | None = None,
    le: float | None = None,
    lt: float | None = None,
    choices: Sequence[Any] = (),
) -> Any:
    """A dataclass field that is an option of an algorithm.

    Args:
        default: value where none is given.
        help: one line for `bandwise info`.
        ge: least value.
        gt: bound that the value must exceed.
        le: largest value.
        lt: bound that the value must stay below.
        choices: the values of a string or integer whose annotation does not name them.

    Returns:
        The field.
    """
    bounds = Bounds(ge, gt, le, lt, tuple(choices))
    return dataclasses.field(default=default, metadata={"help": help, "bounds": bounds})


@functools.cache
def declared(cls: type) -> Mapping[str, Declared]:
    """The options of a dataclass by name, inherited ones included."""
    hints = typing.get_type_hints(cls)
    return {
        f.name: Declared(
            f.name,
            _alternatives(hints[f.name]),
            f.metadata.get("bounds", Bounds()),
            f.metadata.get("help", ""),
        )
        for f in dataclasses.fields(cls)
    }


_SHARE = Bounds(ge=0, lt=1)
_FROM_0 = Bounds(ge=0)
HYPERPARAMETERS: Mapping[str, Declared] = {
    own.name: own
    for own in (
        Declared("lr", (float,), _FROM_0),
        Declared("betas", (tuple[float, float],), _SHARE),
        Declared("momentum", (float,), _SHARE),
        Declared("dampening", (float,), Bounds(ge=0, le=1)),
        Declared("nesterov", (bool,)),
        Declared("weight_decay", (float,), _FROM_0),
        Declared("eps", (float,), _FROM_0),
        Declared("ns_steps", (int,), Bounds(ge=1, lt=100)),
        Declared("adjust_lr_fn", (Literal["match_rms_adamw", "original"],)),
        Declared("adamw_for", (tuple[str, ...],)),
        Declared("submatrix_fraction", (float,), Bounds(gt=0, le=1)),
        Declared("ef_decay", (float,), _SHARE),
    )
}
"""What parameter groups may carry, of whatever method. Other names (of a plug-in's own optimizer) are not checked."""


def hyperparameters(owner: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """The hyper-parameters of a parameter group in their plain form.

    Args:
        owner: name of the method, for errors.
        values: all that the group carries, defaults filled in.

    Returns:
        The same names with plain values.

    Raises:
        UnsupportedError: a value is of another type or out of bounds, or two do not go together.
    """
    plain = {
        name: HYPERPARAMETERS[name].checked(owner, value) if name in HYPERPARAMETERS else value
        for name, value in values.items()
    }
    if plain.get("nesterov") and (not plain.get("momentum") or plain.get("dampening")):
        raise UnsupportedError(
            f"{owner}: nesterov=True needs a momentum above 0 and dampening 0; got momentum {plain.get('momentum')} and "
            f"dampening {plain.get('dampening', 0.0)}"
        )
    return plain


def _alternatives(hint: Any) -> tuple[Any, ...]:
    if get_origin(hint) in (typing.Union, types.UnionType):
        return tuple(own for part in get_args(hint) for own in _alternatives(part))
    return (hint,)


def _names(own: Any, bounds: Bounds) -> tuple[str, ...]:
    """The strings that an alternative admits, if it names them."""
    known = get_args(own) if get_origin(own) is Literal else bounds.choices if own is str else ()
    return tuple(x for x in known if isinstance(x, str))


def _words(own: Any, bounds: Bounds) -> str:
    if get_origin(own) is Literal or (own in (int, str) and bounds.choices):
        known = bounds.choices or get_args(own)
        return f"one of {', '.join(map(str, known))}" if len(known) > 1 else repr(known[0])
    if get_origin(own) is tuple:
        first, *rest = get_args(own)
        count = "a list" if rest == [...] else f"{1 + len(rest)} numbers"
        return f"{count}, each {_words(first, bounds)}"
    if own is int or own is float:
        return ("an integer" if own is int else "a number") + str(bounds)
    plain = {bool: "True or False", str: "a string", type(None): "None"}
    return plain.get(own) or (f"a {own.__name__}" if isinstance(own, type) else "a callable")


def _plain(own: Any, bounds: Bounds, value: Any) -> Any:
    """`value` as this alternative has it, or `_REFUSED`."""
    number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if get_origin(own) is Literal:
        known = bounds.choices or get_args(own)
        return value if any(type(value) is type(x) and value == x for x in known) else _REFUSED
    if get_origin(own) is tuple:
        inner = get_args(own)
        if isinstance(value, tuple | list) and inner[1:] == (...,):
            inner = inner[:1] * len(value)
        if not isinstance(value, tuple | list) or len(value) != len(inner):
            return _REFUSED
        items = tuple(_plain(part, bounds, x) for part, x in zip(inner, value, strict=True))
        return _REFUSED if _REFUSED in items else items
    if own is int:
        return (
            int(value)
            if isinstance(value, numbers.Integral) and number and bounds.admit(int(value))
            else _REFUSED
        )
    if own is float:
        return float(value) if number and bounds.admit(value) else _REFUSED
    if own is str:
        return value if isinstance(value, str) and value in (bounds.choices or (value,)) else _REFUSED
    if own is bool or own is type(None):
        return value if isinstance(value, own) else _REFUSED
    if callable(value) or not isinstance(value, str | int | float | tuple | list | dict | None):
        return value  # a callable, or an object that has the methods of a protocol
    return _REFUSED


def scalars(values: Mapping[str, Any]) -> dict[str, Any]:
    """Scalars as loggers and methods take them: a tensor or an array of one element is its number, whatever its dtype.

    Args:
        values: Numbers, tensors, arrays, by name; on a GPU a tensor is waited for.

    Returns:
        The same names, with Python numbers; what has no ``item()`` is left as it is.

    Raises:
        UsageError: One has several elements, or none; it is named.
    """
    found = {}
    for name, value in values.items():
        if (count := math.prod(getattr(value, "shape", ()))) != 1:
            raise UsageError(
                f"{name} has {count} elements of shape {tuple(value.shape)}, where one number is wanted: give {name}.mean(), say"
            )
        found[name] = value.item() if hasattr(value, "item") else value
    return found


# ---- names -----------------------------------------------------------------------------------------------------------


ENTRY_POINTS = "bandwise.algorithms"
PLUGINS = "BANDWISE_PLUGINS"
"""Variable: paths of plugin files, separated like those of PATH."""


@dataclass(frozen=True)
class OptionInfo:
    """An option of an algorithm: its default, its type as written, one line of help, and what it may be in words."""

    default: Any
    type: str
    help: str
    allowed: str


@dataclass(frozen=True)
class AlgorithmInfo:
    """What can be said of an algorithm without running it. `source_hash`: of its module and all modules of this package
    that it uses."""

    name: str
    family: Family
    paper: str
    summary: str
    version: int
    options: Mapping[str, OptionInfo]
    hyperparameters: Mapping[str, OptionInfo]
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
        default = next(f.default for f in dataclasses.fields(own) if f.name == own.clipping)
        given = getattr(own, own.clipping)
        if given not in (default, norm):
            raise UnsupportedError(
                f"{self.name}: clip_norm={norm} sets its option {own.clipping}, which is {given} already: give one of them"
            )
        value = declared(type(own))[own.clipping].checked(self.name, norm)
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
    options = {
        f.name: OptionInfo(f.default, str(f.type), f.metadata.get("help", ""), declared(cls)[f.name].allowed)
        for f in dataclasses.fields(cls)
        if f.name not in entry.preset
    }
    hyper = {
        key: OptionInfo(
            value,
            type(value).__name__,
            "hyper-parameter of the optimizer",
            HYPERPARAMETERS[key].allowed if key in HYPERPARAMETERS else "",
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
