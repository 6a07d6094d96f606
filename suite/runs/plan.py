"""A sweep worked out: every run with its spec, whether it is done, what it needs, whether its ranks can be reached; and which
runs are trained together, and how long they will take.

All that is wrong with a sweep is found here; errors carry file, line and key. A study that calls itself a headline is refused
where half the interval of a difference will be more than half the margin of its workload. Runs of a kind are grouped within
memory. Seconds on one core are those of finished runs of the same kind, else a guess by what one step and one evaluation take,
which is measured once on a machine. Needs no torch but to measure them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final

from reference_impls.core.errors import UnknownAlgorithmError
from suite.runs.files import canonical_json, disk_cached
from suite.runs.spec import (
    Part,
    Rate,
    RunSpec,
    is_older,
    is_ours,
    resolve_algorithm,
    resolve_workload,
    source_hash,
    task_of,
    warning_of,
    workload_hash,
)
from suite.runs.store import SETTLED, Status, Store, counts
from suite.runs.sweep import WHOLE, Arm, Rates, Setting, Sweep, load_rates

if TYPE_CHECKING:
    from suite.workloads import Workload

ALPHA: Final = 0.05
MINIMUM_FOR_INTERVAL: Final = 6
"""Fewest values (seeds, rounds, pairs) from which any interval of the suite is computed; why: `suite.analysis.statistics`."""
MAXIMUM_EXACT: Final = 24
"""Most pairs whose sign flips are enumerated (2**23 sums, 64 MiB)."""
RUN_FOLDER_BYTES: Final = 20_480
"""Disk a run's folder takes, in blocks: four small files."""


class PlanError(ValueError):
    """A sweep that can be read but not carried out as it is; the message says what to change."""


@dataclass(frozen=True)
class PlannedRun:
    """One run of a sweep and where it belongs; `budget` is one of the sweep's budgets."""

    panel: Setting
    arm: Arm
    spec: RunSpec
    budget: float = WHOLE


@dataclass(frozen=True)
class Plan:
    """All runs of a sweep, budget by budget within a panel, seed by seed, arms as in the file.

    lacking: workloads whose files are not at hand, with what is missing; their runs have no digest, and no run is like them.
    """

    sweep: Sweep
    runs: tuple[PlannedRun, ...]
    lacking: tuple[str, ...] = ()

    @property
    def whole(self) -> list[PlannedRun]:
        """The runs of budget 1: all of them where the sweep has one budget."""
        return [run for run in self.runs if run.budget == WHOLE]

    @property
    def specs(self) -> list[RunSpec]:
        """The distinct specs in order."""
        return list(dict.fromkeys(run.spec for run in self.runs))


def make_plan(sweep: Sweep, only: str | None = None, *, without_data: bool = False) -> Plan:
    """Work a sweep out.

    Args:
        sweep: As it was read.
        only: Glob that arm labels must match.
        without_data: Plan also where files of the user's are not at hand, and say so in `lacking`.

    Returns:
        All runs.

    Raises:
        PlanError: No arm matches, or ranks are wanted that no data could reach.
        YamlError: A line of the sweep is to blame.
        suite.workloads.DataError: Files of the user's are missing.
    """
    reachable(sweep)
    rates = load_rates(sweep.rates_path)
    runs, lacking = [], []
    for panel in sweep.panels():
        scored = sweep.arms_at(panel, WHOLE)
        arms = [arm for arm in scored if only is None or fnmatchcase(arm.label, only)]
        workload = workload_of(panel, without_data)
        if workload.options.get("data") == "":
            lacking.append(_missing(workload))
        tuned = {arm.label: _rate(sweep, panel, arm, rates) for arm in arms}
        for budget in sweep.budgets:
            running = [arm for arm in sweep.arms_at(panel, budget) if arm in arms]
            there = {arm.label: sweep.as_seen_by(arm, panel, budget) for arm in running}
            methods = {arm.label: method_of(*there[arm.label], arm, *tuned[arm.label]) for arm in running}
            for seed in range(sweep.seeds):
                for arm in running:
                    own, lr = methods[arm.label], tuned[arm.label][0]
                    spec = spec_of(*there[arm.label], own, workload, lr, seed)
                    runs.append(PlannedRun(panel, arm, spec, budget))
    if not runs:
        what = "is left, all are excluded" if only is None else f"matches {only!r}"
        raise PlanError(f"no arm of sweep {sweep.name!r} {what}; its arms: {', '.join(sweep.arms)}")
    return Plan(sweep, tuple(runs), tuple(dict.fromkeys(lacking)))


