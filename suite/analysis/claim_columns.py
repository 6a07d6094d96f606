"""The columns of the tables of claims that no sweep makes: errors of a mean against the bits that it takes."""

from __future__ import annotations

from typing import Final

from suite.analysis.columns import Table, described

_CELL: Final = (
    *described(
        "text",
        workload="whose training the gradients come from",
        stage="start, middle or end of that training",
    ),
    *described("int", world_size="workers whose gradients are averaged"),
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

AGREEMENT: Final = Table(
    "agreement",
    (
        *described("text", sharding="iid or by-class"),
        *described("int", world_size="workers"),
        *described(
            "text",
            stage="early, middle or late: a third of the steps each",
            arm="the label of method and options",
        ),
        *described("int", n="seeds"),
        *described(
            "float",
            agreement="share of coordinates that move by the sign of the mean update, mean over steps and seeds",
            agreement_low="95 % t interval of it",
            agreement_high="its upper end",
        ),
    ),
    keys=4,
)

CLAIM_TABLES: Final = (RATE_DISTORTION, EQUAL_LEVELS, AGREEMENT)
