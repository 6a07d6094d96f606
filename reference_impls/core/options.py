"""What options of methods may be.

An option is a dataclass field with a default, a line of help and bounds (`option`); its type is the field's annotation. What
parameter groups carry (lr, betas, momentum, ...) means the same in every method and is declared once for all
(`HYPERPARAMETERS`). Values are answered in their plain form: an integer given for a number becomes that float, a list a tuple. A
number that is not finite is never allowed, nor is 8.0 where an integer is wanted.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import numbers
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args, get_origin

from reference_impls.core.errors import UnsupportedError, UsageError, nearest

_REFUSED = object()


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
    """One option or hyper-parameter: its name, the alternatives of its annotation, its bounds, and what it is.

    default: of an option; a hyper-parameter has the one of its method. type: the annotation as written.
    """

    name: str
    alternatives: tuple[Any, ...]
    bounds: Bounds = field(default_factory=Bounds)
    help: str = ""
    default: Any = None
    type: str = ""

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
        if hasattr(value, "item"):
            return ": give its value.item()"
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
            f.default,
            str(f.type),
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