def _missing(workload: Part) -> str:
    """What says that a workload's files are missing."""
    from suite.workloads import DataError, get  # here, since it needs torch
    from suite.workloads.user_data import with_data

    try:
        with_data(get(workload.name, **workload.options))
    except DataError as error:
        return str(error)
    return ""


def workload_of(panel: Setting, without_data: bool = False) -> Part:
    """The workload of a panel; `without_data`: see `resolve_workload`. Raises `YamlError` with its line."""
    try:
        return resolve_workload(
            panel.workload.name, panel.workload.options, panel.sharding, without_data=without_data
        )
    except ValueError as error:
        raise panel.workload.error("", str(error)) from None


def method_of(sweep: Sweep, panel: Setting, arm: Arm, lr: float, tuned: Mapping[str, Any]) -> Part:
    """The method of an arm at a peak learning rate and the options tuned beside it. Raises `YamlError` with the arm's line."""
    try:
        options = arm.options_at(lr, **tuned)
        return resolve_algorithm(arm.algorithm, options, panel.world_size, sweep.steps, sweep.shape.warmup)
    except ValueError as error:
        key = "algorithm" if isinstance(error, UnknownAlgorithmError) else "options"
        raise arm.error(key, str(error)) from None


def spec_of(sweep: Sweep, panel: Setting, method: Part, workload: Part, lr: float, seed: int) -> RunSpec:
    """The spec of one run of a sweep at a peak learning rate."""
    return RunSpec.of(
        algorithm=method,
        workload=workload,
        sharding=panel.sharding,
        world_size=panel.world_size,
        steps=sweep.steps,
        batch_size=sweep.batch_size,
        lr=Rate(sweep.shape.schedule, lr, lr * sweep.shape.min_ratio, sweep.shape.warmup),
        seed=seed,
        backend=sweep.backend,
        bucket_bytes=sweep.bucket_bytes,
    )


def reachable(sweep: Sweep) -> None:
    """Refuse ranks that no data could reach. Raises `PlanError` with the seeds that are needed."""
    if not sweep.ranks:
        return
    if sweep.seeds > MAXIMUM_EXACT:
        raise PlanError(
            f"sweep {sweep.name!r} wants ranks of {sweep.seeds} seeds, whose exact test has too many cases: use {MAXIMUM_EXACT} "
            "seeds at most, or `ranks: false`"
        )
    for panel in sweep.panels():
        m = comparisons(sweep, panel)
        if smallest_p(sweep.seeds, m) > ALPHA:
            needed = next(n for n in range(1, 64) if smallest_p(n, m) <= ALPHA)
            raise PlanError(
                f"sweep {sweep.name!r} wants ranks, but with {sweep.seeds} seeds and {m} comparisons in "
                f"{panel.label} no data could reach p <= {ALPHA} after Holm (at best "
                f"{smallest_p(sweep.seeds, m):.3g}): use {needed} seeds, fewer arms, or `ranks: false`"
            )


def comparisons(sweep: Sweep, panel: Setting) -> int:
    """Arms of a panel that are compared with another one."""
    return sum(arm.baseline != arm.label for arm in sweep.arms_at(panel, WHOLE))


def smallest_p(seeds: int, comparisons_: int) -> float:
    """Smallest p of the two-sided exact sign-flip test over n seeds after Holm: 2/2^n times the comparisons."""
    return min(1.0, max(1, comparisons_) * 2.0 / float(2**seeds))


