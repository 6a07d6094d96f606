"""Tables of what was measured on GPUs: device and versions stand in every row, and what is measured again replaces its like."""

from __future__ import annotations

import csv
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import torch

PLACE: Final = ("device", "torch", "triton")
"""Columns that say where a row was measured."""


def say(line: str) -> None:
    """Write a line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


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
