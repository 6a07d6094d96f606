"""Rates of all codecs on one vector, in one process, in turns with the memory copy: the rows of `rates-codecs`."""

from __future__ import annotations

import fnmatch
import time
from collections.abc import Callable, Sequence
from typing import Final

import torch

from reference_impls import compilation
from suite.analysis.tables import Row
from suite.micro.cases import CODECS, VERBS, Case, build
from suite.micro.memory import large_bytes
from suite.rates import bars
from suite.rates.pairs import ENOUGH, in_turns, verdict

__all__ = ["NUMEL", "THREADS", "RatesError", "chosen", "codec_rows", "operations", "path", "relative_error"]

FEWEST: Final = 6
"""Pairs of what has no bar; with no time to spend, of anything."""

NUMEL: Final = 25_000_000
THREADS: Final = 2
BUDGET_S: Final = 0.6
"""Seconds for the pairs of one operation, unless as many as are needed take longer."""


class RatesError(ValueError):
    """What was asked for cannot be measured; the message says why."""


def chosen(only: str | None) -> list[str]:
    """Cases whose name matches a glob, the control left out. Raises RatesError where none does."""
    found = [name for name in CODECS if name != "copy" and fnmatch.fnmatchcase(name, only or "*")]
    if not found:
        raise RatesError(f"no case matches {only!r}; there are {', '.join(CODECS[1:])}")
    return found


def operations(case: Case) -> list[tuple[str, Callable[[], None]]]:
    """What a case can do, in the order in which it has to be done first."""
    return [(verb, getattr(case, verb)) for verb in VERBS if verb in case.verbs]


def path() -> str:
    """How the compiled functions ran since `compilation.reset_paths`, in one word."""
    ran = {way for calls in compilation.paths().values() for way in calls}
    return "torch" if not ran else ran.pop() if len(ran) == 1 else "mixed"


def relative_error(x: torch.Tensor, restored: torch.Tensor) -> float:
    """||x - restored|| / ||x||; piece by piece, since in float64 all of it would need a lot of memory."""
    lost = total = 0.0
    for a, b in zip(torch.split(x, 1 << 20), torch.split(restored, 1 << 20), strict=True):
        lost += float((a.double() - b.double()).square().sum())
        total += float(a.double().square().sum())
    return float((lost / total) ** 0.5)


def codec_rows(
    numel: int = NUMEL,
    threads: int = THREADS,
    only: str | None = None,
    show: Callable[[str], None] = lambda line: None,
    budget_s: float | None = None,
) -> list[Row]:
    """Measure. One case is in memory at a time, beside the control."""
    copy = build("copy", numel, threads)
    rows: list[Row] = []
    for name in chosen(only):
        show(name)
        rows += _case_rows(
            name, build(name, numel, threads), copy, threads, BUDGET_S if budget_s is None else budget_s
        )
    return rows


def _case_rows(name: str, case: Case, copy: Case, threads: int, budget_s: float) -> list[Row]:
    numel = case.x.numel()
    doing = operations(case)
    first = {operation: _first_call(run) for operation, run in doing}
    error = relative_error(case.x, case.restore())
    rows: list[Row] = []
    for operation, run in doing:
        compilation.reset_paths()
        run()
        way = path()
        allocated = large_bytes(run)
        bar = bars.CODECS.get((name, operation))
        least = ENOUGH if bar is not None and budget_s else FEWEST
        pairs = in_turns(copy.encode, run, budget_s=budget_s, least=least)
        touched = case.touched(operation)
        cells = pairs.ratio_cells("rate")
        rows.append(
            {
                "case": name, "operation": operation, "numel": numel, "threads": threads, "n": pairs.n,
                "seconds": pairs.seconds(), "copy_s": pairs.control_seconds(), **cells,
                "limit": copy.touched("encode") / touched, "touched": touched, "sent": case.sent_bytes() / numel,
                "error": error, "path": way, "allocated": allocated, "first_s": first[operation],
                "bar": bar, "met": verdict(cells, "rate", pairs.n, bar),
            }
        )  # fmt: skip
    return rows


def _first_call(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def names(rows: Sequence[Row]) -> list[str]:
    """The cases of rows, in the order of the table of cases."""
    there = {row["case"] for row in rows}
    return [name for name in CODECS if name in there]
