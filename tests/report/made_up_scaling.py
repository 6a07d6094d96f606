"""Made-up tables of scaling and break-even bandwidths, every number chosen here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from suite.analysis.tables import Row, table_path, write_table
from suite.costs.columns import BREAK_EVEN, BREAK_EVEN_CHECKS, SCALING
from tests.report.conftest import HOSTILE
from tests.report.made_up_speed import MACHINE, facts, link_facts, row, save

PLACE: dict[str, Any] = {"workload": "digits-mlp", "bucket_bytes": 262144, "cores": 2, "world_size": 4}
CURVE: dict[str, Any] = {
    "workload": "digits-mlp", "batch_size": 32, "bucket_bytes": 262144, "link": "100 Mbit/s", "rate_mbit": 100.0,
    "delay_ms": 0.0,
}  # fmt: skip
METHODS = {"lion-cub-1bit": 4.0, "qsgd": 0.6}
"""Method -> times as efficient as uncompressed."""


def even(method: str, below: float, low: float, high: float, wins: str | None, **cells: Any) -> Row:
    """A break-even rate."""
    given = {
        **PLACE, "method": method, "algorithm": method, "parameters": 301066, "compute_s": 0.005, "left_out": "rate",
        "error": 0.05, "stretches": len((wins or "").split()), "wins": wins, "below_mbit": below, "below_low_mbit": low,
        "below_high_mbit": high, "n_decided": 1, "n_agree": 1, "n_undecided": 0, **cells,
    }  # fmt: skip
    return row(BREAK_EVEN, **given)


def check(method: str, session: str, rate: float, speedup: float, predicted: float, verdict: str) -> Row:
    """A measured speedup with a tenth to either side."""
    return row(
        BREAK_EVEN_CHECKS, **PLACE, method=method, session=session, link=f"{rate:g} Mbit/s", rate_mbit=rate, n=6,
        speedup=speedup, speedup_low=0.9 * speedup, speedup_high=1.1 * speedup, predicted=predicted, verdict=verdict,
        foretold=None if verdict == "undecided" else 1.1, foretold_verdict=None if verdict == "undecided" else "agrees",
    )  # fmt: skip


EXAMPLE: dict[str, Any] = {
    "workload": None, "bucket_bytes": None, "cores": None, "world_size": 16, "parameters": 110_000_000,
    "compute_s": 0.18, "left_out": "model", "n_decided": 0, "n_agree": 0,
}  # fmt: skip


def tables() -> tuple[list[Row], list[Row], list[Row]]:
    """Rows of the three tables."""
    evens = [
        even("lion-cub-1bit", 350.0, 300.0, 400.0, "0-350"),
        even("qsgd", 0.0, 0.0, 0.0, None, n_agree=0),
        even("local-sgd", 200.0, 150.0, float("inf"), "0-200 1500-inf"),
        even("lion-cub-1bit", 8000.0, 7000.0, 9000.0, "0-8000", **EXAMPLE),
        even("qsgd", 0.0, 0.0, 0.0, None, **EXAMPLE),
        row(BREAK_EVEN, **(even("top-k", 0.0, 0.0, 0.0, None, **EXAMPLE)
            | dict.fromkeys(("stretches", "below_mbit", "below_low_mbit", "below_high_mbit", "n_decided", "n_agree"))
            | {"refused": HOSTILE})),
    ]  # fmt: skip
    checks = [
        check("lion-cub-1bit", "four", 100.0, 2.0, 1.8, "agrees"),
        check("qsgd", "four", 100.0, 1.5, 0.9, "disagrees"),
        check("local-sgd", "four", 100.0, 1.05, 1.2, "undecided"),
    ]
    return scaling(), evens, checks


def scaling() -> list[Row]:
    """Marks of two and four workers, and three curves."""
    rows = []
    for name, times in {"all-reduce fp32": 1.0, **METHODS}.items():
        given = {**CURVE, "method": name, "algorithm": None if times == 1.0 else name}
        for n, session in ((2, "pair"), (4, "four")):
            value = 0.1 * times / n
            rows.append(row(
                SCALING, **given, scaling="weak", cores=2, world_size=n, source=session, n=6, step_s=0.01 / value,
                step_low=0.009 / value, step_high=0.011 / value, single_s=0.01, n_single=3, efficiency=value,
                efficiency_low=0.9 * value, efficiency_high=1.1 * value,
            ))  # fmt: skip
        for kind, cores in (("weak", 2), ("weak", None), ("strong", None)):
            rows += [
                row(
                    SCALING, **given, scaling=kind, cores=cores, world_size=n, source="predicted", single_s=0.01,
                    step_s=0.1 * n / times, efficiency=0.1 * times / n,
                )
                for n in (1, 2, 4, 8, 64)
            ]  # fmt: skip
    return rows


def save_scaling(root: Path) -> Path:
    """Write the tables, and facts of the sessions and of one that is like none."""
    for table, rows in zip((SCALING, BREAK_EVEN, BREAK_EVEN_CHECKS), tables(), strict=True):
        write_table(table_path(root, table), table, rows)
    for name, n, batch in (("pair", 2, 32), ("four", 4, 32), ("other", 4, 8)):
        link = link_facts("100 Mbit/s")
        link["link"] = {"workers": n, "rate_bps": 1e8, "down_bps": None, "delay_s": 0.0, "stragglers": {}}
        save(
            root,
            facts(name, None, [link], world_size=n, batch_size=batch, bucket_bytes=262144, machine=MACHINE),
        )
    return root
