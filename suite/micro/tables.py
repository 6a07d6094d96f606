"""The tables of throughput: their columns, the bars that speed must reach, and the facts of what a table was measured on.

`docs/rates-formats.md` shows the columns to readers and says what a pair is. Rates of a codec are over a memory copy (2
threads, 25 million elements, buffers owned by the caller). The facts are a small JSON file beside a table, with nothing of the
machine's name or paths.
"""

from __future__ import annotations

import datetime
import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from reference_impls.compilation import failures
from suite.analysis.columns import Table, described
from suite.analysis.published import source
from suite.analysis.tables import Row, table_path, write_table
from suite.runs.files import dump, write_atomic
from suite.runs.provenance import provenance
from suite.timing.load import Load, Meter, allocator

_SIZE: Final = described(
    "int", numel="float32 elements", threads="threads that computed", n="pairs of readings"
)

CODECS: Final = Table(
    "rates-codecs",
    (
        *described(
            "text",
            case="codec and options, as in suite/micro/benchmarks/cases.py",
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
            case="codec and options, as in suite/micro/benchmarks/cases.py",
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

THROUGHPUT_TABLES: Final = (CODECS, AGAINST, COMPILE, SCALING, SIMULATION)


# Bars: what speed must reach, with the source of each number in one place


_GIVEN, _FOUND, _ADDED, _OTHERS = 0.6, 0.4, 1.0, 0.4

CODEC_BARS: Final[Mapping[tuple[str, str], float]] = MappingProxyType(
    {
        ("signs", "encode"): 1.4,
        ("signs", "accumulate"): 1.0,
        ("standard-dithering-4bit", "encode"): _GIVEN,
        ("standard-dithering-8bit", "encode"): _GIVEN,
        ("standard-dithering-4bit-global", "encode"): _FOUND,
        ("standard-dithering-8bit-global", "encode"): _FOUND,
        ("equal-levels-4bit-given", "encode"): _GIVEN,
        ("equal-levels-8bit-given", "encode"): _GIVEN,
        ("equal-levels-4bit-global", "encode"): _FOUND,
        ("equal-levels-8bit-global", "encode"): _FOUND,
        ("equal-levels-4bit-global", "accumulate"): _ADDED,
        ("equal-levels-8bit-global", "accumulate"): _ADDED,
        ("equal-levels-4bit", "encode"): _FOUND,
        ("equal-levels-4bit-linf", "encode"): _FOUND,
        ("equal-levels-8bit", "encode"): _FOUND,
        ("equal-levels-4bit", "accumulate"): _ADDED,
        ("equal-levels-8bit", "accumulate"): _ADDED,
        **{
            (case, operation): _OTHERS
            for case in (
                "exponential-dithering",
                "natural-9bit",
                "ternary-2bit",
                "ternary-trits",
                "bf16",
                "min-max-4bit",
            )
            for operation in ("encode", "decode")
        },
    }
)
"""(case, operation) -> least rate over a copy."""

AGAINST_BARS: Final[Mapping[tuple[str, str], float]] = MappingProxyType(
    {
        ("top-k-1pct", "torch.topk of abs"): 5.0,
        ("count-sketch", "plain torch"): 3.0,
        ("low-rank-4", "torch's powerSGD_hook"): 1.0,
    }
)
"""(case, what it is compared with) -> least ratio of the other's seconds over ours."""

WARM_S: Final = 5.0
"""Seconds that the first calls of all codecs may take where the cache on disk is warm."""

COLD_S: Final = 90.0
"""The same with an empty cache."""


# On what a table was measured


_COMPILERS: Final = ("g++", "clang++", "c++")


class Watch:
    """From its making on: how long it takes, and who else uses the machine."""

    def __init__(self) -> None:
        self._meter = Meter(cpu=family_seconds)
        self._meter.find()
        self._before = self._meter.snapshot()
        self._started = time.monotonic()

    def facts(self, threads: int) -> dict[str, Any]:
        """The facts so far: time, load by others, compiler, allocator, provenance. threads: that the measurement used."""
        self._meter.find()  # compilers have been started since
        load: Load = self._meter.since(self._before)
        return {
            "ended": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "took_s": round(time.monotonic() - self._started, 1),
            "threads": threads,
            "compiler": compiler(),
            "not_compiled": failures(),
            "allocator": allocator(dict(os.environ)),
            "foreign_share": round(load.foreign_share, 4),
            "steal_share": round(load.steal_share, 4),
            "load_average": load.load_average,
            "gpu": "not measured",
            "provenance": provenance(),
        }


def family_seconds(pid: int) -> float:
    """CPU seconds of a process and of its children that have ended. Raises OSError once it is gone."""
    text = Path("/proc", str(pid), "stat").read_text(encoding="utf-8")
    own_and_children = [int(number) for number in text.rpartition(")")[2].split()[11:15]]
    return sum(own_and_children) / os.sysconf("SC_CLK_TCK")


def compiler() -> str | None:
    """First line of the C++ compiler's own word on its version; None where there is none."""
    chosen = os.environ.get("CXX")
    name = next((name for name in ([chosen] if chosen else _COMPILERS) if shutil.which(name)), None)
    if name is None:
        return None
    version = subprocess.run([name, "--version"], capture_output=True, text=True, check=False).stdout
    return re.sub(r"^\S*/", "", version.splitlines()[0]) if version else Path(name).name


def facts_path(results_root: Path, table: Table) -> Path:
    """Where the facts of a table lie: tables/<suffix>-facts.json."""
    path = table_path(results_root, table)
    return path.with_name(f"{path.stem}-facts.json")


def read_facts(results_root: Path, table: Table) -> dict[str, Any] | None:
    """The facts of a table, None where it has not been measured."""
    try:
        path = facts_path(source(results_root, table.suffix).root, table)
        facts: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return facts


def write_with_facts(results_root: Path, table: Table, rows: list[Row], facts: dict[str, Any]) -> Path:
    """Write a table and its facts.

    Args:
        results_root: The results root.
        table: The table.
        rows: Its rows.
        facts: On what it was measured (`Watch.facts`).

    Returns:
        Path of the table.
    """
    path = write_table(table_path(results_root, table), table, rows)
    write_atomic(facts_path(results_root, table), dump(facts, indent=1) + "\n")
    return path
