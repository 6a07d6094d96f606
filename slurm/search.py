"""The search of learning rates on Slurm: each round of trials is a submission, and whoever looks afterwards goes on.

The search itself is `suite.runs.tuning`, which asks for trials and looks at their results. Here a trial that has no
result stops the search of its panel; what all panels lack is submitted together, and the search is begun again when
those jobs have ended. It finds the results of before and goes further, until every panel has its rates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from slurm.jobs import settle, standing
from slurm.profile import Profile
from slurm.submit import Submission, submit_runs
from suite.runs.rates import Tuned
from suite.runs.spec import RunSpec
from suite.runs.status import CIRCUMSTANCE
from suite.runs.store import Store
from suite.runs.sweep import Sweep
from suite.runs.tuning import refuse_failures, tune_panel

OPEN: Final = frozenset({"missing", "stale", "interrupted"})


@dataclass(frozen=True)
class Search:
    """How far a search is. tuned: the rates, None while trials are missing. jobs: live jobs that hold such trials.

    trials: how many have no result. submission: what was sent for them, or would be. notes: how the grids grew.
    """

    tuned: tuple[Tuned, ...] | None
    trials: int
    jobs: tuple[str, ...] = ()
    submission: Submission | None = None
    notes: tuple[str, ...] = ()


class _LackingError(Exception):
    """Trials have no result yet."""

    def __init__(self, specs: list[RunSpec]) -> None:
        super().__init__(f"{len(specs)} trials")
        self.specs = specs


def search(
    sweep: Sweep, profile: Profile, root: Path, *, again: bool = False, dry_run: bool = False
) -> Search:
    """Look at the trials that have ended and submit those that are lacking.

    again: also trials that ended by circumstance; else those are rates that did not end well. dry_run: submit nothing.
    Raises `YamlError`, `SlurmError`; `TuningFailedError` where all trials have ended and some arm has none that did well.
    """
    store, tuned, lacking = Store(root), list[Tuned](), list[RunSpec]()
    notes, failures = list[str](), list[str]()

    def run(specs: Sequence[RunSpec]) -> None:
        open_ = [spec for spec in specs if _open(spec, store, again)]
        if open_:
            found = standing(open_, store)
            if not dry_run:
                settle(found, store)
            if open_ := [spec for spec in open_ if _open(spec, store, again)]:
                raise _LackingError(open_)

    for panel in sweep.panels():
        try:
            chosen, failed = tune_panel(sweep, panel, store, run, notes.append)
            tuned += chosen
            failures += failed
        except _LackingError as error:
            lacking.extend(error.specs)
    if not lacking:
        refuse_failures(sweep, store, failures)
        return Search(tuple(tuned), 0, notes=tuple(notes))
    only = OPEN | CIRCUMSTANCE if again else OPEN
    sent = submit_runs(
        lacking, profile, root, sweep=sweep.name, called=sweep.called, dry_run=dry_run, only=only
    )
    jobs = () if dry_run else tuple(sorted({j.id.partition("_")[0] for j in standing(lacking, store).jobs}))
    return Search(None, len(lacking), jobs, sent, tuple(notes))


def with_rates_of(sweep: Sweep, root: Path) -> Sweep:
    """The sweep with the file of rates that jobs write: in the results, since they run a copy of the checkout."""
    return replace(sweep, rates_path=root / "sweeps" / sweep.name / sweep.rates_path.name)


def _open(spec: RunSpec, store: Store, again: bool) -> bool:
    result = store.result(spec.run_id)
    return result is None or (again and result["status"] in CIRCUMSTANCE)
