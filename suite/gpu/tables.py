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


def say(line: str) -> None:
    """Write a line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def arguments(parser: argparse.ArgumentParser, given: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line; a machine without a GPU is refused."""
    found = parser.parse_args(given)
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
    here, others = {tuple(row[key] for key in PLACE) for row in rows}, list[Mapping[str, object]]()
    if table.is_file():
        with table.open(newline="", encoding="utf-8") as file:
            others = [row for row in csv.DictReader(file) if tuple(row[key] for key in PLACE) not in here]
    table.parent.mkdir(parents=True, exist_ok=True)
    unfinished = table.with_suffix(".part")
    with unfinished.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore")
        writer.writeheader()
        writer.writerows([*others, *rows])
    unfinished.replace(table)


def held(table: Path, place: Mapping[str, str]) -> list[dict[str, str]]:
    """Rows of a table that were measured on this device, with these versions (`versions`)."""
    if not table.is_file():
        return []
    with table.open(newline="", encoding="utf-8") as file:
        return [row for row in csv.DictReader(file) if all(row[key] == place[key] for key in PLACE)]
