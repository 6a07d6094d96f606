"""Learning rates by one rule for every arm: a log grid, on seeds that are never scored.

For each panel every arm starts with the same number of rates, centred on the rate that the sweep states for its baseline.
Of the rates whose final metric, mean over the seeds, is within the workload's margin of the best, the one of lowest NLL
is chosen. While an arm chooses an end of its grid, that grid grows by one rate on that side, as often as
the sweep allows; a choice that still lies on an edge is kept and marked. Nothing is chosen from failures: an arm of which
no rate ended well has none, and then no rate of the sweep is written. Where the sweep names options to be tuned beside the rate
(Adam's eps), every rate is tried with every value of them, and whatever is said here of rates is true of these pairs.

Where the sweep asks for the *vertex*, the metric alone chooses the best of the grid, and scored is the rate at which a parabola
through it and its two neighbours is least: steps of the grid are then no part of what methods differ by.

Where the sweep asks for *finals*, the best rates of every arm are tried by more seeds in a second stage, and the choice is among
them. Two seeds tell a grid's best rate from its neighbours badly, and how badly is part of every interval (`tuning_error`). A
first stage that the file of rates has, by the source of today, is not trained again.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from suite.runs.plan import method_of, spec_of, workload_of
from suite.runs.spec import Part, RunSpec, source_hash
from suite.runs.store import Store
from suite.runs.sweep import (
    TUNING_SEED,
    Arm,
    Setting,
    Sweep,
    Trial,
    Tuned,
    load_rates,
    options_of,
    tuned_for,
    vertex,
)
from suite.workloads import Workload, get


class TuningError(ValueError):
    """A trial has not ended; the message says which."""


class TuningFailedError(RuntimeError):
    """No trial of some arms ended well; the message names each with the reason, and the command that shows more."""


@dataclass(frozen=True)
class Candidate:
    """An arm in a panel that is to be tuned, with what its specs are made of."""

    panel: Setting
    arm: Arm
    workload: Part
    centre: float


def tune(
    sweep: Sweep,
    store: Store,
    run: Callable[[Sequence[RunSpec]], None],
    note: Callable[[str], None] = lambda text: None,
) -> list[Tuned]:
    """Tune all arms without a pinned rate, panel by panel, so that all that fails is known at once.

    Args:
        sweep: What is tuned.
        store: Where results of trials are looked up.
        run: Carries specs out into the store; what it raises passes through.
        note: Is told how it goes, a line at a time.

    Returns:
        One choice an arm and panel.

    Raises:
        YamlError: A baseline has no centre.
        TuningError: A trial has no result.
        TuningFailedError: Some arm has no trial that ended well.
    """
    found, failures = list[Tuned](), list[str]()
    for panel in sweep.panels():
        chosen, failed = tune_panel(sweep, panel, store, run, note)
        found += chosen
        failures += failed
    refuse_failures(sweep, store, failures)
    return found


def refuse_failures(sweep: Sweep, store: Store, failures: Sequence[str]) -> None:
    """Raise `TuningFailedError` where arms failed, one line each in `failures`."""
    if failures:
        lines = "\n".join(f"  {line}" for line in failures)
        raise TuningFailedError(
            f"no learning rate of sweep {sweep.name!r} was written, since no trial ended well of:\n{lines}\n"
            f"`bandwise status --results {store.root}` lists all failed runs; where the cause is mended, the same command "
            "tries again what did not diverge; an arm that diverges everywhere needs other centres, or `lr:` of its own"
        )


def tune_panel(
    sweep: Sweep,
    panel: Setting,
    store: Store,
    run: Callable[[Sequence[RunSpec]], None],
    note: Callable[[str], None] = lambda text: None,
) -> tuple[list[Tuned], list[str]]:
    """Tune the arms of one panel, which depends on no other; arguments and errors as for `tune`.

    Returns:
        The choices, and a line with the reason for each arm of which no trial ended well.
    """
    found = list(candidates(sweep, panel))
    tried = on_record(sweep, panel, found) or _search_grid(sweep, panel, found, store, run, note)
    if sweep.tuning.more_seeds:
        tried = _finals(sweep, found, tried, store, run)
    choices = [chosen for c, trials in zip(found, tried, strict=True) if (chosen := choose(sweep, c, trials))]
    without = [
        (c, trials)
        for c, trials in zip(found, tried, strict=True)
        if all(trial.value is None for trial in trials)
    ]
    return choices, [f"{panel.label}: {c.arm.label}: {_failures(trials, store)}" for c, trials in without]


Run = Callable[[Sequence[RunSpec]], None]
Tried = list[list[Trial]]
"""The trials of every candidate, rates ascending."""


def on_record(sweep: Sweep, panel: Setting, found: Sequence[Candidate]) -> Tried:
    """The first stage as the file of rates has it, so that a later stage goes on from it without its runs.

    Args:
        sweep: What is tuned.
        panel: The panel.
        found: Its candidates.

    Returns:
        The trials of every candidate; none unless the file has all of them, tuned for the same, by the source of today and over
        the grid that the sweep asks for now.
    """
    recorded = {
        entry.arm: entry
        for entry in load_rates(sweep.rates_path).entries
        if (entry.workload, entry.sharding, entry.world_size)
        == (panel.workload.label, panel.sharding, panel.world_size)
    }
    tried = Tried()
    for c in found:
        entry = recorded.get(c.arm.label)
        if (
            entry is None
            or entry.tuned_for != tuned_for(sweep, panel, c.arm)
            or entry.source != source_hash(c.arm.algorithm)
            or any(len(trial.runs) < sweep.tuning.n_seeds for trial in entry.trials)
            or not _searched(sweep, c, entry)
        ):
            return []
        tried.append(list(entry.trials))
    return tried


def _searched(sweep: Sweep, c: Candidate, entry: Tuned) -> bool:
    """Whether these are the trials of the grid as it is now, which may grow no further where the choice lies on an edge."""
    half, most = sweep.tuning.points // 2, sweep.tuning.extensions
    tried = [(trial.lr, trial.options) for trial in entry.trials]
    for low, high in itertools.product(range(most + 1), repeat=2):
        if [(at.lr, at.options) for at in grid(sweep, c, -half - low, half + high)] == tried:
            return low + high == most or (low + high < most and entry.edge == "none")
    return False


def _search_grid(
    sweep: Sweep,
    panel: Setting,
    found: Sequence[Candidate],
    store: Store,
    run: Run,
    note: Callable[[str], None],
) -> Tried:
    """The first stage: a grid an arm, which grows while the arm chooses an end of it; a call of `run` a round, for all arms."""
    half = sweep.tuning.points // 2
    ends = [(-half, half) for _ in found]
    for round_ in range(sweep.tuning.extensions + 1):
        run(
            [
                spec
                for c, (low, high) in zip(found, ends, strict=True)
                for at in grid(sweep, c, low, high)
                for spec in _runs_at(sweep, c, at, sweep.tuning.seeds)
            ]
        )
        tried = [trials_of(sweep, c, store, low, high) for c, (low, high) in zip(found, ends, strict=True)]
        sides = [_side(choose(sweep, c, trials), trials) for c, trials in zip(found, tried, strict=True)]
        on_edge = ", ".join(
            f"{c.arm.label} ({side})" for c, side in zip(found, sides, strict=True) if side != "none"
        )
        if not on_edge:
            break
        if round_ == sweep.tuning.extensions:
            note(f"{panel.label}: still on an edge after {round_} extensions: {on_edge}")
            break
        note(f"{panel.label}: on an edge, so their grids grow: {on_edge}")
        ends = [
            (low - (side == "low"), high + (side == "high"))
            for (low, high), side in zip(ends, sides, strict=True)
        ]
    return tried


def _side(chosen: Tuned | None, trials: Sequence[Trial]) -> str:
    """The edge towards which an arm's grid is to grow, or `none`."""
    if chosen:
        return chosen.edge
    # what diverges at every rate may not at a lower one; what fails otherwise would fail there too
    return "low" if {trial.status for trial in trials} == {"diverged"} else "none"


