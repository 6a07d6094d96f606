"""Learning rates by one budget for every arm, baselines first: a log grid, one seed that is never scored.

For each panel every arm tries the same number of rates, centred on the rate that the sweep states for its baseline.
The best final metric wins, ties go to the lower NLL, then to the lower rate. While some arm chooses an end of the
grid, the grid of *all* arms grows by one rate on that side, as often as the sweep allows; a choice that still lies on
an edge is kept and marked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from suite.runs.plan import method_of, spec_of, workload_of
from suite.runs.rates import Trial, Tuned, tuned_for
from suite.runs.spec import Part, RunSpec
from suite.runs.store import Store
from suite.runs.sweep import TUNING_SEED, Arm, Panel, Sweep
from suite.workloads import get


class TuningError(ValueError):
    """Tuning cannot start or has found no usable rate; the message says where and what to do."""


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
    tuned: list[Tuned] = []
    for panel in sweep.panels():
        found = list(candidates(sweep, panel))
        half = sweep.tuning.points // 2
        low, high = -half, half
        for round_ in range(sweep.tuning.extensions + 1):
            run([spec for c in found for spec in _specs(sweep, c, low, high).values()])
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
        tuned.extend(choices)
    return tuned


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
    """The best rate of the grid from offset `low` to `high`, by the results in the store. Raises `TuningError`."""
    workload = get(candidate.workload.name, **candidate.workload.options)
    sign = -1.0 if workload.direction == "higher" else 1.0
    trials, usable = [], []
    for offset, spec in _specs(sweep, candidate, low, high).items():
        trial = _trial(spec, store.result(spec.run_id), workload.metric)
        trials.append(trial)
        if trial.value is not None:
            nll = trial.nll if trial.nll is not None else 0.0
            usable.append((sign * trial.value, nll, offset, trial.lr))
    if not usable:
        reasons = "; ".join(f"lr {t.lr:g}: {t.status}" for t in trials)
        raise TuningError(
            f"{candidate.panel.label}, arm '{candidate.arm.label}': no learning rate worked ({reasons})"
        )
    _, _, offset, lr = min(usable)
    return Tuned(
        workload=candidate.panel.workload.label,
        sharding=candidate.panel.sharding,
        world_size=candidate.panel.world_size,
        arm=candidate.arm.label,
        lr=lr,
        edge="low" if offset == low else "high" if offset == high else "none",
        tuned_for=tuned_for(sweep, candidate.panel, candidate.arm),
        trials=tuple(trials),
    )


def _specs(sweep: Sweep, c: Candidate, low: int, high: int) -> dict[int, RunSpec]:
    """The trials of an arm by grid offset."""
    found = {}
    for offset in range(low, high + 1):
        lr = grid_rate(c.centre, sweep.tuning.factor, offset)
        method = method_of(sweep, c.panel, c.arm, lr)
        found[offset] = spec_of(sweep, c.panel, method, c.workload, lr, TUNING_SEED)
    return found


def _trial(spec: RunSpec, result: Mapping[str, Any] | None, metric: str) -> Trial:
    if result is None:
        raise TuningError(f"run {spec.run_id} has not ended: start the tuning again, it goes on from here")
    final = result.get("final") or {}
    return Trial(
        spec.lr.peak, _rounded(final.get(metric)), _rounded(final.get("nll")), result["status"], spec.run_id
    )


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.6g}")
