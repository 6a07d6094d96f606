"""Name -> workload, with the nearest match when a name or an option is mistyped."""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import typing
from collections.abc import Iterable
from typing import Any

from suite.workloads.base import Workload, WorkloadOptionError

_CLASSES = {
    "byte-mlm": "suite.workloads.byte_mlm:ByteMLM",
    "code-gpt": "suite.workloads.code_gpt:CodeGPT",
    "code-packages": "suite.workloads.code_packages:CodePackages",
    "ctr-zipf": "suite.workloads.ctr_zipf:CtrZipf",
    "digits-cnn": "suite.workloads.digits_cnn:DigitsCNN",
    "digits-mlp": "suite.workloads.digits_mlp:DigitsMLP",
    "digits-noisy": "suite.workloads.digits_noisy:DigitsNoisy",
    "digits-vit": "suite.workloads.digits_vit:DigitsViT",
    "label-noise-diagonal": "suite.workloads.label_noise:LabelNoiseDiagonal",
    "quadratic": "suite.workloads.quadratic:Quadratic",
}


class UnknownWorkloadError(ValueError):
    """No workload has this name."""


@dataclasses.dataclass(frozen=True)
class OptionInfo:
    """One option of a workload: its default, its type, what it does."""

    default: Any
    type: type
    help: str


def names() -> list[str]:
    """The names of all workloads, sorted."""
    return sorted(_CLASSES)


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
            raise WorkloadOptionError(
                f'workload {name} has no option "{key}": {_hint(key, known, "it has no options")}'
            )
    return _load(name)(**{key: _typed(name, key, value, known[key].type) for key, value in values.items()})


def _load(name: str) -> type[Workload]:
    if name not in _CLASSES:
        raise UnknownWorkloadError(f'unknown workload "{name}": {_hint(name, _CLASSES, "there are none")}')
    module, _, attribute = _CLASSES[name].partition(":")
    cls: type[Workload] = getattr(importlib.import_module(module), attribute)
    return cls


def _typed(workload: str, key: str, value: Any, wanted: type) -> Any:
    if wanted is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, wanted) or (isinstance(value, bool) and wanted is not bool):
        raise WorkloadOptionError(
            f'option "{key}" of workload {workload} takes {_PHRASES[wanted]}, got {value!r}'
        )
    return value


_PHRASES = {int: "an integer", float: "a number", str: "a string", bool: "true or false"}


def _hint(word: str, known: Iterable[str], none: str) -> str:
    choices = sorted(known)
    if not choices:
        return none
    nearest = difflib.get_close_matches(str(word), choices, n=1, cutoff=0.5)
    guess = f'did you mean "{nearest[0]}"? ' if nearest else ""
    return f"{guess}Choose one of {', '.join(choices)}"
