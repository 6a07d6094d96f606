"""What the class of a workload has to say of itself, which is asked of those from outside."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

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