def statuses(plan: Plan, store: Store) -> dict[str, Status]:
    """Status by run id."""
    return {spec.run_id: store.status(spec.run_id) for spec in plan.specs}


def open_specs(specs: Iterable[RunSpec], store: Store) -> list[RunSpec]:
    """The runs that a sweep has to do: all that have not settled."""
    return [spec for spec in specs if not store.status(spec.run_id).settled]


def summary(plan: Plan, store: Store, found: Mapping[str, Status] | None = None) -> dict[str, Any]:
    """What `bandwise sweep --dry-run` prints: counts, seeds and the smallest p by panel, what the missing runs need.

    found: status by run id where the caller knows better than the runs' own files.
    """
    found = statuses(plan, store) if found is None else found
    specs = plan.specs
    missing = [spec for spec in specs if found[spec.run_id].state not in SETTLED]
    ended = {run_id: store.result(run_id) for run_id, status in found.items() if status.terminal}
    results = {run_id: result for run_id, result in ended.items() if result is not None}
    done = ((spec, results[spec.run_id]) for spec in specs if found[spec.run_id].state == "done")
    estimator = Estimator(done if missing else ())
    sent = estimator.wire_bytes(missing)
    panels = [
        {
            "panel": panel.label,
            "arms": len(plan.sweep.arms_at(panel, WHOLE)),
            "comparisons": comparisons(plan.sweep, panel),
            "smallest_p": smallest_p(plan.sweep.seeds, comparisons(plan.sweep, panel)),
        }
        for panel in plan.sweep.panels()
    ]
    return {
        "sweep": plan.sweep.name,
        "title": plan.sweep.title,
        "arms": len(plan.sweep.arms),
        "seeds": plan.sweep.seeds,
        "seeds_for_intervals": MINIMUM_FOR_INTERVAL,
        "steps": plan.sweep.steps,
        "ladder": sorted({run.spec.steps for run in plan.runs}),
        "ranks": plan.sweep.ranks,
        "runs": len(found),
        "to_do": len(missing),
        "states": counts(found.values()),
        "skipped": _skipped(plan, found),
        "stale_code": len(_older_than_code(plan, results)),
        "warnings": [*plan.lacking, *warnings_of(plan)],
        "panels": panels,
        "disk_bytes": len(missing) * RUN_FOLDER_BYTES,
        "core_seconds_left": round(math.fsum(map(estimator.seconds, missing)), 1),
        "core_seconds_measured": sent is not None,
        "wire_bytes_left": sent,
    }


def run_rows(plan: Plan, found: Mapping[str, Status]) -> list[dict[str, Any]]:
    """One row a run: id, panel, arm, steps, seed, state, reason. found: status by run id."""
    return [
        {
            "run_id": run.spec.run_id,
            "panel": run.panel.label,
            "arm": run.arm.label,
            "steps": run.spec.steps,
            "seed": run.spec.seed,
            "state": found[run.spec.run_id].state,
            "reason": found[run.spec.run_id].reason,
        }
        for run in plan.runs
    ]


def _rate(sweep: Sweep, panel: Setting, arm: Arm, rates: Rates) -> tuple[float, Mapping[str, Any]]:
    """The peak learning rate of an arm and the options tuned beside it, the same at all budgets."""
    if arm.baseline not in {other.label for other in sweep.arms_of(panel)}:
        raise arm.error("baseline", f"'{arm.baseline}' is excluded from {panel.label}: exclude this arm too")
    return rates.lr(sweep, panel, arm)


def _skipped(plan: Plan, found: Mapping[str, Status]) -> list[dict[str, Any]]:
    """What a sweep leaves out, and why: arms that it excludes from a panel, runs that said so themselves."""
    runs = plan.sweep.seeds * len(plan.sweep.budgets)
    excluded = [
        {"panel": panel.label, "arm": label, "runs": runs, "reason": "excluded by the sweep"}
        for panel in plan.sweep.panels()
        for label in plan.sweep.arms
        if label not in {arm.label for arm in plan.sweep.arms_of(panel)}
    ]
    itself = [
        {"panel": run.panel.label, "arm": run.arm.label, "runs": 1, "reason": found[run.spec.run_id].reason}
        for run in plan.runs
        if found[run.spec.run_id].state == "skipped"
    ]
    return excluded + itself


