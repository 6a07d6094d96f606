"""The bridge to asv: the measurements that `asv run` left, as rows of the micro table.

Read through asv's own `Results` and `Benchmarks`, never by parsing its files here; a test pins the version of
asv's file format. A benchmark that failed or was skipped is a row with that status and no value. Without
results the table has no rows. asv's environment names can hold paths of the machine, so only their hash is
kept.
"""

from __future__ import annotations

import datetime
import hashlib
import itertools
import math
from pathlib import Path
from typing import Any

from suite.analysis.columns import MICRO
from suite.analysis.tables import Row, table_path, write_table

COMMIT_DIGITS = 8
ENVIRONMENT_DIGITS = 8


class MicroError(RuntimeError):
    """asv's results are there but cannot be read; the message says which file and what to do."""


def asv_results_folder(results_root: Path | str) -> Path:
    """Where asv writes its results: <root>/asv."""
    return Path(results_root) / "asv"


def _units(folder: Path) -> dict[str, str]:
    from asv.benchmarks import Benchmarks
    from asv.config import Config

    if not Path(Benchmarks.get_benchmark_file_path(str(folder))).is_file():
        return {}
    config = Config()
    config.results_dir = str(folder)
    return {name: str(benchmark.get("unit") or "") for name, benchmark in Benchmarks.load(config).items()}


def _status(value: float | None) -> str:
    """asv stores a failure as null and a skip as nan."""
    if value is None:
        return "failed"
    return "skipped" if math.isnan(value) else "done"


def _rows(result: Any, machine: str, name: str, unit: str) -> list[Row]:
    parameters = result.get_result_params(name) or []
    combinations = [", ".join(combination) for combination in itertools.product(*parameters)]
    values = result.get_result_value(name, parameters) or [None] * len(combinations)
    statistics = result.get_result_stats(name, parameters) or [None] * len(combinations)
    moment = datetime.datetime.fromtimestamp(result.date / 1000, datetime.UTC)
    rows: list[Row] = []
    for params, value, stats in zip(combinations, values, statistics, strict=True):
        status = _status(value)
        low, high = (stats or {}).get("ci_99_a"), (stats or {}).get("ci_99_b")
        rows.append(
            {
                "benchmark": name,
                "params": params or None,
                "commit": result.commit_hash[:COMMIT_DIGITS],
                "committed": f"{moment:%Y-%m-%dT%H:%M:%SZ}",
                "machine": machine,
                "environment": hashlib.sha256(result.env_name.encode()).hexdigest()[:ENVIRONMENT_DIGITS],
                "status": status,
                "value": float(value) if status == "done" else None,
                "ci_low": low if status == "done" and low is not None and math.isfinite(low) else None,
                "ci_high": high if status == "done" and high is not None and math.isfinite(high) else None,
                "unit": unit or None,
            }
        )
    return rows


def update_micro(results_root: Path) -> None:
    """Bring the table of what asv measured here up to date; there is none where it measured nothing. Raises MicroError."""
    if rows := micro_rows(results_root):
        write_table(table_path(results_root, MICRO), MICRO, rows)


def micro_rows(results_root: Path | str) -> list[Row]:
    """Every measurement of every commit and machine under <root>/asv; empty when asv never ran there.

    Raises MicroError for a result file that asv itself cannot read.
    """
    from asv.results import Results, iter_results_paths
    from asv.util import UserError

    folder = asv_results_folder(results_root)
    if not folder.is_dir():
        return []
    rows: list[Row] = []
    try:
        units = _units(folder)
        for place, name, machine in sorted(iter_results_paths(str(folder))):
            result = Results.load(str(Path(place) / name), machine_name=machine)
            for benchmark in sorted(result.get_all_result_keys()):
                rows += _rows(result, machine, benchmark, units.get(benchmark, ""))
    except UserError as error:
        raise MicroError(
            f"asv's results under {folder} cannot be read: {error}; remove the file or run `asv update`"
        ) from None
    return rows
