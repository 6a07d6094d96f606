"""Scaling: how much of each worker's time is left for computing as workers are added, by method, measured and predicted.

Weak scaling, where each worker has as much to do however many there are: efficiency = the step of one worker that sends nothing
/ the step of n workers. Sessions give marks, of those that are alike in all but their workers (`alike`); the cost model gives a
curve for workers that share the session's cores, which the marks can be held against, and one for machines of their own. Of one
worker and of n the number of ranks to a core is the same, so that a crowded machine does not count as loss.

Strong scaling, where all workers share what the most workers of the sessions did together, is predicted alone, with computing
taken as proportional to the examples; codecs and updates do not shrink with them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from reference_impls.errors import UnsupportedError
from suite.analysis.tables import Row
from suite.costs.advice import Question, network_of, reference_steps, ways_of
from suite.costs.alike import Held, Series, series_of
from suite.costs.beyond import crowd
from suite.costs.candidates import Candidate, candidates
from suite.costs.columns import PREDICTED
from suite.costs.known import Known
from suite.costs.model import Model
from suite.costs.recipe import RecipeError
from suite.costs.settings import (
    REFERENCE,
    Single,
    Spread,
    alone_s,
    known_here,
    question_of,
    single_of,
    steps_of,
)

WORKERS: Final = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""Numbers of workers of the predicted curves; one worker sends nothing."""
WEAK: Final = "weak"
STRONG: Final = "strong"


def scaling_rows(found: Known, model: Model) -> Iterator[Row]:
    """Table `costs-scaling`: every series of sessions, of the methods timed with at least two numbers of workers."""
    known = candidates(found.samples, found.cores)
    for series in series_of(known_here(found))[0]:
        alone = alone_s(found, series.members)
        if alone is None:
            continue
        steps = {held: steps_of(found.results_root, held, known) for held in series.members}
        shared = _shared(steps)
        yield from _measured(found, steps, shared, known)
        chosen = [candidate for candidate in known if candidate.label in shared]
        for scaling, cores in ((WEAK, found.cores), (WEAK, None), (STRONG, None)):
            yield from _predicted(series, chosen, shared, model, alone, scaling, cores)


def _shared(steps: Mapping[Held, Mapping[str, Spread]]) -> set[str]:
    """The methods that were timed with two numbers of workers or more."""
    sizes: dict[str, set[int]] = {}
    for held, found in steps.items():
        for label in found:
            sizes.setdefault(label, set()).add(held.world_size)
    return {label for label, own in sizes.items() if len(own) > 1}


def _place(held: Held, scaling: str, cores: int | None) -> Row:
    link = held.link
    return {
        "workload": held.workload, "batch_size": held.batch_size, "bucket_bytes": held.bucket_bytes, "link": link.label,
        "scaling": scaling, "cores": cores, "rate_mbit": link.rate_bps / 1e6, "delay_ms": 1e3 * link.delay_s,
    }  # fmt: skip


def _measured(
    found: Known, steps: Mapping[Held, Mapping[str, Spread]], shared: set[str], known: Sequence[Candidate]
) -> Iterator[Row]:
    names = {candidate.label: candidate.algorithm for candidate in known}
    for held, own in steps.items():
        single = single_of(found, held)
        for label in sorted(shared & own.keys()) if single is not None else ():
            yield {
                **_place(held, WEAK, found.cores), "method": label, "algorithm": names.get(label),
                "world_size": held.world_size, "source": held.session, **_efficiency(own[label], single),
            }  # fmt: skip


def _efficiency(step: Spread, single: Single | None) -> Row:
    assert single is not None, "asked of sessions with steps that send nothing alone"
    return {
        "n": step.n, "step_s": step.value, "step_low": step.low, "step_high": step.high,
        "single_s": single.seconds, "n_single": single.n, "efficiency": single.seconds / step.value,
        "efficiency_low": single.low / step.high, "efficiency_high": single.high / step.low,
    }  # fmt: skip


def _predicted(
    series: Series,
    chosen: Sequence[Candidate],
    shared: set[str],
    model: Model,
    alone: float,
    scaling: str,
    cores: int | None,
) -> Iterator[Row]:
    most = series.sizes[-1]
    for workers in (1, *WORKERS):
        share = most / workers if scaling == STRONG else 1.0
        single = alone * share * (1.0 if cores is None else crowd(workers, cores))
        if workers == 1:
            steps = _of_one(series.like, chosen, shared, single)
        else:
            steps = _steps(question_of(series.like, workers, single, cores), chosen, shared, model)
        for label, (algorithm, seconds) in steps.items():
            yield {
                **_place(series.like, scaling, cores), "method": label, "algorithm": algorithm, "world_size": workers,
                "source": PREDICTED, "n": None, "step_s": seconds, "step_low": None, "step_high": None, "single_s": single,
                "n_single": None, "efficiency": single / seconds, "efficiency_low": None, "efficiency_high": None,
            }  # fmt: skip


def _of_one(
    held: Held, chosen: Sequence[Candidate], shared: set[str], single: float
) -> dict[str, tuple[str | None, float]]:
    """One worker sends nothing, but a method encodes and decodes all the same."""
    found: dict[str, tuple[str | None, float]] = {
        label: (None, single) for label in sorted(shared) if label.startswith(REFERENCE)
    }
    parameters = question_of(held, 2, single, None).parameters
    for candidate in chosen:
        own = sum(
            share * candidate.beyond[kind].at(parameters).total_s for kind, share in candidate.shares.items()
        )
        found[candidate.label] = (candidate.algorithm, single + own)
    return found


def _steps(
    question: Question, chosen: Sequence[Candidate], shared: set[str], model: Model
) -> dict[str, tuple[str | None, float]]:
    """Label -> registry name and predicted seconds a step; a method that cannot serve so many workers has none."""
    network = network_of(question, model.backend)
    found: dict[str, tuple[str | None, float]] = {
        REFERENCE + name: (None, step(network))
        for name, step in reference_steps(question, model.overlap).items()
        if REFERENCE + name in shared
    }
    for candidate in chosen:
        try:
            found[candidate.label] = (
                candidate.algorithm,
                ways_of(candidate, question, model.overlap).seconds(network),
            )
        except (RecipeError, UnsupportedError):
            continue
    return found