def _finals(sweep: Sweep, found: Sequence[Candidate], tried: Tried, store: Store, run: Run) -> Tried:
    """The second stage: the best rates of every candidate with more seeds, the others as they were."""
    whole = sweep.tuning.n_seeds + len(sweep.tuning.more_seeds)
    open_ = dict[tuple[int, int], list[RunSpec]]()
    for i, (c, trials) in enumerate(zip(found, tried, strict=True)):
        for j in finalists(sweep, c, trials):
            if len(trials[j].runs) < whole:
                seeds = range(TUNING_SEED + len(trials[j].runs), TUNING_SEED + whole)
                open_[i, j] = _runs_at(sweep, c, trials[j], seeds)
    if open_:
        run([spec for specs in open_.values() for spec in specs])
    for (i, j), specs in open_.items():
        metric = get(found[i].workload.name, **found[i].workload.options).metric
        tried[i][j] = _together(tried[i][j], _trial(tried[i][j], specs, store, metric))
    return tried


def finalists(sweep: Sweep, candidate: Candidate, trials: Sequence[Trial]) -> list[int]:
    """Which of a candidate's trials enter the second stage.

    Args:
        sweep: With `tuning.finals`.
        candidate: Whose trials these are.
        trials: Of the first stage, or with some of the second.

    Returns:
        The places of the best by the seeds of the first stage, of those that ended well.
    """
    workload = get(candidate.workload.name, **candidate.workload.options)
    sign = -1.0 if workload.direction == "higher" else 1.0
    first = sweep.tuning.n_seeds
    entered = [i for i, trial in enumerate(trials) if len(trial.runs) > first]
    if entered:
        return entered
    means = {i: sign * trial.value for i, trial in enumerate(trials) if trial.value is not None}
    wanted = sweep.tuning.finals.rates if sweep.tuning.finals else 0
    return sorted(sorted(means, key=lambda i: means[i])[:wanted])


