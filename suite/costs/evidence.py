"""What studies say of a method's accuracy, for advice: differences to the uncompressed run of the same optimizer and budget.

A study counts for a method where its arm has the same options, every one (a period of 8 says nothing of 16); those of the
optimizer may differ, since they are tuned. What a cell says is the rule of `suite.analysis.evidence`.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

from reference_impls.registry import registry
from suite.analysis.columns import SENSITIVITY, SUMMARY
from suite.analysis.evidence import Accuracy, Speed, accuracy, speed
from suite.analysis.published import SESSION, find_table, studies_of
from suite.analysis.session_tables import load_facts
from suite.analysis.speed_columns import ARMS
from suite.analysis.tables import Row, number, read_table
from suite.runs.files import canonical_json
from suite.runs.spec import resolve_algorithm
from suite.runs.sweep import Sweep, UnknownSweepError, load_sweep
from suite.timing.cases import NOMINAL_STEPS
from suite.timing.spec import sessions_of
from suite.workloads import get

NOMINAL_WORKERS: Final = 4
"""Told where options are filled in; no option depends on it."""
LARGER: Final = 10.0
"""A model of more than so many times the parameters is another one: what a study says is not carried over."""
SHARDINGS: Final = {"iid": "i.i.d.", "by-class": "by class"}


@dataclass(frozen=True)
class Study:
    """One cell of a study: a method on a workload, a sharding and a number of workers, and what it says.

    configuration: of its arm, to the last option. parameters: of the model that was trained. speeds: of the same arm, by link.
    """

    sweep: str
    arm: str
    configuration: str
    workload: str
    sharding: str
    world_size: int
    parameters: int
    accuracy: Accuracy
    speeds: Mapping[str, Speed] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """In a line."""
        told = "".join(f"; {link}: {speed.text}" for link, speed in self.speeds.items())
        where = f"{self.workload} ({size(self.parameters)}), {self.sharding}, n = {self.world_size}"
        return f"{self.sweep}, {self.arm}: {where}: {self.accuracy.text}{told}"


def configuration(algorithm: str, options: Mapping[str, Any]) -> str:
    """A method with its own options filled in, as a text to compare. Raises ValueError for what cannot be."""
    part = resolve_algorithm(algorithm, options, NOMINAL_WORKERS, NOMINAL_STEPS)
    fields = {field.name for field in dataclasses.fields(registry.load(algorithm))}
    return canonical_json(
        {"algorithm": algorithm, **{key: value for key, value in part.options.items() if key in fields}}
    )


@cache
def studies(results_root: Path) -> tuple[Study, ...]:
    """All cells of the summaries that are there and whose sweep is, controls and uncompressed runs left out."""
    found = []
    for name in studies_of(results_root):
        try:
            sweep = load_sweep(name)
        except UnknownSweepError:
            continue
        arms, speeds = _configurations(sweep), _speeds(results_root, name)
        chosen = {choice.label: choice for choice in sweep.workloads}
        told = {
            _cell(row): row for row in read_table(find_table(results_root, SENSITIVITY, name), SENSITIVITY)
        }
        for row in read_table(find_table(results_root, SUMMARY, name), SUMMARY):
            arm, (workload, sharding, workers) = str(row["arm"]), _cell(row)
            if row["baseline"] is None or row["control"] or arm not in arms or workload not in chosen:
                continue
            model = get(chosen[workload].name, **chosen[workload].options)
            blind = told[_cell(row)]
            why = "" if blind["sensitive"] else str(blind["reason"])
            judged = accuracy(row, higher=model.direction == "higher", not_sensitive=why)
            timed = speeds.get((arm, sharding, workers), {})
            parameters = sum(value.numel() for value in model.build().parameters())
            found.append(Study(name, arm, arms[arm], workload, sharding, workers, parameters, judged, timed))
    return tuple(found)


def _cell(row: Row) -> tuple[str, str, int]:
    return str(row["workload"]), str(row["sharding"]), int(number(row, "world_size"))


def _speeds(results_root: Path, sweep: str) -> dict[tuple[str, str, int], dict[str, Speed]]:
    """(arm, sharding, workers) -> link -> speed, of the sessions of a sweep."""
    found: dict[tuple[str, str, int], dict[str, Speed]] = {}
    for name in sessions_of(sweep):
        facts = load_facts(results_root, name)
        if facts is None:
            continue
        links = {str(link["label"]): link for link in facts["links"]}
        for arm in read_table(find_table(results_root, ARMS, f"{SESSION}{name}"), ARMS):
            key = str(arm["arm"]), str(arm["sharding"]), int(facts["world_size"])
            found.setdefault(key, {})[str(arm["link"])] = speed(arm, links[str(arm["link"])])
    return found


def _configurations(sweep: Sweep) -> dict[str, str]:
    """Arm -> configuration; arms whose options follow the learning rate have none."""
    return {
        label: configuration(arm.algorithm, arm.options)
        for label, arm in sweep.arms.items()
        if not arm.per_lr
    }


def of_round(configured: str, steps: int) -> str:
    """The configuration that makes rounds of so many steps out of one of another period; empty where no option says so."""
    found = json.loads(configured)
    return canonical_json({**found, "period": steps}) if "period" in found else ""


def of_configuration(wanted: str, cells: Iterable[Study]) -> list[Study]:
    """The cells of a configuration."""
    return [cell for cell in cells if cell.configuration == wanted]


def best_known(found: Sequence[Study]) -> list[Study]:
    """Of each workload, sharding and number of workers the cell with most seeds; of several the first."""
    cells: dict[tuple[str, str, int], Study] = {}
    for study in found:
        own = cells.setdefault((study.workload, study.sharding, study.world_size), study)
        if study.accuracy.pairs > own.accuracy.pairs:
            cells[study.workload, study.sharding, study.world_size] = study
    return list(cells.values())


def shown_worse(found: Sequence[Study]) -> bool:
    """Whether i.i.d. data, in the cells with most seeds, show the method to be worse."""
    return any(one.accuracy.word == "worse by" for one in best_known(found) if one.sharding == "iid")


def verdict(found: Sequence[Study], parameters: float) -> str:
    """What is known of a method's accuracy for a model of that many parameters, in a line.

    Args:
        found: The cells of exactly its configuration.
        parameters: Of the model that is asked about.

    Returns:
        Both shardings of the workload and number of workers with most seeds, each with its own words; for a model of more than
        `LARGER` times the size *not known*, and what was measured at which size.
    """
    cells = best_known(found)
    if not cells:
        return "not known"
    most = max(cells, key=lambda one: (one.accuracy.word != "not known", one.accuracy.pairs))
    same = [one for one in cells if (one.workload, one.world_size) == (most.workload, most.world_size)]
    same.sort(key=lambda one: (one.sharding not in SHARDINGS, one.sharding != "iid", one.sharding))
    said = ", ".join(f"{SHARDINGS.get(one.sharding, one.sharding)} {one.accuracy.short}" for one in same)
    if parameters > LARGER * most.parameters:
        return f"measured on {size(most.parameters)}: {said}; for {size(parameters)}: not known"
    return said


def size(parameters: float) -> str:
    """`0.30 M parameters`, `110 M parameters`, `200 parameters`."""
    if parameters < 1e5:
        return f"{parameters:,.0f} parameters"
    return f"{parameters / 1e6:.{2 if parameters < 1e7 else 0}f} M parameters"
