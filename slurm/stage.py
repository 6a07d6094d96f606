"""What the job of a stage does: go on with the search of learning rates, hold a session, or build the report.

    python -m slurm.stage STUDY.json NUMBER

It looks itself whether what it needs is there, says what is missing, and does what can be done. How it went stands in
the study's own file of the stage.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from slurm.jobs import settle, standing
from slurm.search import Search, search, with_rates_of
from slurm.study import RUNS, SESSION, TUNE, Sent, Study, load_study, send_stage, send_stages
from slurm.submit import submit_runs
from suite.runs.learning_rates import write_rates
from suite.runs.plan import make_plan
from suite.runs.provenance import THREAD_VARIABLES
from suite.runs.status import counts
from suite.runs.store import Store
from suite.runs.sweep import Sweep, load_sweep

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
        done = _hold(study, number, what) if kind == SESSION else _report(study, number)
    except Exception as error:
        study.note(number, "error", f"{type(error).__name__}: {error}")
        raise
    return 0 if done else FAULT


def advance(study: Study, number: int, *, again: bool = False) -> tuple[Search, list[Sent]]:
    """Go on with the search: wait for the trials under way, or write the rates and send what comes after.

    again: try trials again that ended by circumstance. Returns how far it is, and the stages that were sent.
    """
    sweep = load_sweep(study.called)
    found = search(sweep, study.profile, study.results_root, again=again)
    if found.tuned is None:
        if not found.jobs:
            reason = f"{found.trials} trials are in hand outside of Slurm; give the same command again when they have ended"
            study.note(number, "error", reason)
            return found, []
        study.note(number, "queued", f"{found.trials} trials in jobs {', '.join(found.jobs)}")
        return found, [send_stage(study, number, found.jobs)]
    tuned = with_rates_of(sweep, study.results_root)
    write_rates(tuned, found.tuned)
    edges = [f"{t.arm} ({t.sharding}, {t.edge})" for t in found.tuned if t.edge != "none"]
    said = f"{len(found.tuned)} rates in {tuned.rates_path}; on an edge of the grid: {', '.join(edges) or 'none'}"
    study.note(number, "done", f"{said}; `bandwise sweep {study.called} --tune` writes them beside the sweep")
    return found, send_rest(study, number + 1, tuned)


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
    found = standing(plan.specs, Store(root))
    jobs = sorted({job.id.partition("_")[0] for job in found.jobs}, key=int)
    study.note(
        number, "done", f"{submission.runs} runs submitted; jobs of the sweep: {', '.join(jobs) or 'none'}"
    )
    return jobs


def _hold(study: Study, number: int, name: str) -> bool:
    """Hold a session on this node; returns whether it has numbers."""
    from suite.timing.session import Session
    from suite.timing.spec import load_session

    spec = load_session(name)

    def show(text: str) -> None:
        sys.stderr.write(f"{name}: {text}\n")

    record = Session(spec, study.results_root, show).hold()
    fix = f"; {record['fix']}" if record["fix"] else ""
    where = "on the emulated cluster of one node"
    study.note(number, record["status"], f"{where}: {record['reason']}{fix}" if record["reason"] else where)
    return bool(record["status"] == "done")


def _report(study: Study, number: int) -> bool:
    """Build the page of what there is, and say what it lacks."""
    store = Store(study.results_root)
    found = standing(make_plan(load_sweep(study.called)).specs, store)
    settle(found, store)  # runs whose jobs have gone belong on the page too
    states = counts(found.statuses.values())
    lacks = [f"{count} runs {state}" for state, count in states.items() if state != "done"]
    for k, stage in enumerate(study.stages[:number]):
        said = study.noted(k) or {"state": "missing"}
        lacks += [f"{stage} is {said['state']}"] if said["state"] != "done" else []
    command = [sys.executable, "-m", "bandwise", "report", study.called, "--results", str(study.results_root)]
    built = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, check=False
    )  # above this floor: by its verb
    told = built.stdout.strip().splitlines()
    without = f"it lacks: {', '.join(lacks)}" if lacks else "of all stages and runs"
    if built.returncode:
        study.note(
            number, "error", f"`bandwise report` ended with {built.returncode}, see its log; {without}"
        )
        return False
    study.note(number, "done", f"{told[-1] if told else 'built'}; {without}")
    return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
