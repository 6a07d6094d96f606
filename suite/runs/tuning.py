"""Learning rates by one rule for every arm: a log grid, on seeds that are never scored.

For each panel every arm starts with the same number of rates, centred on the rate that the sweep states for its baseline.
Of the rates whose final metric, mean over the seeds, is within the workload's margin of the best, the one of lowest NLL
is chosen. While an arm chooses an end of its grid, that grid grows by one rate on that side, as often as
the sweep allows; a choice that still lies on an edge is kept and marked. Nothing is chosen from failures: an arm of which
no rate ended well has none, and then no rate of the sweep is written. Where the sweep names options to be tuned beside the rate
(Adam's eps), every rate is tried with every value of them, and whatever is said here of rates is true of these pairs.

Where the sweep asks for the *vertex*, the metric alone chooses the best of the grid, and scored is the rate at which a parabola
through it and its two neighbours is least: steps of the grid are then no part of what methods differ by. Beside a neighbour
that has collapsed (`suite.runs.sweep.collapsed`) the best of the grid stays.

Where the sweep asks for *finals*, the best rates of every arm are tried by more seeds in a second stage, and the choice is among
them. Two seeds tell a grid's best rate from its neighbours badly, and how badly is part of every interval (`tuning_error`). A
first stage that the file of rates has, by the source of today, is not trained again.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
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
    beside,
    collapsed,
    load_rates,
    options_of,
    tuned_for,
    vertex,
)
from suite.workloads import Workload, get

Run = Callable[[Sequence[RunSpec]], None]
Note = Callable[[str], None]


class TuningError(ValueError):
    """A trial has not ended; the message says which."""


class TuningFailedError(RuntimeError):
    """No trial of some arms ended well; the message names each with the reason, and the command that shows more."""


def tune(sweep: Sweep, store: Store, run: Run, note: Note = lambda text: None) -> list[Tuned]:
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
        tuned = list(candidates(sweep, panel))
        on_record = [c.on_record() for c in tuned]
        if tuned and all(on_record):
            for c, trials in zip(tuned, on_record, strict=True):
                c.trials = trials
        else:
            _search(sweep, panel, tuned, store, run, note)
        if sweep.tuning.more_seeds:
            _finals(sweep, tuned, store, run)
        for c in tuned:
            if chosen := c.choose():
                found.append(chosen)
            else:
                failures.append(f"  {panel.label}: {c.arm.label}: {_failures(c.trials, store)}")
    if failures:
        lines = "\n".join(failures)
        raise TuningFailedError(
            f"no learning rate of sweep {sweep.name!r} was written, since no trial ended well of:\n{lines}\n"
            f"`bandwise status --results {store.root}` lists all failed runs; where the cause is mended, the same command "
            "tries again what did not diverge; an arm that diverges everywhere needs other centres, or `lr:` of its own"
        )
    return found


@dataclass
class Candidate:
    """An arm in a panel that is tuned, with what its specs are made of. trials: so far, rates ascending."""

    sweep: Sweep
    panel: Setting
    arm: Arm
    workload: Part
    centre: float
    trials: list[Trial] = field(default_factory=list)

    @cached_property
    def judge(self) -> Workload:
        """The workload, which knows its metric."""
        return get(self.workload.name, **self.workload.options)

    def grid(self, low: int, high: int) -> list[tuple[float, dict[str, Any]]]:
        """The places of the grid from offset `low` to `high`, rates ascending, each with every choice of options."""
        searched = options_of(self.sweep, self.arm)
        choices = [
            dict(zip(searched, values, strict=True)) for values in itertools.product(*searched.values())
        ]
        rates = [float(f"{self.centre * self.sweep.tuning.factor**at:.3g}") for at in range(low, high + 1)]
        return [(lr, options) for lr in rates for options in choices]

    def runs_at(self, lr: float, options: Mapping[str, Any], seeds: Iterable[int]) -> list[RunSpec]:
        """The runs of a place of the grid."""
        there = self.sweep.as_seen_by(self.arm, self.panel)
        method = method_of(*there, self.arm, lr, options)
        return [spec_of(*there, method, self.workload, lr, seed) for seed in seeds]

    def trial(self, lr: float, options: Mapping[str, Any], specs: Sequence[RunSpec], store: Store) -> Trial:
        """What came of the runs of a place. Raises `TuningError` where one has not ended."""
        ended = []
        for spec in specs:
            if (result := store.result(spec.run_id)) is None:
                raise TuningError(
                    f"run {spec.run_id} has not ended: start the tuning again, it goes on from here"
                )
            ended.append(result)
        status = next((result["status"] for result in ended if result["status"] != "done"), "done")
        finals = [result["final"] for result in ended] if status == "done" else []
        return Trial(
            lr=lr,
            options=dict(options),
            value=_mean(finals, self.judge.metric),
            nll=_mean(finals, "nll"),
            values=tuple(float(f"{final[self.judge.metric]:.6g}") for final in finals),
            status=status,
            runs=tuple(spec.run_id for spec in specs),
        )

    def on_record(self) -> list[Trial]:
        """The first stage as the file of rates has it, so that a later stage goes on from it without its runs.

        Nothing unless it was tuned for the same, by the source of today and over the grid that the sweep asks for now.
        """
        tuning, entry = self.sweep.tuning, load_rates(self.sweep.rates_path).find(self.panel, self.arm)
        if (
            entry is None
            or entry.tuned_for != tuned_for(self.sweep, self.panel, self.arm)
            or entry.source != source_hash(self.arm.algorithm)
            or any(len(trial.runs) < tuning.n_seeds for trial in entry.trials)
        ):
            return []
        half, most = tuning.points // 2, tuning.extensions
        tried = [(trial.lr, trial.options) for trial in entry.trials]
        for low, high in itertools.product(range(most + 1), repeat=2):
            grown_out = low + high == most or (low + high < most and entry.edge == "none")
            if grown_out and self.grid(-half - low, half + high) == tried:
                return list(entry.trials)
        return []

    def choose(self) -> Tuned | None:
        """The best rate of the trials; None where none of them ended well.

        After a second stage it is one of those that entered it, unless a further seed failed at each of them.
        """
        most = max(len(trial.runs) for trial in self.trials)
        entered = [trial for trial in self.trials if len(trial.runs) == most]
        alone = self.sweep.tuning.vertex
        chosen = best_trial(entered, self.judge, alone) or best_trial(self.trials, self.judge, alone)
        if chosen is None:
            return None
        low, high = self.trials[0].lr, self.trials[-1].lr
        margin = self.sweep.margin or self.judge.margin
        return Tuned(
            workload=self.panel.workload.label,
            sharding=self.panel.sharding,
            world_size=self.panel.world_size,
            arm=self.arm.label,
            lr=chosen.lr,
            vertex=vertex_of(self.trials, chosen, _sign(self.judge), margin) if alone else None,
            options=chosen.options,
            edge="low" if chosen.lr == low else "high" if chosen.lr == high else "none",
            tuned_for=tuned_for(self.sweep, self.panel, self.arm),
            source=source_hash(self.arm.algorithm),
            trials=tuple(self.trials),
        )

    def edge(self) -> str:
        """The edge towards which the grid is to grow, or `none`."""
        if chosen := self.choose():
            return chosen.edge
        # what diverges at every rate may not at a lower one; what fails otherwise would fail there too
        return "low" if {trial.status for trial in self.trials} == {"diverged"} else "none"

    def finalists(self) -> list[int]:
        """The places of the trials that enter the second stage: the best by the seeds of the first, of those that ended well."""
        tuning = self.sweep.tuning
        if entered := [i for i, trial in enumerate(self.trials) if len(trial.runs) > tuning.n_seeds]:
            return entered
        means = {
            i: _sign(self.judge) * trial.value
            for i, trial in enumerate(self.trials)
            if trial.value is not None
        }
        wanted = tuning.finals.rates if tuning.finals else 0
        return sorted(sorted(means, key=lambda i: means[i])[:wanted])


def candidates(sweep: Sweep, panel: Setting) -> Iterator[Candidate]:
    """The arms of a panel that have no pinned rate. Raises `YamlError` where a centre is missing."""
    for arm in sweep.arms_of(panel):
        if arm.lr is not None:
            continue
        centres = sweep.tuning.centres
        centre = centres.get(arm.label, centres.get(arm.baseline))
        if centre is None:
            raise arm.error("baseline", f"tuning.centres lacks '{arm.baseline}': add its rate, or pin `lr:`")
        yield Candidate(sweep, panel, arm, workload_of(panel), centre)


def _search(
    sweep: Sweep, panel: Setting, tuned: Sequence[Candidate], store: Store, run: Run, note: Note
) -> None:
    """The first stage: a grid an arm, which grows while the arm chooses an end of it; a call of `run` a round, for all arms."""
    half, extensions = sweep.tuning.points // 2, sweep.tuning.extensions
    ends = {c.arm.label: (-half, half) for c in tuned}
    for round_ in range(extensions + 1):
        planned = [
            [(*at, c.runs_at(*at, sweep.tuning.seeds)) for at in c.grid(*ends[c.arm.label])] for c in tuned
        ]
        run([spec for places in planned for *_, specs in places for spec in specs])
        for c, places in zip(tuned, planned, strict=True):
            c.trials = [c.trial(*place, store) for place in places]
        sides = {c.arm.label: side for c in tuned if (side := c.edge()) != "none"}
        on_edge = ", ".join(f"{label} ({side})" for label, side in sides.items())
        if not on_edge:
            break
        if round_ == extensions:
            note(f"{panel.label}: still on an edge after {round_} extensions: {on_edge}")
            break
        note(f"{panel.label}: on an edge, so their grids grow: {on_edge}")
        for label, side in sides.items():
            low, high = ends[label]
            ends[label] = (low - (side == "low"), high + (side == "high"))


def _finals(sweep: Sweep, tuned: Sequence[Candidate], store: Store, run: Run) -> None:
    """The second stage: the best rates of every candidate with more seeds, the others as they were."""
    end = TUNING_SEED + sweep.tuning.n_seeds + len(sweep.tuning.more_seeds)
    open_ = []
    for c in tuned:
        for i in c.finalists():
            first = c.trials[i]
            seeds = range(TUNING_SEED + len(first.runs), end)
            if seeds:
                open_.append((c, i, c.runs_at(first.lr, first.options, seeds)))
    if open_:
        run([spec for _, _, specs in open_ for spec in specs])
    for c, i, specs in open_:
        first = c.trials[i]
        c.trials[i] = _together(first, c.trial(first.lr, first.options, specs, store))


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


def vertex_of(trials: Sequence[Trial], best: Trial, sign: float, margin: float) -> float | None:
    """Where a parabola is least that goes through the best rate and its neighbours with the same options.

    Args:
        trials: Rates ascending.
        best: One of them.
        sign: What makes a loss of the metric.
        margin: What counts as equal.

    Returns:
        The rate to three significant digits; None where the best has no two neighbours that ended well, is no better, or one of
        them has collapsed.
    """
    three = beside(trials, best)
    losses = [sign * trial.value for trial in three if trial.value is not None]
    if len(losses) < 3 or not losses[1] == min(losses) < max(losses) or collapsed(losses, margin):
        return None
    place = vertex([math.log(trial.lr) for trial in three], losses)
    return float(f"{math.exp(place):.3g}")


def best_trial(trials: Sequence[Trial], workload: Workload, by_metric: bool = False) -> Trial | None:
    """Of the rates (ascending) whose metric is within the workload's margin of the best, the one of lowest NLL.

    Without an NLL, and `by_metric`, the best metric decides. None where no rate ended well.
    """
    sign = _sign(workload)
    ended = [(sign * trial.value, trial) for trial in trials if trial.value is not None]
    if not ended:
        return None
    limit = min(loss for loss, _ in ended) + (0.0 if by_metric else workload.margin)
    within = [(trial.nll if trial.nll is not None else loss, trial) for loss, trial in ended if loss <= limit]
    return min(within, key=lambda pair: pair[0])[1]


def _sign(workload: Workload) -> float:
    """What makes a loss of a workload's metric."""
    return -1.0 if workload.direction == "higher" else 1.0


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


def _mean(finals: Sequence[Mapping[str, float]], name: str) -> float | None:
    """Mean of a final score to six digits; None where there is none."""
    values = [final[name] for final in finals if name in final]
    return float(f"{math.fsum(values) / len(values):.6g}") if values else None
