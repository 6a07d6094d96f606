"""Follow a sweep: how many runs are in which state, the time left, failures as they come. Ends when nothing is under way.

Slurm is asked once a refresh, for all runs together. Exit code 0 when all is done, 3 when runs ended otherwise or are
missing; the reasons are shown, and `bandwise retry` takes them up.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import TYPE_CHECKING, Any

from bandwise.options import OptionError, add_results_option, require_checkout, results_root
from bandwise.output import counted, duration, print_json

if TYPE_CHECKING:
    from slurm.states import RunStates
    from suite.runs.plan import Plan
    from suite.runs.store import Store

NAME = "watch"
UNDER_WAY = frozenset({"queued", "running"})
WELL = frozenset({"done", "diverged", "skipped"})
UNANSWERED_MAX = 5


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the verb."""
    parser.add_argument("sweep", help="name of a sweep, or path of a .yaml file")
    parser.add_argument("--once", action="store_true", help="look once")
    parser.add_argument(
        "--every", type=float, default=10.0, metavar="S", help="seconds between looks (default: 10)"
    )
    add_results_option(parser)


def run(args: argparse.Namespace) -> int:
    """CheckpointPolicy."""
    require_checkout(NAME)
    if args.every <= 0:
        raise OptionError(f"--every {args.every:g}: give seconds above 0")
    from suite.runs.plan import make_plan
    from suite.runs.store import Store
    from suite.runs.sweep import load_sweep

    watcher = _Watcher(make_plan(load_sweep(args.sweep)), Store(results_root(args)), quiet=args.json)
    while watcher.look() and not args.once:
        time.sleep(args.every)
    if args.json:
        print_json(watcher.answer())
    return 0 if all(state in WELL for state in watcher.states) else 3


class _Watcher:
    """Remembers which failures have been shown, and what it takes to say how much time is left."""

    def __init__(self, plan: Plan, store: Store, quiet: bool) -> None:
        self._plan, self._store, self._quiet = plan, store, quiet
        self._told: dict[str, str] = {}
        self._unanswered = 0
        self._left_s: float | None = None
        self._jobs = 0
        self._note = ""
        self.states: dict[str, int] = {}

    def look(self) -> bool:
        """Look once and say what is new; returns whether something is still under way."""
        from slurm.states import run_states, settle
        from suite.runs.result import counts

        found = run_states(self._plan.specs, self._store)
        settle(found, self._store)
        self.states = counts(found.statuses.values())
        self._jobs = len(found.jobs)
        self._left_s = self._time_left(found)
        self._unanswered = self._unanswered + 1 if found.unanswered else 0
        self._tell(found)
        if found.unanswered:
            self._say(f"Slurm gave no answer: {found.unanswered}")
            return self._unanswered < UNANSWERED_MAX
        if found.stuck:
            reasons = ", ".join(sorted({job.reason for job in found.jobs}))
            self._say(f"no job will start by itself ({reasons}): see `squeue --me`, or end them by `scancel`")
            return False
        return any(state in UNDER_WAY for state in self.states)

    def answer(self) -> dict[str, Any]:
        """The last look as plain data."""
        return {
            "sweep": self._plan.sweep.name,
            "states": self.states,
            "jobs": self._jobs,
            "left_s": self._left_s,
            "failures": [{"run_id": run_id, "what": what} for run_id, what in self._told.items()],
            "note": self._note,
        }

    def _tell(self, found: RunStates) -> None:
        for run_id, status in found.statuses.items():
            what = f"{status.state}: {status.reason}"
            if status.terminal and status.state not in WELL and self._told.get(run_id) != what:
                self._told[run_id] = what
                self._say(f"  {run_id} {what}")
        left = "" if self._left_s is None else f", about {duration(self._left_s)} left"
        self._say(f"{self._plan.sweep.name}: {counted(self.states)}; {self._jobs} jobs{left}")

    def _say(self, text: str) -> None:
        self._note = text
        if not self._quiet:
            print(text)
            sys.stdout.flush()

    def _time_left(self, found: RunStates) -> float | None:
        """Seconds until the runs under way have ended, by those that have finished and the jobs that run now."""
        from suite.runs.plan import Estimator

        open_ = [s for s in self._plan.specs if found.statuses[s.run_id].state in UNDER_WAY]
        running = sum(not job.waits for job in found.jobs)
        if not open_ or not running:
            return None
        return Estimator.of_store(self._plan.specs, self._store).of(open_).seconds / running
