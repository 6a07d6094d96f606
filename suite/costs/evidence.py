"""What studies say of a method's accuracy, for advice: differences to the uncompressed run of the same optimizer and budget.

A study counts for a method where its arm has the same options; those of the optimizer may differ, since they are tuned.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from reference_impls.registry import registry
from suite.analysis.columns import SUMMARY
from suite.analysis.published import find_table, studies_of
from suite.analysis.tables import number, read_table
from suite.runs.canonical import canonical_json
from suite.runs.resolve import resolve_algorithm
from suite.runs.sweep import Sweep, UnknownSweepError, load_sweep
from suite.timing.cases import NOMINAL_STEPS

NOMINAL_WORKERS: Final = 4
"""Told where options are filled in; no option depends on it."""


@dataclass(frozen=True)
class Study:
    """One cell of a study. configuration: of its arm. difference: mean with its 95 % interval, in the unit.

    equal: yes, no, undecided, not sensitive.
    """

    sweep: str
    arm: str
    configuration: str
    workload: str
    sharding: str
    world_size: int
    pairs: int
    difference: float
    low: float
    high: float
    unit: str
    equal: str

    @property
    def text(self) -> str:
        """In a line."""
        return (
            f"{self.sweep}, {self.arm}: {self.workload}, {self.sharding}, n = {self.world_size}: {self.difference:+.2f} "
            f"[{self.low:+.2f}, {self.high:+.2f}] {self.unit}, {self.pairs} seeds: {self.equal}"
        )


def configuration(algorithm: str, options: Mapping[str, Any]) -> str:
    """A method with its own options filled in, as a text to compare. Raises ValueError for what cannot be."""
    part = resolve_algorithm(algorithm, options, NOMINAL_WORKERS, NOMINAL_STEPS)
    fields = {field.name for field in dataclasses.fields(registry.load(algorithm))}
    return canonical_json(
        {"algorithm": algorithm, **{key: value for key, value in part.options.items() if key in fields}}
    )


@cache
def studies(results_root: Path) -> tuple[Study, ...]:
    """All cells with an interval of the summaries that are there and whose sweep is."""
    found = []
    for name in studies_of(results_root):
        try:
            arms = _configurations(load_sweep(name))
        except UnknownSweepError:
            continue
        for row in read_table(find_table(results_root, SUMMARY, name), SUMMARY):
            arm = str(row["arm"])
            if row["diff_low"] is None or row["control"] or not row["equal"] or arm not in arms:
                continue
            found.append(
                Study(
                    sweep=name,
                    arm=arm,
                    configuration=arms[arm],
                    workload=str(row["workload"]),
                    sharding=str(row["sharding"]),
                    world_size=int(number(row, "world_size")),
                    pairs=int(number(row, "n_pairs")),
                    difference=number(row, "diff_mean"),
                    low=number(row, "diff_low"),
                    high=number(row, "diff_high"),
                    unit=str(row["unit"]),
                    equal=str(row["equal"]),
                )
            )
    return tuple(found)


def _configurations(sweep: Sweep) -> dict[str, str]:
    """Arm -> configuration; arms whose options follow the learning rate have none."""
    return {
        label: configuration(arm.algorithm, arm.options)
        for label, arm in sweep.arms.items()
        if not arm.per_lr
    }


def of_configuration(wanted: str, cells: Iterable[Study]) -> list[Study]:
    """The cells of a configuration."""
    return [cell for cell in cells if cell.configuration == wanted]


def verdict(found: Sequence[Study]) -> str:
    """Of i.i.d. data: equal where a study shows it and none the contrary; not equal where one does; else undecided."""
    words = {study.equal for study in found if study.sharding == "iid"}
    if "no" in words:
        return "not equal"
    if "yes" in words:
        return "equal"
    return "undecided" if words else "no study"
