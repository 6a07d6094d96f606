"""Tables of what was measured on GPUs: device and versions stand in every row, and what is measured again replaces its like."""

from __future__ import annotations

import argparse
import csv
import datetime
import statistics
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import torch

PLACE: Final = ("device", "torch", "triton")
"""Columns that say where a row was measured."""
GO_ON: Final = 75
"""Exit code of a job that has measured something, and not all."""


def say(line: str) -> None:
    """Write a line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def place_of(name: str, about: str, given: Sequence[str] | None = None) -> Path:
    """Where a job's table lies: in results/gpu unless its command line says otherwise. A machine without a GPU is refused."""
    parser = argparse.ArgumentParser(prog=name, description=about)
    parser.add_argument("--table", type=Path, default=Path(f"results/gpu/{name}.csv"))
    found: Path = parser.parse_args(given).table
    if not torch.cuda.is_available():
        parser.error("there is no GPU here that torch sees")
    return found


def today() -> str:
    """The date, UTC."""
    return datetime.datetime.now(datetime.UTC).date().isoformat()


def wait(device: torch.device) -> None:
    """Return when a GPU has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds(steps: Iterable[object], device: torch.device) -> float:
    """Of one of these steps, which are taken by going over them: the mean of all."""
    wait(device)
    start = time.perf_counter()
    count = sum(1 for _ in steps)
    wait(device)
    return (time.perf_counter() - start) / count


def quartiles(name: str, stem: str, values: Sequence[float], digits: int = 6) -> dict[str, str]:
    """Cells of a median, and of the quartiles around it; nothing of fewer than two values."""
    if len(values) < 2:
        return {}
    low, middle, high = (f"{value:.{digits}g}" for value in statistics.quantiles(values, n=4))
    return {name: middle, f"{stem}_q1": low, f"{stem}_q3": high}


def met(holds: bool | None) -> str:
    """The cell that says whether a bar is met; empty where there is none."""
    return "" if holds is None else "yes" if holds else "no"


def versions() -> dict[str, str]:
    """This GPU, torch and Triton, by `PLACE`."""
    try:
        import triton
    except ImportError:
        found = ""
    else:
        found = triton.__version__
    return {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "triton": found}


def write(table: Path, rows: Sequence[Mapping[str, object]], columns: Sequence[str]) -> None:
    """Put the rows in the place of those that the table has of their device and versions of torch and Triton, at once.

    Args:
        table: A CSV file; its rows of other devices and versions stay.
        rows: What was measured here.
        columns: Of the table.
    """
    here = {tuple(row[key] for key in PLACE) for row in rows}
    others = [row for row in _rows(table) if tuple(row[key] for key in PLACE) not in here]
    table.parent.mkdir(parents=True, exist_ok=True)
    unfinished = table.with_suffix(".part")
    with unfinished.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore")
        writer.writeheader()
        writer.writerows([*others, *rows])
    unfinished.replace(table)


def held(table: Path, place: Mapping[str, str]) -> list[dict[str, str]]:
    """Rows of a table that were measured on this device, with these versions (`versions`)."""
    return [row for row in _rows(table) if all(row[key] == place[key] for key in PLACE)]


def _rows(table: Path) -> list[dict[str, str]]:
    if not table.is_file():
        return []
    with table.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def code_of(whole: bool) -> int:
    """Say whether all is measured; the exit code that says it too."""
    say("all is measured" if whole else "not all is measured: run this again")
    return 0 if whole else GO_ON