def _together(first: Trial, more: Trial) -> Trial:
    """A rate's trial with further seeds."""
    n, m = len(first.runs), len(more.runs)
    ended = more.status == "done"
    return Trial(
        lr=first.lr,
        options=first.options,
        value=_pooled(first.value, n, more.value, m) if ended else None,
        nll=_pooled(first.nll, n, more.nll, m) if ended else None,
        values=(*first.values, *more.values) if ended else (),
        status=more.status,
        runs=(*first.runs, *more.runs),
    )


def _pooled(one: float | None, n: int, other: float | None, m: int) -> float | None:
    return None if one is None or other is None else float(f"{(n * one + m * other) / (n + m):.6g}")


def candidates(sweep: Sweep, panel: Setting) -> Iterator[Candidate]:
    """The arms of a panel that have no pinned rate. Raises `YamlError` where a centre is missing."""
    for arm in sweep.arms_of(panel):
        if arm.lr is not None:
            continue
        centres = sweep.tuning.centres
        centre = centres.get(arm.label, centres.get(arm.baseline))
        if centre is None:
            raise arm.error("baseline", f"tuning.centres lacks '{arm.baseline}': add its rate, or pin `lr:`")
        yield Candidate(panel, arm, workload_of(panel), centre)


def grid_rate(centre: float, factor: float, offset: int) -> float:
    """The rate `offset` grid steps from the centre, to three significant digits."""
    return float(f"{centre * factor**offset:.3g}")


def trials_of(sweep: Sweep, candidate: Candidate, store: Store, low: int, high: int) -> list[Trial]:
    """The trials of the grid from offset `low` to `high`, rates ascending. Raises `TuningError` where one has not ended."""
    metric = get(candidate.workload.name, **candidate.workload.options).metric
    return [
        _trial(at, _runs_at(sweep, candidate, at, sweep.tuning.seeds), store, metric)
        for at in grid(sweep, candidate, low, high)
    ]


def choose(sweep: Sweep, candidate: Candidate, trials: Sequence[Trial]) -> Tuned | None:
    """The best rate of the trials (rates ascending); None where none of them ended well.

    After a second stage it is one of those that entered it, unless a further seed failed at each of them.
    """
    workload = get(candidate.workload.name, **candidate.workload.options)
    most = max(len(trial.runs) for trial in trials)
    entered = [trial for trial in trials if len(trial.runs) == most]
    alone = sweep.tuning.vertex
    chosen = best_trial(entered, workload, alone) or best_trial(trials, workload, alone)
    if chosen is None:
        return None
    sign = -1.0 if workload.direction == "higher" else 1.0
    return Tuned(
        workload=candidate.panel.workload.label,
        sharding=candidate.panel.sharding,
        world_size=candidate.panel.world_size,
        arm=candidate.arm.label,
        lr=chosen.lr,
        vertex=vertex_of(trials, chosen, sign) if sweep.tuning.vertex else None,
        options=chosen.options,
        edge="low" if chosen.lr == trials[0].lr else "high" if chosen.lr == trials[-1].lr else "none",
        tuned_for=tuned_for(sweep, candidate.panel, candidate.arm),
        source=source_hash(candidate.arm.algorithm),
        trials=tuple(trials),
    )