def warnings_of(plan: Plan) -> list[str]:
    """Each warning of a run once, with the labels of the methods that it is of."""
    labels: dict[str, list[str]] = {}
    for run in plan.runs:
        if (text := warning_of(run.spec)) and run.arm.label not in labels.setdefault(text, []):
            labels[text].append(run.arm.label)
    return [f"{', '.join(names)}: {text}" for text, names in labels.items()]


def _older_than_code(plan: Plan, results: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Ids of results whose method, or workload from outside, has changed since without a new version."""
    methods = {name: source_hash(name) for name in {run.spec.algorithm.name for run in plan.runs}}
    workloads = {name: workload_hash(name) for name in {run.spec.workload.name for run in plan.runs}}
    return [
        spec.run_id
        for spec in plan.specs
        if is_older(
            results.get(spec.run_id, {}).get("sources", {}),
            {"algorithm": methods[spec.algorithm.name], "workload": workloads[spec.workload.name]},
        )
    ]


GROUP_BYTES: Final = 256 << 20
"""Memory a group may take; beyond it the rows fall out of the processor's caches and nothing is gained."""
GPU_GROUP_BYTES: Final = 2 << 30
"""The same on a GPU, which small calls leave idle; gradients need as much again."""
GPU_RUNS: Final = 8
"""Fewer are not set apart for another slot: each kind of group is compiled anew, and small calls leave a GPU idle."""
COPIES: Final = 8
"""Floats held per parameter of a worker while it trains: parameters, gradients twice, optimizer and method state."""


def group_key(spec: RunSpec) -> str:
    """Equal for runs that can be trained in one group."""
    workload = canonical_json(spec.workload.as_dict())
    return f"{spec.backend} {workload} {spec.sharding} n={spec.world_size} T={spec.steps} B={spec.batch_size}"


def groups(
    specs: Iterable[RunSpec], slots: int = 1, group_bytes: int = GROUP_BYTES, on_gpus: bool = False
) -> list[list[RunSpec]]:
    """Cut runs into groups: within memory, at least three a slot where there is enough work, order kept.

    Runs on real process groups stand alone, and so do those whose workload says `mixed`, but for `on_gpus`: there all slots have
    as many groups of one size, none of fewer than `GPU_RUNS` runs for the sake of that.
    """
    by_key: dict[str, list[RunSpec]] = {}
    for spec in specs:
        by_key.setdefault(group_key(spec), []).append(spec)
    found: list[list[RunSpec]] = []
    for members in by_key.values():
        first, most = members[0], 1
        if first.backend == "simulated" and (on_gpus or not _mixed(first)):
            run_bytes = elements(first.workload) * 4 * COPIES * first.world_size
            most = max(1, group_bytes // run_bytes)
        if on_gpus:
            rounds = -(-len(members) // (most * slots))
            size = min(most, max(GPU_RUNS, -(-len(members) // (rounds * slots))))
        else:
            size = min(most, -(-len(members) // (3 * slots)))
        found.extend(members[i : i + size] for i in range(0, len(members), size))
    return found


def elements(workload: Part) -> int:
    """How many parameters the model of a workload has."""

    def count() -> int:
        return sum(parameter.numel() for parameter in _workload(workload).build().parameters())

    question = ["elements", workload.as_dict()]
    return int(disk_cached(question, count, ours=is_ours(workload.name)))


def _mixed(spec: RunSpec) -> bool:
    question = ["mixed", spec.workload.as_dict()]
    return bool(
        disk_cached(question, lambda: _workload(spec.workload).mixed, ours=is_ours(spec.workload.name))
    )


def _workload(part: Part) -> Workload:
    from suite.workloads import get  # here, since it needs torch

    return get(part.name, **part.options)


def task_seconds(spec: RunSpec) -> dict[str, float]:
    """What a run's task takes on one core, measured once and then kept.

    Args:
        spec: Of a run.

    Returns:
        Seconds of `gradients`, those of a step and all workers that a process has; of `watch`, an evaluation on the way; and of
        `evaluate`, the one at the end; 0 each where it does not fit into memory here.
    """
    rows = spec.world_size if spec.backend == "simulated" else 1

    def measure() -> dict[str, float]:
        import torch

        from suite.workloads import DataWorkload
        from suite.workloads.base import BatchedGradients

        workload = _workload(spec.workload)
        if isinstance(workload, DataWorkload) and (told := workload.seconds(rows, spec.batch_size)):
            return told

        def seconds(once: Callable[[], object]) -> float:
            begun = time.perf_counter()
            once()
            return time.perf_counter() - begun

        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            task = task_of(spec)
            params, batch = task.initial(), [part[:rows] for part in task.batch(0)]
            stacked = {name: torch.stack([value] * rows) for name, value in params.items()}
            gradients = BatchedGradients(task)
            return {
                "gradients": min(seconds(lambda: gradients(stacked, batch)) for _ in range(3)),
                "watch": seconds(lambda: task.watch(params)),
                "evaluate": seconds(lambda: task.evaluate(params)),
            }
        finally:
            torch.set_num_threads(threads)

    question = ["task-seconds", spec.workload.as_dict(), rows, spec.batch_size]
    try:
        return dict(disk_cached(question, measure, ours=is_ours(spec.workload.name)))
    except MemoryError:  # the run itself will say so, perhaps on a larger machine
        return {"gradients": 0.0, "watch": 0.0, "evaluate": 0.0}


EVALUATIONS: Final = 16
"""Evaluations a run, no part of its identity, since they change no bit of it. A multiple of the 8 of earlier runs, whose
steps are among these, so that curves of both can be compared."""
RUN_S: Final = 0.02
"""Of a run, however short: its files, each of which has to reach the disk."""
STEP_S: Final = 1e-3
"""Of a step besides its gradients: method and bookkeeping, whatever the model."""
ELEMENT_S: Final = 2e-8
"""Of a step, a parameter and a worker: method and update."""


def evaluation_steps(steps: int) -> frozenset[int]:
    """Numbers of completed steps after which a run is evaluated: evenly spread, the last step included."""
    return frozenset(math.ceil(steps * i / EVALUATIONS) for i in range(1, EVALUATIONS + 1))


class Estimator:
    """Knows what finished runs took, by kind of run (see `group_key`)."""

    def __init__(self, done: Iterable[tuple[RunSpec, Mapping[str, Any]]] = ()) -> None:
        """done: finished runs with their results."""
        self._seconds: dict[str, list[float]] = {}
        self._bytes: dict[str, list[float]] = {}
        self._rough: dict[str, float] = {}
        for spec, result in done:
            key = group_key(spec)
            self._seconds.setdefault(key, []).append(result["train_s"])
            self._bytes.setdefault(key, []).append(result["bytes"]["wire_per_rank_mean"] * spec.world_size)

    @classmethod
    def of_store(cls, specs: Iterable[RunSpec], store: Store) -> Estimator:
        """Knows what those of the runs took that have finished."""
        results = ((spec, store.result(spec.run_id)) for spec in specs)
        return cls(
            (spec, result) for spec, result in results if result is not None and result["status"] == "done"
        )

    def seconds(self, spec: RunSpec) -> float:
        """Of one run, its files included."""
        key = group_key(spec)
        if key in self._seconds:
            return RUN_S + math.fsum(self._seconds[key]) / len(self._seconds[key])
        if key not in self._rough:
            workers = spec.world_size if spec.backend == "simulated" else 1
            own = task_seconds(spec)
            step_s = STEP_S + own["gradients"] + ELEMENT_S * elements(spec.workload) * workers
            judged_s = len(evaluation_steps(spec.steps)) * own["watch"] + own["evaluate"]
            self._rough[key] = RUN_S + spec.steps * step_s + judged_s
        return self._rough[key]

    def wire_bytes(self, specs: Sequence[RunSpec]) -> float | None:
        """Bytes on the wire, of all ranks, of all these runs; None where none of some kind has finished."""
        known = [self._bytes.get(group_key(spec)) for spec in specs]
        return None if None in known else math.fsum(math.fsum(found) / len(found) for found in known if found)


# ---- whether a study can decide anything: half the width that its intervals will have. The spread of paired differences is taken
# from the runs of tuning at the chosen rates, on seeds that are never scored


@dataclass(frozen=True)
class Power:
    """What a setting's intervals will be.

    sd: of the paired difference of a method to its reference over seeds, in the metric's unit, pooled over arms. df: of sd; 0
    where tuning had one seed or has not been done. half_width: of the 95 % interval of a mean difference over the planned seeds.
    margin: what counts as equal, as the sweep states it.
    """

    panel: str
    sd: float
    df: int
    half_width: float
    margin: float
    seeds: int

    @property
    def enough(self) -> bool:
        """Whether half the interval is at most half the margin."""
        return self.df > 0 and self.half_width <= self.margin / 2

    @property
    def seeds_needed(self) -> int:
        """The fewest seeds that are enough; known only with `df`."""
        n = self.seeds
        while _half(self.sd, n) > self.margin / 2:
            n += 1
        return n


def power_of(sweep: Sweep) -> list[Power]:
    """The power of every setting of a sweep.

    Args:
        sweep: With its file of tuned rates beside it.

    Returns:
        One a setting, in the order of the file.

    Raises:
        YamlError: The file of rates cannot be read.
    """
    rates = load_rates(sweep.rates_path)
    return [_of_panel(sweep, panel, rates) for panel in sweep.panels()]


def refuse_underpowered(sweep: Sweep) -> None:
    """Refuse a headline study that cannot decide. Raises PlanError, with the seeds that would do."""
    for power in power_of(sweep) if sweep.headline else ():
        if not power.df:
            raise PlanError(
                f"{power.panel}: a headline study needs the spread of its differences before it is run: tune it on two seeds or "
                f"more with `{sweep.tuned_by}`"
            )
        if not power.enough:
            raise PlanError(
                f"{power.panel}: {power.seeds} seeds will give intervals of +-{power.half_width:.3g}, more than half the margin "
                f"of {power.margin:.3g} (sd {power.sd:.3g} in tuning): use {power.seeds_needed} seeds, or leave out `headline`"
            )


def _of_panel(sweep: Sweep, panel: Setting, rates: Rates) -> Power:
    squares, df = 0.0, 0
    for arm in sweep.arms_at(panel, WHOLE):
        own, other = (_chosen(panel, one, rates) for one in (arm, sweep.reference_of(arm)))
        if arm.control or len(own) < 2 or len(own) != len(other) or arm is sweep.reference_of(arm):
            continue
        gaps = [a - b for a, b in zip(own, other, strict=True)]
        mean = math.fsum(gaps) / len(gaps)
        squares += math.fsum((gap - mean) ** 2 for gap in gaps)
        df += len(gaps) - 1
    sd = math.sqrt(squares / df) if df else math.nan
    return Power(panel.label, sd, df, _half(sd, sweep.seeds), sweep.margin or math.nan, sweep.seeds)


def _chosen(panel: Setting, arm: Arm, rates: Rates) -> tuple[float, ...]:
    """The metric at the chosen rate by tuning seed."""
    tuned = rates.find(panel, arm)
    return next((trial.values for trial in tuned.trials if tuned.is_of(trial)), ()) if tuned else ()


def _half(sd: float, seeds: int) -> float:
    from scipy import stats  # here, since few sweeps are headlines

    return float(stats.t.ppf(0.975, seeds - 1)) * sd / math.sqrt(seeds) if seeds > 1 else math.inf
