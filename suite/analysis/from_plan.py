"""From a planned sweep to the analysis: who is compared with whom, how workloads are judged, what tuning
tried.

This is the one place where the analysis meets the planner, the registry and the workloads; behind it
everything is plain data (`study`).
"""

from __future__ import annotations

import shlex
from pathlib import Path

from reference_impls import info
from suite.analysis.collect import Collected, collect
from suite.analysis.study import Arm, Entry, Study, Yardstick
from suite.analysis.tables import Row
from suite.runs.plan import Plan, make_plan
from suite.runs.sweep import Rates, Setting, Sweep, Tuned, load_rates, load_sweep
from suite.workloads import get


def _cell(panel: Setting) -> tuple[str, str, int]:
    return panel.workload.label, panel.sharding, panel.world_size


def _tuned(sweep: Sweep, rates: Rates) -> list[Tuned]:
    """The entries that the sweep uses: of arms that it still has and that pin no rate."""
    found = [
        rates.find(panel, arm) for panel in sweep.panels() for arm in sweep.arms_of(panel) if arm.lr is None
    ]
    return [entry for entry in found if entry is not None]


def study_of(plan: Plan) -> Study:
    """The study that a plan stands for. Raises ValueError for unknown names, StudyError for contradictions."""
    sweep = plan.sweep
    edges: dict[str, dict[tuple[str, str, int], bool]] = {}
    for entry in _tuned(sweep, load_rates(sweep.rates_path)):
        cell = (entry.workload, entry.sharding, entry.world_size)
        edges.setdefault(entry.arm, {})[cell] = entry.edge != "none"
    arms = []
    for arm in sweep.arms.values():
        about = info(arm.algorithm)
        baseline = None if arm.baseline == arm.label else arm.baseline
        arms.append(
            Arm(
                name=arm.label,
                algorithm=arm.algorithm,
                family=about.family,
                baseline=baseline,
                control=arm.control,
                source_hash=about.source_hash,
                lr_edges=edges.get(arm.label, {}),
            )
        )
    workloads = {choice.label: get(choice.name, **choice.options) for choice in sweep.workloads}
    return Study(
        name=sweep.name,
        arms=tuple(arms),
        entries=tuple(
            Entry(run.arm.label, run.panel.workload.label, run.spec, run.budget) for run in plan.runs
        ),
        yardsticks={
            label: Yardstick(found.metric, found.unit, found.direction, found.margin, found.no_verdict)
            for label, found in workloads.items()
        },
        ranks=sweep.ranks,
        command=shlex.join(["bandwise", "sweep", sweep.published_as]),
        about=sweep.title,
        called=sweep.called,
    )


def tuning_rows(sweep: Sweep) -> list[Row]:
    """What tuning tried for the arms of the sweep, one row a learning rate; empty where nothing was tuned."""
    return [
        {
            "workload": entry.workload,
            "sharding": entry.sharding,
            "world_size": entry.world_size,
            "arm": entry.arm,
            "lr": trial.lr,
            "status": trial.status,
            "value": trial.value,
            "nll": trial.nll,
            "chosen": trial.lr == entry.lr,
            "edge": trial.lr == entry.lr and entry.edge != "none",
        }
        for entry in _tuned(sweep, load_rates(sweep.rates_path))
        for trial in entry.trials
    ]


def collect_sweep(results_root: Path | str, sweep: Sweep | str) -> Collected:
    """The tables of a sweep, given by its name, its file or as read, from the run folders under the root.

    Raises UnknownSweepError, YamlError, StoreError or StudyError, each with what to do.
    """
    found = load_sweep(sweep) if isinstance(sweep, str) else sweep
    return collect(results_root, study_of(make_plan(found)), tuning_rows(found))