def vertex_of(trials: Sequence[Trial], best: Trial, sign: float) -> float | None:
    """Where a parabola is least that goes through the best rate and its neighbours with the same options.

    Args:
        trials: Rates ascending.
        best: One of them.
        sign: What makes a loss of the metric.

    Returns:
        The rate to three significant digits; None where the best has no two neighbours that ended well, or is no better.
    """
    row = [trial for trial in trials if trial.options == best.options]
    at = row.index(best)
    three = row[max(at - 1, 0) : at + 2]
    losses = [sign * trial.value for trial in three if trial.value is not None]
    if len(losses) < 3 or not losses[1] == min(losses) < max(losses):
        return None
    place = vertex([math.log(trial.lr) for trial in three], losses)
    return float(f"{math.exp(place):.3g}")


def best_trial(trials: Sequence[Trial], workload: Workload, by_metric: bool = False) -> Trial | None:
    """Of the rates (ascending) whose metric is within the workload's margin of the best, the one of lowest NLL.

    Without an NLL, and `by_metric`, the best metric decides. None where no rate ended well.
    """
    sign = -1.0 if workload.direction == "higher" else 1.0
    ended = [(sign * trial.value, trial) for trial in trials if trial.value is not None]
    if not ended:
        return None
    limit = min(loss for loss, _ in ended) + (0.0 if by_metric else workload.margin)
    within = [(trial.nll if trial.nll is not None else loss, trial) for loss, trial in ended if loss <= limit]
    return min(within, key=lambda pair: pair[0])[1]


def _failures(trials: Sequence[Trial], store: Store) -> str:
    """`3 of 3 learning rates failed (error); run 0123..: the reason of the first`."""
    words = ", ".join(dict.fromkeys(trial.status for trial in trials))
    run_id, reason = next(
        (run_id, result["reason"])
        for trial in trials
        for run_id in trial.runs
        if (result := store.result(run_id)) and result["status"] != "done"
    )
    return f"{len(trials)} of {len(trials)} learning rates failed ({words}), the first with: {reason} (run {run_id})"


@dataclass(frozen=True)
class Place:
    """A place of the grid: a rate, and values of the options that are tuned beside it."""

    lr: float
    options: Mapping[str, Any]


def grid(sweep: Sweep, candidate: Candidate, low: int, high: int) -> list[Place]:
    """The places of an arm's grid from offset `low` to `high`, rates ascending, each with every choice of options."""
    searched = options_of(sweep, candidate.arm)
    choices = [dict(zip(searched, values, strict=True)) for values in itertools.product(*searched.values())]
    rates = [grid_rate(candidate.centre, sweep.tuning.factor, offset) for offset in range(low, high + 1)]
    return [Place(lr, options) for lr in rates for options in choices]


def _runs_at(sweep: Sweep, c: Candidate, at: Place | Trial, seeds: Iterable[int]) -> list[RunSpec]:
    there = sweep.as_seen_by(c.arm, c.panel)
    method = method_of(*there, c.arm, at.lr, at.options)
    return [spec_of(*there, method, c.workload, at.lr, seed) for seed in seeds]


def _trial(at: Place | Trial, specs: Sequence[RunSpec], store: Store, metric: str) -> Trial:
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
    values = tuple(float(f"{final[metric]:.6g}") for final in finals)
    return Trial(
        lr=at.lr, options=dict(at.options), value=value, nll=nll, values=values, status=status, runs=runs
    )


def _mean(finals: Sequence[Mapping[str, float]], name: str) -> float | None:
    """Mean of a final score to six digits; None where there is none."""
    values = [final[name] for final in finals if name in final]
    return float(f"{math.fsum(values) / len(values):.6g}") if values else None
