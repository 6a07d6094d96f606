"""The columns of the tables that a sweep with a budget ladder leaves beside the others, as `columns` has those.

`rungs`, `ladder` and `iso` are the sweep's; `ISO_SECONDS` is that of a timing session joined to it. Sweeps without a ladder
have none of them.
"""

from __future__ import annotations

from typing import Final

from suite.analysis.columns import Column, Table, described

COSTS: Final = ("bytes", "steps")
"""What is saved at equal accuracy, as the table `iso` counts it; seconds belong to a link and stand in a session's table."""

_CELL = (
    *described(
        "text",
        workload="as in runs",
        sharding="as in runs",
    ),
    *described("int", world_size="workers"),
    *described("text", arm="as in runs"),
)
_BUDGET = described("float", budget="multiple of the sweep's steps; all that has a length is rescaled")

RUNGS = Table(
    "rungs",
    (
        *_CELL,
        *_BUDGET,
        *described("int", seed="as in runs"),
        *described("text", run_id="as in runs", sweep="as in runs"),
        *described("int", steps="optimizer steps of this run"),
        *described("text", status="as in runs", reason="as in runs", metric="as in runs"),
        *described("float", value="as in runs", nll="as in runs", wire_bytes_per_step="as in runs"),
        *described("text", commit="as in runs", environment="as in runs"),
        *described("flag", stale="as in runs"),
    ),
    keys=6,
)

LADDER = Table(
    "ladder",
    (
        *_CELL,
        *_BUDGET,
        *described(
            "int",
            steps="optimizer steps",
            n="seeds planned",
            n_done="seeds that finished",
            n_diverged="seeds that diverged",
        ),
        *described("text", metric="as in runs", unit="as in summary"),
        *described(
            "float",
            mean="of the metric over the finished seeds",
            ci_low="95 % t interval; empty below six finished seeds",
            ci_high="its upper end",
        ),
        *described("text", target="arm whose metric at budget 1 is to be reached: the uncompressed run of the same optimizer"),
        *described("int", n_pairs="seeds finished here and by the target at budget 1"),
        *described(
            "float",
            gap_mean="mean of metric minus the target's at budget 1, paired by seed",
            gap_low="95 % t interval of it; empty below six pairs",
            gap_high="its upper end",
            wire_bytes="bytes sent in the whole training, mean over ranks and seeds",
        ),
    ),
    keys=5,
)  # fmt: skip

_ISO = (
    *described("text", target="as in ladder"),
    *described("int", n="seeds finished at every budget and by the target at budget 1"),
)
_SPEEDUP = (
    Column("low", "float", "lower end of its interval; 0: it may never get there"),
    Column("high", "float", "upper end; inf: it may have got there before the first rung"),
)
_CENSORED = described(
    "text",
    censored="never reached, reached before the first rung; empty: the crossing lies on the ladder",
    reason="why there is no number, in a sentence",
)

ISO = Table(
    "iso",
    (
        *_CELL,
        *described("text", cost="what is saved: bytes, steps"),
        *_ISO,
        *described(
            "float",
            ratio="cost of the target at budget 1 over the arm's where it has the target's metric: 0 never reached, inf reached "
            "before the first rung",
        ),
        *_SPEEDUP,
        *_CENSORED,
    ),
    keys=5,
)

ISO_SECONDS = Table(
    "iso-seconds",
    (
        *described("text", link="the link's label: rate, delay", sharding="of the sweep", arm="as in runs"),
        *_ISO,
        *described("int", n_rounds="rounds of the session in which its cases and the reference were undisturbed"),
        *described(
            "float",
            speedup="iso-accuracy speedup: seconds of the reference's steps at budget 1 over the arm's seconds where it has the "
            "target's metric; 0 never reached, inf reached before the first rung",
        ),
        *_SPEEDUP,
        *_CENSORED,
    ),
    keys=3,
)  # fmt: skip

LADDER_TABLES: Final = (RUNGS, LADDER, ISO)
