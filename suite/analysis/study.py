"""A study as it was planned: what the analysis has to know of a sweep.

Arms, planned runs, how workloads are judged, what tuning tried. `study_of` is the one place where the analysis meets the planner,
the registry and the workloads. The planner sees to it that baselines are arms that have none, and that an arm has one run a seed
and budget in a cell, all of them at one learning rate.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field

from reference_impls.core.registry import registry
from suite.analysis.net_speedup import Trials
from suite.analysis.tables import Row
from suite.runs.files import canonical_json
from suite.runs.plan import Plan
from suite.runs.spec import RunSpec, judgement, source_hash, workload_hash
from suite.runs.sweep import WHOLE, Rates, Sweep, Tuned, WorkloadChoice, beside, collapsed, load_rates

Cell = tuple[str, str, int]
"""A workload's label, a sharding, a number of workers."""


@dataclass(frozen=True)
class Arm:
    """A label for a method with its options. `baseline` is None for an uncompressed run, which has none.

    `source_hash` is that of the method now; a result with another one is stale. `lr_edges` says for (workload
    label, sharding, world size) whether the tuned rate lies on an edge of its grid. `alternative`: a plain way to use the same
    machines. `apart`: it has a batch, a length or a number of workers of its own.
    """

    name: str
    algorithm: str
    family: str
    baseline: str | None = None
    control: bool = False
    source_hash: str | None = None
    lr_edges: Mapping[tuple[str, str, int], bool] = field(default_factory=dict)
    alternative: bool = False
    apart: bool = False


@dataclass(frozen=True)
class Yardstick:
    """How a workload is judged: metric, the unit and direction ("higher", "lower" is better), the margin of
    "equal", and why there is no such verdict, if there is none. `source_hash`: of a workload from outside, as it is now.
    """

    metric: str
    unit: str
    direction: str
    margin: float
    no_verdict: str = ""
    source_hash: str | None = None


@dataclass(frozen=True)
class Entry:
    """One planned run, the arm it belongs to, the workload's label (its name, with the options it was given), its
    budget, where the sweep is over several, and the workers of its setting, where it does not train with all of them.
    """

    arm: str
    workload: str
    spec: RunSpec
    budget: float = WHOLE
    world_size: int | None = None

    @property
    def cell(self) -> Cell:
        """The setting that it is compared in."""
        return self.workload, self.spec.sharding, self.world_size or self.spec.world_size


@dataclass(frozen=True)
class Study:
    """A sweep as the analysis sees it.

    `yardsticks` are by workload label; `ranks` says that the sweep compares methods by tests, not by
    intervals alone; `command` remakes the study, as tables say it; `called` is how a command here
    names it; `about` is one sentence for the reader. `references`: arms that run at all budgets, net speedups are read on the
    first; `by_rho`: against rho too, with verdicts. `trials`: by workload's label, sharding, world size and arm, the metric by
    tuning seed at every rate, of arms that were tuned by two seeds or more; nan where a run failed.
    """

    name: str
    arms: tuple[Arm, ...]
    entries: tuple[Entry, ...]
    yardsticks: Mapping[str, Yardstick]
    ranks: bool = False
    command: str = ""
    about: str = ""
    called: str = ""
    references: tuple[str, ...] = ()
    trials: Mapping[tuple[str, str, int, str], Trials] = field(default_factory=dict)
    by_rho: bool = False

    def again(self, verb: str, *more: str) -> str:
        """A command on the study as people can give it here."""
        return shlex.join(["bandwise", verb, self.called or self.name, *more])

    @property
    def whole(self) -> list[Entry]:
        """The planned runs of budget 1: all of them where the sweep has no other."""
        return [entry for entry in self.entries if entry.budget == WHOLE]

    @property
    def by_name(self) -> dict[str, Arm]:
        """The arms by name."""
        return {arm.name: arm for arm in self.arms}


