"""What the job of a stage does: go on with the search of learning rates, run a session, or build the report.

    python -m slurm.stage STUDY.json NUMBER

It looks itself whether what it needs is there, says what is missing, and does what can be done. How it went stands in
the study's own file of the stage.

The search itself is `suite.runs.tuning`, which asks for trials and looks at their results. On Slurm each round of trials is a
submission, and whoever looks afterwards goes on: a trial that has no result stops the search of its setting; what all
settings lack is submitted together, and the search is begun again when those jobs have ended. It finds the results of before
and goes further, until every setting has its rates.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from slurm.jobs import run_states, settle
from slurm.profile import Profile
from slurm.study import RUNS, SESSION, TUNE, Sent, Study, load_study, send_stage, send_stages
from slurm.submit import Submission, submit_runs
from suite.runs.plan import make_plan
from suite.runs.provenance import THREAD_VARIABLES
from suite.runs.result import CIRCUMSTANCE, counts
from suite.runs.spec import RunSpec
from suite.runs.store import Store
from suite.runs.sweep import Sweep, Tuned, load_sweep, write_rates
from suite.runs.tuning import refuse_failures, tune_panel

# The search of learning rates


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
            states = run_states(open_, store)
            if not dry_run:
                settle(states, store)
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
    jobs = () if dry_run else tuple(sorted({j.id.partition("_")[0] for j in run_states(lacking, store).jobs}))
    return Search(None, len(lacking), jobs, sent, tuple(notes))


def with_rates_of(sweep: Sweep, root: Path) -> Sweep:
    """The sweep with the file of rates that jobs write: in the results, since they run a copy of the checkout."""
    written = root / "sweeps" / sweep.name / sweep.rates_path.name
    return sweep.model_copy(update={"rates": str(written.absolute())})


def _open(spec: RunSpec, store: Store, again: bool) -> bool:
    result = store.result(spec.run_id)
    return result is None or (again and result["status"] in CIRCUMSTANCE)


# The job of a stage


FAULT: Final = 1


def main(arguments: Sequence[str]) -> int:
    """Carry the stage out; returns the exit code. What goes wrong is noted before it is raised."""
    signal.signal(
        signal.SIGUSR2, signal.SIG_IGN
    )  # the warning before the time limit: nothing here can be saved
    os.environ.update(dict.fromkeys(THREAD_VARIABLES, "1"))
    study, number = load_study(Path(arguments[0])), int(arguments[1])
    kind, _, what = study.stages[number].partition(":")
    if TUNE in study.stages:
        os.environ["BANDWISE_RATES"] = str(study.path.parents[1])
    study.note(number, "running", "")
    try:
        if kind == TUNE:
            advance(study, number)
            return 0
        done = _run_session(study, number, what) if kind == SESSION else _report(study, number)
    except Exception as error:
        study.note(number, "error", f"{type(error).__name__}: {error}")
        raise
    return 0 if done else FAULT


def advance(study: Study, number: int, *, again: bool = False) -> tuple[Search, list[Sent]]:
    """Go on with the search: wait for the trials under way, or write the rates and send what comes after.

    Args:
        study: The study.
        number: Of its stage that searches.
        again: Try trials again that ended by circumstance.

    Returns:
        How far the search is, and the stages that were sent.

    Raises:
        YamlError: The sweep cannot be read.
        SlurmError: Slurm does not answer, or refuses a job.
    """
    sweep = load_sweep(study.called)
    progress = search(sweep, study.profile, study.results_root, again=again)
    if progress.tuned is None:
        if not progress.jobs:
            reason = f"{progress.trials} trials are in hand outside of Slurm; give the same command again when they have ended"
            study.note(number, "error", reason)
            return progress, []
        study.note(number, "queued", f"{progress.trials} trials in jobs {', '.join(progress.jobs)}")
        return progress, [send_stage(study, number, progress.jobs)]
    tuned = with_rates_of(sweep, study.results_root)
    write_rates(tuned, progress.tuned)
    edges = [f"{t.arm} ({t.sharding}, {t.edge})" for t in progress.tuned if t.edge != "none"]
    summary = f"{len(progress.tuned)} rates in {tuned.rates_path}; on an edge of the grid: {', '.join(edges) or 'none'}"
    study.note(
        number, "done", f"{summary}; `bandwise sweep {study.called} --tune` writes them beside the sweep"
    )
    return progress, send_rest(study, number + 1, tuned)


def send_rest(study: Study, first: int, sweep: Sweep) -> list[Sent]:
    """Send all stages from `first` on: the missing runs, and after them, one by one, the others."""
    after: list[str] = []
    if first < len(study.stages) and study.stages[first] == RUNS:
        after = _send_runs(study, first, sweep)
        first += 1
    return send_stages(study, first, after)


def _send_runs(study: Study, number: int, sweep: Sweep) -> list[str]:
    """Submit the missing runs; the jobs that hold runs of the sweep now."""
    plan, root = make_plan(sweep), study.results_root
    submission = submit_runs(plan.specs, study.profile, root, sweep=study.sweep, called=study.called)
    states = run_states(plan.specs, Store(root))
    jobs = sorted({job.id.partition("_")[0] for job in states.jobs}, key=int)
    study.note(
        number, "done", f"{submission.runs} runs submitted; jobs of the sweep: {', '.join(jobs) or 'none'}"
    )
    return jobs


def _run_session(study: Study, number: int, name: str) -> bool:
    """Run a session on this node; returns whether it has numbers."""
    from suite.timing.session import Session
    from suite.timing.spec import load_session

    spec = load_session(name)

    def show(text: str) -> None:
        sys.stderr.write(f"{name}: {text}\n")

    record = Session(spec, study.results_root, show).run()
    fix = f"; {record['fix']}" if record["fix"] else ""
    where = "on the emulated cluster of one node"
    study.note(number, record["status"], f"{where}: {record['reason']}{fix}" if record["reason"] else where)
    return bool(record["status"] == "done")


def _report(study: Study, number: int) -> bool:
    """Build the page of what there is, and say what it lacks."""
    store = Store(study.results_root)
    found = run_states(make_plan(load_sweep(study.called)).specs, store)
    settle(found, store)  # runs whose jobs have gone belong on the page too
    states = counts(found.statuses.values())
    lacks = [f"{count} runs {state}" for state, count in states.items() if state != "done"]
    for k, stage in enumerate(study.stages[:number]):
        note = study.noted(k) or {"state": "missing"}
        lacks += [f"{stage} is {note['state']}"] if note["state"] != "done" else []
    command = [sys.executable, "-m", "bandwise", "report", study.called, "--results", str(study.results_root)]
    built = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, check=False
    )  # above this floor: by its verb
    output = built.stdout.strip().splitlines()
    without = f"it lacks: {', '.join(lacks)}" if lacks else "of all stages and runs"
    if built.returncode:
        study.note(
            number, "error", f"`bandwise report` ended with {built.returncode}, see its log; {without}"
        )
        return False
    study.note(number, "done", f"{output[-1] if output else 'built'}; {without}")
    return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
