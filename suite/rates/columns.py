"""The columns of the tables of rates; `docs/rates-formats.md` shows the same to readers and says what a pair is."""

from __future__ import annotations

from typing import Final

from suite.analysis.columns import Table, described

_SIZE: Final = described(
    "int", numel="float32 elements", threads="threads that computed", n="pairs of readings"
)

CODECS: Final = Table(
    "rates-codecs",
    (
        *described(
            "text",
            case="codec and options, as in suite/micro/cases.py",
            operation="encode, decode, or accumulate: what is decoded is added to what is there",
        ),
        *_SIZE,
        *described(
            "float",
            seconds="of a call, median",
            copy_s="of Tensor.copy_ of as many float32 into a ready buffer, median over the same pairs",
            rate="copy's seconds over this operation's: its rate in units of the copy's; median over pairs",
            rate_q1="lower quartile of it",
            rate_q3="upper quartile",
            rate_low="95 % order-statistic interval of the median; empty below six pairs",
            rate_high="its upper end",
            limit="rate if the bytes that must be touched were all that cost: the copy's 12 over `touched`",
            touched="bytes an element that must move between processor and memory: read once, written twice",
            sent="bytes an element on the wire, scales included",
            error="||x - restored|| / ||x|| on the benchmark's vector, one message",
        ),
        *described("text", path="compiled, eager, mixed; torch: no function of it is compiled"),
        *described(
            "int", allocated="bytes allocated in a call, in pieces of 64 KiB or more, once it is warm"
        ),
        *described(
            "float",
            first_s="seconds of the first call in this process, after the cases above it",
            bar="the rate that it must reach; empty: none was set",
        ),
        *described("text", met="yes, no, undecided: see docs/performance.md; empty without a bar"),
    ),
    keys=2,
)

AGAINST: Final = Table(
    "rates-against",
    (
        *described(
            "text",
            case="codec and options, as in suite/micro/cases.py",
            operation="what both do",
            other="what it is compared with",
        ),
        *_SIZE,
        *described(
            "float",
            seconds="of a call of ours, median",
            other_s="of a call of the other's, median",
            ratio="the other's seconds over ours, pair by pair, median",
            ratio_q1="lower quartile of it",
            ratio_q3="upper quartile",
            ratio_low="95 % order-statistic interval of the median; empty below six pairs",
            ratio_high="its upper end",
            bar="the ratio that must be reached; empty: none was set",
        ),
        *described("text", met="as in rates-codecs"),
    ),
    keys=3,
)

COMPILE: Final = Table(
    "rates-compile",
    (
        *described(
            "text",
            cache="cold: a new process with an empty cache on disk; warm: another one with the cache it left",
            case="as in rates-codecs; imports: of torch's compiler; all: the sum of the others",
        ),
        *described(
            "float",
            first_s="seconds of the first call of every operation, less what the second calls took",
            bar="the most it may take; empty: none was set",
        ),
        *described(
            "int",
            sizes="further lengths that were run after the first one",
            recompiled="graphs that were compiled for these further lengths",
        ),
        *described("text", met="yes or no; empty without a bar"),
    ),
    keys=2,
)

SCALING: Final = Table(
    "rates-scaling",
    (
        *described(
            "text",
            against="what grows: elements, bits, workers",
            subject="a case or, against workers, a method",
            operation="encode, decode, accumulate, or step: one step of all simulated workers",
        ),
        *described(
            "int",
            value="elements, bits or workers",
            numel="float32 elements, of one worker",
            threads="threads that computed",
            n="readings",
        ),
        *described(
            "float",
            seconds="median",
            seconds_q1="lower quartile",
            seconds_q3="upper quartile",
            theory="seconds that theory predicts, see docs/performance.md; empty where it says nothing",
        ),
        *described("flag", anchor="theory was drawn through this point"),
    ),
    keys=4,
)

SIMULATION: Final = Table(
    "rates-simulation",
    (
        *described("text", workload="what is trained", method="registry name"),
        *described(
            "int",
            world_size="workers: simulated in one process, or as many processes over gloo",
            seeds="runs that were simulated side by side",
            n="pairs of trainings",
        ),
        *described(
            "float",
            simulated="worker-steps a second of the simulation, median",
            gloo="worker-steps a second of the processes, median",
            ratio="the former over the latter, pair by pair, median",
            ratio_q1="lower quartile of it",
            ratio_q3="upper quartile",
            ratio_low="95 % order-statistic interval of the median; empty below six pairs",
            ratio_high="its upper end",
            bar="the ratio that must be reached",
        ),
        *described("text", met="as in rates-codecs"),
    ),
    keys=4,
)

RATE_TABLES: Final = (CODECS, AGAINST, COMPILE, SCALING, SIMULATION)