def _tuned(sweep: Sweep, rates: Rates) -> list[Tuned]:
    """The entries that the sweep uses: of arms that it still has and that pin no rate."""
    found = [
        rates.find(panel, arm) for panel in sweep.panels() for arm in sweep.arms_of(panel) if arm.lr is None
    ]
    return [entry for entry in found if entry is not None]


def _yardstick(sweep: Sweep, choice: WorkloadChoice) -> Yardstick:
    told = judgement(choice.name, choice.options)
    told["margin"] = sweep.margin or told["margin"]
    return Yardstick(**told, source_hash=workload_hash(choice.name))


def study_of(plan: Plan) -> Study:
    """The study that a plan stands for. Raises ValueError for unknown names."""
    sweep = plan.sweep
    edges: dict[str, dict[tuple[str, str, int], bool]] = {}
    trials: dict[tuple[str, str, int, str], Trials] = {}
    for entry in _tuned(sweep, load_rates(sweep.rates_path)):
        cell = (entry.workload, entry.sharding, entry.world_size)
        edges.setdefault(entry.arm, {})[cell] = entry.edge != "none"
        chosen = next((i for i, trial in enumerate(entry.trials) if entry.is_of(trial)), None)
        if chosen is not None and len(entry.trials[chosen].values) > 1:
            failed = (math.nan,) * len(entry.trials[chosen].values)
            losses = [trial.values or failed for trial in entry.trials]
            rates = sorted({trial.lr for trial in entry.trials}) if entry.vertex else []
            trials[*cell, entry.arm] = Trials(losses, chosen, rates, cliff=_on_a_cliff(sweep, entry))
    arms = []
    for arm in sweep.arms.values():
        baseline = None if arm.baseline == arm.label else arm.baseline
        arms.append(
            Arm(
                name=arm.label,
                algorithm=arm.algorithm,
                family=registry.entry(arm.algorithm).family,
                baseline=baseline,
                control=arm.control,
                source_hash=source_hash(arm.algorithm),
                lr_edges=edges.get(arm.label, {}),
                alternative=arm.is_alternative,
                apart=arm.apart,
            )
        )
    return Study(
        name=sweep.name,
        arms=tuple(arms),
        entries=tuple(
            Entry(run.arm.label, run.panel.workload.label, run.spec, run.budget, run.panel.world_size)
            for run in plan.runs
        ),
        yardsticks={choice.label: _yardstick(sweep, choice) for choice in sweep.workloads},
        ranks=sweep.ranks,
        command=shlex.join(["bandwise", "sweep", sweep.published_as]),
        about=sweep.title,
        called=sweep.called,
        references=sweep.references,
        by_rho=bool(sweep.gates and sweep.references),
        trials=trials,
    )


def _on_a_cliff(sweep: Sweep, entry: Tuned) -> bool:
    """Whether a vertex was scored although a rate beside the best had collapsed, as the rule once was."""
    if entry.vertex is None:
        return False
    (choice,) = (one for one in sweep.workloads if one.label == entry.workload)
    values = [trial.value for trial in beside(entry.trials, entry) if trial.value is not None]
    return collapsed(values, _yardstick(sweep, choice).margin)


def tuning_rows(sweep: Sweep) -> list[Row]:
    """What tuning tried for the arms of the sweep, one row a learning rate; empty where nothing was tuned."""
    return [
        {
            "workload": entry.workload,
            "sharding": entry.sharding,
            "world_size": entry.world_size,
            "arm": entry.arm,
            "lr": trial.lr,
            "options": canonical_json(trial.options) if trial.options else None,
            "status": trial.status,
            "value": trial.value,
            "nll": trial.nll,
            "chosen": entry.is_of(trial),
            "edge": entry.is_of(trial) and entry.edge != "none",
            "vertex": entry.vertex if entry.is_of(trial) else None,
        }
        for entry in _tuned(sweep, load_rates(sweep.rates_path))
        for trial in entry.trials
    ]
