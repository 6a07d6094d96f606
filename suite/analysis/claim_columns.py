"""The columns of the tables of claims that no sweep makes: what one exchange costs in bits and loses in precision."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from suite.analysis.columns import Table, described
from suite.analysis.statistics import mean_interval
from suite.analysis.tables import Row

_CELL: Final = (
    *described(
        "text",
        workload="whose training the gradients come from",
        stage="start, middle or end of that training",
    ),
    *described("int", world_size="workers"),
)
_SEEDS: Final = described("int", n="seeds: trainings whose gradients were taken")

RATE_DISTORTION: Final = Table(
    "rate-distortion",
    (
        *_CELL,
        *described("text", quantiser="label of a method with options", algorithm="registry name"),
        *described("flag", unbiased="the expectation of the mean is the mean"),
        *described("float", wire_bits="bits that a rank sends for each coordinate, mean over ranks"),
        *_SEEDS,
        *described(
            "float",
            error="squared error of the mean over the squared norm of the mean; mean over seeds",
            error_low="95 % t interval of it",
            error_high="its upper end",
            theta="n times the squared error over the sum of the workers' squared norms; mean over seeds",
            theta_low="95 % t interval of it",
            theta_high="its upper end",
        ),
    ),
    keys=4,
)

EQUAL_LEVELS: Final = Table(
    "equal-levels",
    (
        *_CELL,
        *described("int", levels="s, of both codes"),
        *_SEEDS,
        *described(
            "float",
            nonzeros="non-zero codes of QSGD over those of Global-QSGD, a worker; mean over seeds",
            nonzeros_low="95 % t interval of it",
            nonzeros_high="its upper end",
            error="squared error of Global-QSGD's mean over QSGD's; mean over seeds",
            error_low="95 % t interval of it",
            error_high="its upper end",
        ),
    ),
    keys=4,
)

SIGN_AGREEMENT: Final = Table(
    "sign-agreement",
    (
        *_CELL[:1],
        *described("text", sharding="iid or by-class"),
        *_CELL[1:],
        *described("text", code="label of a method with options", algorithm="registry name"),
        *described("float", wire_bits="bits that a rank sends for each coordinate"),
        *_SEEDS,
        *described(
            "float",
            agreement="share of coordinates that move by the sign of the mean update, of those where it has one; mean over seeds",
            agreement_low="95 % t interval of it",
            agreement_high="its upper end",
            opposite="share of the same coordinates that move the other way; the rest does not move; mean over seeds",
            opposite_low="95 % t interval of it",
            opposite_high="its upper end",
        ),
    ),
    keys=5,
)

CLAIM_TABLES: Final = (RATE_DISTORTION, EQUAL_LEVELS, SIGN_AGREEMENT)


def interval_cells(name: str, values: Sequence[float]) -> Row:
    """The three cells of a mean over seeds: `name`, and the ends of its interval."""
    found = mean_interval(values)
    return {name: found.estimate, f"{name}_low": found.low, f"{name}_high": found.high}
