"""Learning rates by one budget for every arm, baselines first: a log grid, on seeds that are never scored.

For each panel every arm tries the same number of rates, centred on the rate that the sweep states for its baseline.
Of the rates whose final metric, mean over the seeds, is within the workload's margin of the best, the one of lowest NLL
is chosen. While some arm chooses an end of the grid, the grid of *all* arms grows by one rate on that side, as often as
the sweep allows; a choice that still lies on an edge is kept and marked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from suite.runs.learning_rates import Trial, Tuned, tuned_for
from suite.runs.plan import method_of, spec_of, workload_of
from suite.runs.spec import Part, RunSpec
from suite.runs.store import Store
from suite.runs.sweep import Arm, Panel, Sweep
from suite.workloads import Workload, get


class TuningError(ValueError):
    """A trial has not ended; the message says which."""


@dataclass(frozen=True)
class Candidate:
    """An arm in a panel that is to be tuned, with what its specs are made of."""

    panel: Panel
    arm: Arm
    workload: Part
    centre: float


def tune(
    sweep: Sweep,
    store: Store,
    run: Callable[[Sequence[RunSpec]], None],
    note: Callable[[str], None] = lambda text: None,
) -> list[Tuned]:
    """Tune all arms without a pinned rate. `run` carries specs out into the store; `note` is told how it goes.

    Raises `YamlError` or `TuningError`.
    """
    return [tuned for panel in sweep.panels() for tuned in tune_panel(sweep, panel, store, run, note)]


def tune_panel(
    sweep: Sweep,
    panel: Panel,
    store: Store,
    run: Callable[[Sequence[RunSpec]], None],
    note: Callable[[str], None] = lambda text: None,
) -> list[Tuned]:
    """Tune the arms of one panel, which depends on no other; the rest as for `tune`. What `run` raises passes through."""
    found = list(candidates(sweep, panel))
    half = sweep.tuning.points // 2
    low, high = -half, half
    for round_ in range(sweep.tuning.extensions + 1):
        run([spec for c in found for specs in _specs(sweep, c, low, high).values() for spec in specs])
        choices = [choose(sweep, c, store, low, high) for c in found]
        ends = {choice.edge for choice in choices} - {"none"}
        on_edge = [f"{choice.arm} ({choice.edge})" for choice in choices if choice.edge != "none"]
        if not ends or round_ == sweep.tuning.extensions:
            break
        note(f"{panel.label}: on an edge: {', '.join(on_edge)}; the grid of all arms grows")
        low, high = low - ("low" in ends), high + ("high" in ends)
    if on_edge:
        note(
            f"{panel.label}: still on an edge after {sweep.tuning.extensions} extensions: {', '.join(on_edge)}"
        )
    return choices


def candidates(sweep: Sweep, panel: Panel) -> Iterator[Candidate]:
    """The arms of a panel that have no pinned rate. Raises `YamlError` where a centre is missing."""
    for arm in sweep.arms_of(panel):
        if arm.lr is not None:
            continue
        if arm.baseline not in sweep.tuning.centres:
            raise arm.error(
                "baseline",
                f"tuning.centres lacks '{arm.baseline}': add its rate, or pin `lr:`",
            )
        yield Candidate(panel, arm, workload_of(panel), sweep.tuning.centres[arm.baseline])


def grid_rate(centre: float, factor: float, offset: int) -> float:
    """The rate `offset` grid steps from the centre, to three significant digits."""
    return float(f"{centre * factor**offset:.3g}")


def choose(sweep: Sweep, candidate: Candidate, store: Store, low: int, high: int) -> Tuned:
    """The best rate of the grid from offset `low` to `high`, by the results in the store.

    Raises `TuningError` where a trial has not ended.
    """
    workload = get(candidate.workload.name, **candidate.workload.options)
    trials = [_trial(specs, store, workload.metric) for specs in _specs(sweep, candidate, low, high).values()]
    chosen = best_trial(trials, workload)
    offset = low + trials.index(chosen)
    return Tuned(
        workload=candidate.panel.workload.label,
        sharding=candidate.panel.sharding,
        world_size=candidate.panel.world_size,
        arm=candidate.arm.label,
        lr=chosen.lr,
        edge="low" if offset == low else "high" if offset == high else "none",
        tuned_for=tuned_for(sweep, candidate.panel, candidate.arm),
        trials=tuple(trials),
    )


def best_trial(trials: Sequence[Trial], workload: Workload) -> Trial:
    """Of the rates (ascending) whose metric is within the workload's margin of the best, the one of lowest NLL.

    Without an NLL the best metric decides. Where no rate ended well it is the lowest: a lower one might.
    """
    sign = -1.0 if workload.direction == "higher" else 1.0
    ended = [(sign * trial.value, trial) for trial in trials if trial.value is not None]
    if not ended:
        return trials[0]
    limit = min(loss for loss, _ in ended) + workload.margin
    within = [(trial.nll if trial.nll is not None else loss, trial) for loss, trial in ended if loss <= limit]
    return min(within, key=lambda pair: pair[0])[1]


def _specs(sweep: Sweep, c: Candidate, low: int, high: int) -> dict[int, list[RunSpec]]:
    """The runs of an arm by grid offset, one a seed."""
    found = {}
    for offset in range(low, high + 1):
        lr = grid_rate(c.centre, sweep.tuning.factor, offset)
        method = method_of(sweep, c.panel, c.arm, lr)
        found[offset] = [spec_of(sweep, c.panel, method, c.workload, lr, seed) for seed in sweep.tuning.seeds]
    return found


def _trial(specs: Sequence[RunSpec], store: Store, metric: str) -> Trial:
    results = [store.result(spec.run_id) for spec in specs]
    for spec, result in zip(specs, results, strict=True):
        if result is None:
            raise TuningError(
                f"run {spec.run_id} has not ended: start the tuning again, it goes on from here"
            )
    ended = [result for result in results if result is not None]
    status = next((result["status"] for result in ended if result["status"] != "done"), "done")
    finals = [result["final"] for result in ended] if status == "done" else []
    runs = tuple(spec.run_id for spec in specs)
    value, nll = _mean(finals, metric), _mean(finals, "nll")
    return Trial(lr=specs[0].lr.peak, value=value, nll=nll, status=status, runs=runs)


def _mean(finals: Sequence[Mapping[str, float]], name: str) -> float | None:
    """Mean of a final score to six digits; None where there is none."""
    values = [final[name] for final in finals if name in final]
    return float(f"{math.fsum(values) / len(values):.6g}") if values else None
