"""What a row of the table says of a configured method."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class Row:
    """One configured method and what is claimed of it.

    exact: simulated and gloo runs agree to the bit (every floating-point sum is replaced by integers, votes,
    gathers or exchanges); otherwise all but a share `flips` of the elements agree to `close` (a sign may flip where
    floating-point sums in another order end on the other side of zero). largest: world size up to which the options
    work. replicas: when parameters are equal on all ranks (after every step, after steps of kind `average`, at the end of
    `STEPS` alone, never).
    plain: local optimizer (name, hyper-parameters) that n = 1 must equal to the bit, None where one worker is not a
    plain optimizer. deaf: why one value that is not finite, on one rank, need not make all ranks' parameters not finite
    when they next agree; empty where it does.
    """

    id: str
    algorithm: str
    options: dict[str, Any] = field(default_factory=dict)
    exact: bool = False
    close: float = 1e-5
    flips: float = 0.0
    largest: int = 8
    replicas: Literal["step", "average", "end", "never"] = "step"
    plain: tuple[str, dict[str, Any]] | None = None
    deaf: str = ""


STEPS = 14  # every row's options are chosen so that each of its kinds of step occurs within these
SGD = ("sgd", {"momentum": 0.9})
