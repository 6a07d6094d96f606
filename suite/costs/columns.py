"""The columns of the cost model's tables; `docs/file-formats.md` shows the same to readers."""

from __future__ import annotations

from typing import Final

from suite.analysis.columns import Table, described

PREDICTED: Final = "predicted"
"""In a column *source*: the model; else the session that measured."""

COLLECTIVES: Final = Table(
    "collectives",
    (
        *described("text", backend="what carries the collectives: gloo"),
        *described("int", world_size="ranks"),
        *described(
            "float",
            rate_mbit="of each rank's wire, Mbit/s, headers included; empty: unshaped",
            delay_ms="one way, from any rank to any other",
        ),
        *described("text", what="the collective, with its type where it adds"),
        *described(
            "int",
            bytes="of the buffer on each rank",
            n="exchanges that were not disturbed",
        ),
        *described(
            "float",
            seconds="of the slowest rank, from a barrier on, median",
            seconds_low="95 % order-statistic interval of it; empty below six",
            seconds_high="its upper end",
        ),
    ),
    keys=6,
)

PREDICTIONS: Final = Table(
    "costs-predictions",
    (
        *described(
            "text",
            left_out="what the model had not seen: rate, delay, workers, model, method",
            value="which one",
            session="where the step was measured",
            link="the link's label: rate, delay",
            case="what was timed",
            case_id="hash of all that decides what is timed",
        ),
        *described("text", workload="with its options"),
        *described("int", world_size="ranks"),
        *described(
            "float",
            step_s="seconds a step as measured, median over rounds",
            step_low="95 % order-statistic interval of it",
            step_high="its upper end",
            predicted_s="seconds a step as predicted",
            error="predicted over measured, less 1",
        ),
    ),
    keys=6,
)

SCORE: Final = Table(
    "costs-score",
    (
        *described(
            "text",
            left_out="what the model had not seen: rate, delay, workers, model, method",
            value="which one; all: all of them",
        ),
        *described("int", n="steps that were predicted"),
        *described(
            "float",
            median_error="of the absolute relative errors: the median",
            worst_error="the largest",
        ),
        *described("flag", met="at most 10 % and 25 %"),
    ),
    keys=2,
)

ADVISED: Final = Table(
    "costs-advised",
    (
        *described(
            "text",
            session="whose steps advice was asked for, from all other sessions",
            link="the link's label: rate, delay",
            method="as advice names it",
        ),
        *described("int", world_size="workers", parameters="of the model"),
        *described(
            "float",
            advised_s="seconds a step that advice says",
            measured_s="that the session measured, kinds of steps in the shares that advice takes",
            error="advised over measured, less one",
        ),
    ),
    keys=3,
)

SPEEDUPS: Final = Table(
    "costs-speedups",
    (
        *described(
            "text",
            workload="with its options",
            source="predicted, or the session that measured it",
            case="what was timed",
        ),
        *described("int", world_size="ranks"),
        *described(
            "float",
            rate_mbit="of each rank's wire",
            rho="seconds of an fp32 ring over seconds of computing, a step",
            speedup="seconds a step of the fastest uncompressed DDP over this case's",
            speedup_low="95 % order-statistic interval of it; empty where predicted",
            speedup_high="its upper end",
            over_fp32="seconds a step of the fastest fp32 DDP over this case's",
            over_fp32_low="95 % order-statistic interval of it; empty where predicted",
            over_fp32_high="its upper end",
        ),
    ),
    keys=5,
)

BEST: Final = Table(
    "costs-best",
    (
        *described("int", world_size="workers, each with a machine of its own"),
        *described("float", rate_mbit="of each worker's link"),
        *described(
            "text",
            best="the method with the shortest predicted step among those that a study calls equal or undecided",
        ),
        *described("text", algorithm="its registry name; empty: an uncompressed all-reduce"),
        *described(
            "float",
            step_s="its predicted seconds a step",
            speedup="over the faster of fp32 and bf16 all-reduce",
            rho="as in costs-speedups",
        ),
    ),
    keys=2,
)

WARM_UP: Final = Table(
    "costs-warm-up",
    (
        *described(
            "text", algorithm="registry name of the method with a warm-up", source="predicted, or a session"
        ),
        *described(
            "float",
            rate_mbit="of each rank's wire",
            warm_up="share of the steps that are warm-up, T_w",
            speedup="of a whole training over the fastest fp32 DDP",
            cap="1 / T_w: what no compression of the rest can pass, were its warm-up steps as fast as DDP's",
        ),
    ),
    keys=4,
)

PRICES: Final = Table(
    "costs-prices",
    (
        *described("text", what="the fitted number", unit="of the value"),
        *described("float", value="fitted to all of the calibration, and for the overlap to all sessions"),
    ),
    keys=1,
)

OMEGA: Final = Table(
    "costs-omega",
    (
        *described(
            "text", dithering="standard: integers are added; exponential: powers of two, rounded at random"
        ),
        *described("int", n="pairs of readings"),
        *described(
            "float",
            omega="seconds to add a byte of codes over those of a byte of fp32, median over pairs",
            omega_q1="lower quartile of it",
            omega_q3="upper quartile",
            paper="what the paper measured on an A100",
            gamma="bytes of fp32 a second that are added here",
            break_even="bytes a second of a link below which the paper's model says that it pays; empty: on any link",
        ),
    ),
    keys=1,
)

COST_TABLES: Final = (COLLECTIVES, PRICES, PREDICTIONS, SCORE, ADVISED, SPEEDUPS, BEST, WARM_UP, OMEGA)
