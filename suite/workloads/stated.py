"""Whether a class from outside can be a workload: what it has to say of itself, and how its options are declared."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator
from typing import Annotated, Any, Final, Literal, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, ValidationError

OF_THE_RUN: Final = ("lr", "step", "train_loss", "wire_bytes")
"""What a point of a run's curve says besides the scores, so that no score may have such a name."""
NOT_BLANK: Final = r"\S"


class Stated(BaseModel):
    """What a class has to say of itself; a description is what is to be written."""

    model_config = ConfigDict(strict=True, regex_engine="python-re")

    name: str = Field(
        pattern=r"^[a-z][a-z0-9]*(-[a-z0-9]+)*\Z",
        description="a name in lower case with hyphens, as in my-task",
    )
    version: int = Field(
        ge=0, description="an integer, to be raised whenever a seed would train something else"
    )
    summary: str = Field(pattern=NOT_BLANK, description="a line of what is trained")
    metric: str = Field(
        pattern=rf"^(?!({'|'.join(OF_THE_RUN)})\Z)[a-z][a-z0-9_]*\Z",
        description=f"a key of what evaluate answers, lower case with underscores, none of {', '.join(OF_THE_RUN)}",
    )
    unit: str = Field(pattern=NOT_BLANK, description='that of the metric, "1" for a plain number')
    direction: Literal["higher", "lower"] = Field(description='"higher" or "lower", whichever is better')
    margin: float = Field(
        gt=0,
        allow_inf_nan=False,
        description="the largest difference that counts as equal, above 0, in the metric's unit",
    )
    batch_size: int = Field(ge=1, description="examples a worker and step, at least 1")
    shardings: tuple[Annotated[str, Field(pattern=NOT_BLANK)], ...] = Field(
        min_length=1, description='a tuple of names, as in ("iid",)'
    )


def problems(workload: Any) -> Iterator[str]:
    """What keeps a class that derives from `Workload` from being one; what comes after the first may be meaningless."""
    if "__dataclass_params__" not in vars(workload) or not workload.__dataclass_params__.frozen:
        yield "write @dataclasses.dataclass(frozen=True) above the class"
    if inspect.isabstract(workload):
        yield f"it lacks {', '.join(sorted(workload.__abstractmethods__))}"
    known = {name: getattr(workload, name) for name in Stated.model_fields if hasattr(workload, name)}
    try:
        Stated(**known)
    except ValidationError as error:
        for name in (str(fault["loc"][0]) for fault in error.errors()):
            wanted = Stated.model_fields[name].description
            yield f"{name} is {known[name]!r}: state {wanted}" if name in known else f"state {name}, {wanted}"
    try:
        types = get_type_hints(workload)
    except NameError as error:
        yield f"a type of it is not known: {error}"
        return
    for field in dataclasses.fields(workload):
        if types[field.name] not in (int, float, str, bool):
            yield f"option {field.name} is of type {field.type}: options are int, float, str or bool"
        if field.default is dataclasses.MISSING:
            yield f"option {field.name} has no default"
