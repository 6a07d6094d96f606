"""The columns of the cost model's tables, and what they mean; those of sweeps and sessions are in `suite.analysis`."""

from __future__ import annotations

from typing import Final

from suite.analysis.columns import Table, described

PREDICTED: Final = "predicted"
"""In a column *source*: the model; else the session that measured."""
ALL: Final = "all"
"""In a column *value*: every value that was left out, together."""

CALIBRATION: Final = Table(
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

PRICES: Final = Table(
    "costs-prices",
    (
        *described("text", what="the fitted number", unit="of the value"),
        *described("float", value="fitted to all of the calibration, and for the overlap to all sessions"),
    ),
    keys=1,
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

BESIDE: Final = Table(
    "costs-naive",
    (
        *described(
            "text",
            left_out="as in costs-score",
            predictor="model; local + bytes: and bytes over 0.91 of the rate, and delays; bytes / rate",
        ),
        *described("int", n="steps predicted by it, over links with a rate"),
        *described(
            "float",
            median_error="of the absolute relative errors: the median",
            within="share of at most 25 %",
            worst_error="the largest",
        ),
        *described("int", n_exposed="steps of which communication that is not hidden is 5 % or more"),
        *described("float", exposed_error="median error over that part alone"),
        *described(
            "int",
            n_near="speedups over the fastest DDP that were measured within 0.67 to 1.5",
            near_right="of them on the side of 1 that was measured",
            n_easy="all other speedups",
            easy_right="of them on the right side",
        ),
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

BREAK_EVEN: Final = Table(
    "costs-break-even",
    (
        *described(
            "text", workload="of the sessions that held the setting; empty: the example, which none did"
        ),
        *described(
            "int",
            bucket_bytes="of gradients; empty: the fastest of several",
            cores="that the workers share; empty: each has a machine of its own",
            world_size="workers",
        ),
        *described("text", method="as advice names it", algorithm="its registry name"),
        *described("int", parameters="of the model"),
        *described("float", compute_s="of a worker's step while the others compute too"),
        *described(
            "int", stretches="ranges of rates over which it is faster than the fastest uncompressed DDP"
        ),
        *described(
            "text",
            wins="those ranges, Mbit/s; 0 and inf: to the end of what was searched, 1 Mbit/s to 10 Tbit/s",
        ),
        *described(
            "float",
            below_mbit="break-even: the end of the range that begins with the slowest link; 0: none does, inf: it does not end",
            below_low_mbit="the same where the speedup has to exceed 1 by the error",
            below_high_mbit="the same where it may fall short of 1 by the error",
        ),
        *described("text", left_out="what the model had not seen when it erred so: a rate, a model"),
        *described("float", error="median absolute relative error of a step then, as in costs-score"),
        *described(
            "int",
            n_decided="measured speedups of this setting whose interval lies on one side of 1",
            n_agree="those of them that are predicted on the same side",
            n_undecided="measured speedups whose interval holds 1",
        ),
        *described(
            "text", against="those that disagree", refused="why the method cannot serve so many workers"
        ),
    ),
    keys=5,
)

BREAK_EVEN_CHECKS: Final = Table(
    "costs-break-even-checks",
    (
        *described("text", workload="as in costs-break-even"),
        *described("int", bucket_bytes="as there", cores="as there", world_size="workers"),
        *described(
            "text", method="as advice names it", session="that measured it", link="its label: rate, delay"
        ),
        *described("float", rate_mbit="of each worker's link; inf: unshaped"),
        *described("int", n="rounds in which it and the reference were undisturbed"),
        *described(
            "float",
            speedup="measured, over the fastest uncompressed DDP, kinds of steps in the shares that advice takes",
            speedup_low="95 % order-statistic interval of it",
            speedup_high="its upper end",
            predicted="the speedup that the break-even was found with, at this rate",
            foretold="predicted with nothing that was measured at this rate, as in costs-predictions; empty: not predicted",
        ),
        *described(
            "text",
            foretold_verdict="that against the interval, as verdict",
            verdict="agrees, disagrees: the interval lies on one side of 1; undecided: it holds 1",
        ),
    ),
    keys=7,
)

SCALING: Final = Table(
    "costs-scaling",
    (
        *described("text", workload="with its options"),
        *described(
            "int",
            batch_size="examples a worker; in strong scaling at the most workers",
            bucket_bytes="of gradients",
        ),
        *described(
            "text",
            link="of each worker: rate, delay",
            scaling="weak: as much for every further worker; strong: as much for all together, predicted alone",
        ),
        *described("int", cores="that the workers share; empty: each has a machine of its own"),
        *described("text", method="as advice names it; all-reduce: torch's DDP"),
        *described("int", world_size="workers"),
        *described("text", source="predicted, or the session that measured it"),
        *described("text", algorithm="its registry name; empty: an uncompressed all-reduce"),
        *described("float", rate_mbit="of each worker's link", delay_ms="one way"),
        *described("int", n="rounds; empty where predicted"),
        *described(
            "float",
            step_s="seconds a step",
            step_low="95 % order-statistic interval of it; empty where predicted",
            step_high="its upper end",
            single_s="seconds of one worker's uncompressed step that sends nothing, with as many to a core",
        ),
        *described("int", n_single="cases and links whose median that is; empty where predicted"),
        *described(
            "float",
            efficiency="single_s over step_s; in strong scaling of a step of all the work over workers times step_s",
            efficiency_low="from step_high and the least of the n_single; empty where predicted",
            efficiency_high="from step_low and the largest of them",
        ),
    ),
    keys=9,
)

EXTERNAL: Final = Table(
    "external",
    (
        *described(
            "text", source="file of results/external", point="its name there", model="what was trained"
        ),
        *described("int", devices="of all nodes", node_size="of them share a link"),
        *described(
            "float", rate_gbit="of a node's link, as measured by the source, else nominal", delay_ms="one way"
        ),
        *described("text", stack="what carries collectives, of the rules", method="of the rules"),
        *described("flag", overlap="whether the rules take communication to go on while a step computes"),
        *described("text", obtained="how the figure was read"),
        *described(
            "flag",
            held_back="by the hash of its name",
            anchor="gives other points their computing seconds; not scored",
        ),
        *described(
            "float",
            published_s="seconds a step",
            model_s="predicted by the cost model with the rules' constants",
            naive_s="local seconds with bytes over 0.91 of the rate and delays",
            bytes_s="bytes out of a node over the rate",
            model_ratio="model_s over published_s",
            naive_ratio="the same of naive_s",
            bytes_ratio="the same of bytes_s",
            computing_s="of a step, where the source lets it be known",
            exposed_s="published_s less that; empty where a small part of the step",
            model_exposed_s="the same of model_s, at least 0",
            naive_exposed_s="the same of naive_s",
            bytes_exposed_s="the same of bytes_s",
            speedup="over the fastest uncompressed point of the same place; empty: none, or it is uncompressed",
            model_speedup="the same of model_s",
            naive_speedup="the same of naive_s",
            bytes_speedup="the same of bytes_s",
            least_s="what must leave a node, over the nominal rate",
        ),
        *described("text", contradiction="of physics, under what is assumed; empty: none"),
    ),
    keys=2,
)

EXTERNAL_SCORE: Final = Table(
    "external-score",
    (
        *described(
            "text",
            rules="SHA-256 of the rules",
            inputs="SHA-256 of the points and of what the model was made of",
            source="file of results/external; all: every one",
        ),
        *described("flag", held_back="of the points held back, or of the others"),
        *described("text", predictor="model, local + bytes, bytes / rate"),
        *described("int", version="of the rules", n="points, anchors left out"),
        *described(
            "float",
            median_error="absolute relative error of a step",
            within="share of the points within the rules' bound",
            worst_error="largest",
        ),
        *described("int", n_exposed="points with exposed communication"),
        *described("float", exposed_error="median absolute relative error of it; empty: no such point"),
        *described(
            "int",
            n_near="published speedups near 1, as the rules have it",
            near_right="of those, predicted on the same side of 1",
            n_easy="other speedups",
            easy_right="of those, predicted on the same side of 1",
            n_contradicting="points that contradict physics",
        ),
    ),
    keys=5,
)
