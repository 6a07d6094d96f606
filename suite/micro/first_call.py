"""What newcomers wait for: the first call of every codec, with an empty cache of the compiler on disk, and with a full one.

Each is a process of its own, since a process compiles once: `python -m suite.micro.first_call` runs all cases at one
length, then at others, and prints JSON. No graph may be compiled for these: lengths are data.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from reference_impls import programs
from suite.analysis.tables import Row
from suite.micro import tables

__all__ = ["FIRST", "OTHERS", "compile_rows", "in_this_process"]

FIRST: Final = 524_288
OTHERS: Final = (330_001, 399_968, 524_287, 1_000_001, 1_048_576)
"""Further lengths: odd ones, multiples of what is packed together, powers of two; a fifth of each is enough to compile for."""

_CHECKOUT: Final = Path(__file__).resolve().parents[2]
_TIMEOUT_S: Final = 900.0


class FirstCallError(RuntimeError):
    """The process that was to compile did not end well."""


def compile_rows(threads: int, show: Callable[[str], None] = lambda line: None) -> list[Row]:
    """Rows of `rates-compile`: a process with an empty cache, then one with what that left."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="bandwise-compiler-") as folder:
        for cache, bar in (("cold", tables.COLD_S), ("warm", tables.WARM_S)):
            show(f"first calls, {cache} cache")
            rows += _rows(cache, bar, _another_process(folder, threads))
    return rows


def _another_process(folder: str, threads: int) -> dict[str, dict[str, Any]]:
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": folder}
    done = subprocess.run(
        [sys.executable, "-m", "suite.micro.first_call", str(threads)],
        cwd=_CHECKOUT, env=environment, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        raise FirstCallError(
            f"the process of first calls failed: {(done.stderr.strip() or 'no word').splitlines()[-1]}"
        )
    cases: dict[str, dict[str, Any]] = json.loads(done.stdout)
    return cases


def _rows(cache: str, bar: float, cases: dict[str, dict[str, Any]]) -> list[Row]:
    rows: list[Row] = [
        {"cache": cache, "case": case, "first_s": cells["first_s"], "bar": None, "sizes": cells["sizes"],
         "recompiled": cells["recompiled"], "met": None}
        for case, cells in cases.items()
    ]  # fmt: skip
    total = sum(cells["first_s"] for cells in cases.values())
    again = sum(cells["recompiled"] for cells in cases.values())
    sizes = max(cells["sizes"] for cells in cases.values())
    met = "yes" if total <= bar and not again else "no"
    whole = {"first_s": total, "bar": bar, "sizes": sizes, "recompiled": again, "met": met}
    return [*rows, {"cache": cache, "case": "all", **whole}]


def in_this_process(threads: int) -> dict[str, dict[str, Any]]:
    """Seconds of first calls by case, and how often other lengths were compiled for."""
    import torch

    start = time.perf_counter()
    from suite.micro.benchmarks.cases import CODECS, build, gradient  # imports the compiler

    cases = {"imports": {"first_s": time.perf_counter() - start, "sizes": 0, "recompiled": 0}}
    from suite.micro.throughput import operations

    torch.set_num_threads(threads)
    for name in CODECS[1:]:
        gradient(FIRST)
        start = time.perf_counter()
        doing = operations(build(name, FIRST, threads))
        for _, run in doing:
            run()
        first = time.perf_counter() - start
        start = time.perf_counter()
        for _, run in doing:
            run()
        again = time.perf_counter() - start
        before = graphs()
        for numel in OTHERS:
            for _, run in operations(build(name, numel, threads)):
                run()
        cases[name] = {
            "first_s": max(first - again, 0.0),
            "sizes": len(OTHERS),
            "recompiled": graphs() - before,
        }
    return cases


def graphs() -> int:
    """Graphs that this process compiled so far, or loaded: a second one of a kind of arguments is for other lengths."""
    return sum(kept.count for kept in gc.get_objects() if type(kept) is programs.Programs)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(in_this_process(int(sys.argv[1]))))
