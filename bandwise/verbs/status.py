"""The state of a sweep, or of everything in the results folder: runs by state, and each that did not end well with its
reason; what lies among the runs and cannot be read is named.

Where runs were submitted, Slurm is asked once for all of them: which wait and why, and which have lost their job. The latter
are noted as what became of the job, with the command that tries them again.

`--follow` looks again and again: how many runs are in which state, the time left, failures as they come. It ends when nothing
is under way, with exit code 0 when all is done, 3 when runs ended otherwise or are missing.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from bandwise.cli import OptionError, counted, duration, print_json, results_root, table

if TYPE_CHECKING:
    from slurm.states import RunStates
    from suite.runs.spec import RunSpec
    from suite.runs.store import Store

NAME = "status"
QUIET = frozenset({"done", "missing", "running"})
UNDER_WAY = frozenset({"queued", "running"})
WELL = frozenset({"done", "diverged", "skipped"})
UNANSWERED_MAX = 5


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the verb."""
    parser.add_argument(
        "sweep", nargs="?", help="name of a sweep, or path of a .yaml file (default: all runs found)"
    )
    parser.add_argument(
        "--follow", action="store_true", help="look again and again until nothing is under way"
    )
    parser.add_argument(
        "--every",
        type=float,
        default=10.0,
        metavar="S",
        help="with --follow: seconds between looks (default: 10)",
    )


def run(args: argparse.Namespace) -> int:
    """Show."""
    if args.every <= 0:
        raise OptionError(f"--every {args.every:g}: give seconds above 0")
    from slurm.states import run_states, settle
    from suite.runs.plan import make_plan, run_rows
    from suite.runs.store import Store, counts
    from suite.runs.sweep import load_sweep

    store = Store(results_root(args))
    plan = make_plan(load_sweep(args.sweep)) if args.sweep else None
    specs = plan.specs if plan else [store.spec(run_id) for run_id in store.run_ids()]
    if args.follow:
        return _follow(args, args.sweep or str(store.root), specs, store)
    found = run_states(specs, store)
    settle(found, store)
    rows = (
        run_rows(plan, found.statuses)
        if plan
        else [_row(spec, found.statuses[spec.run_id]) for spec in specs]
    )
    states = counts(found.statuses.values())
    bad = [row for row in rows if row["state"] not in QUIET]
    refused = [] if plan else [str(error) for error in store.refused()]
    waiting = _waiting(bad)
    if args.json:
        answer = {
            "sweep": args.sweep,
            "runs": len(rows),
            "states": states,
            "jobs": len(found.jobs),
            "not_done": bad,
            "refused": refused,
        }
        print_json({**answer, "slurm": found.unanswered or None})
        return 0
    print(f"{args.sweep or store.root}: {len(specs)} runs ({counted(states)})")
    for reason, count in waiting.items():
        print(f"  {count} queued: {reason}")
    if ended := [row for row in bad if row["state"] != "queued"]:
        print(table(ended, ["run_id", "panel", "arm", "seed", "state", "reason"]))
    for line in refused:
        print(f"not read: {line}")
    if found.unanswered:
        print(f"Slurm was not asked: {found.unanswered}", file=sys.stderr)
    return 0


def _waiting(rows: list[dict[str, Any]]) -> dict[str, int]:
    """Why runs wait, whatever the job, and how many for each reason."""
    reasons = (re.sub(r"Slurm job \S+", "a job", row["reason"]) for row in rows if row["state"] == "queued")
    return dict(Counter(reasons))


def _row(spec: RunSpec, status: Any) -> dict[str, Any]:
    return {
        "run_id": spec.run_id,
        "panel": f"{spec.workload.name} / {spec.sharding} / n={spec.world_size}",
        "arm": spec.algorithm.name,
        "seed": spec.seed,
        "state": status.state,
        "reason": status.reason,
    }


def _follow(args: argparse.Namespace, label: str, specs: Sequence[RunSpec], store: Store) -> int:
    """Look again and again; Slurm is asked once a look."""
    follower = _Follower(label, specs, store, quiet=args.json)
    while follower.look():
        time.sleep(args.every)
    if args.json:
        print_json(follower.answer())
    return 0 if all(state in WELL for state in follower.states) else 3


class _Follower:
    """Remembers which failures have been shown, and what it takes to say how much time is left."""

    def __init__(self, label: str, specs: Sequence[RunSpec], store: Store, quiet: bool) -> None:
        self._label, self._specs, self._store, self._quiet = label, specs, store, quiet
        self._told: dict[str, str] = {}
        self._unanswered = 0
        self._left_s: float | None = None
        self._jobs = 0
        self._note = ""
        self.states: dict[str, int] = {}

    def look(self) -> bool:
        """Look once and say what is new; returns whether something is still under way."""
        from slurm.states import run_states, settle
        from suite.runs.store import counts

        found = run_states(self._specs, self._store)
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
            "sweep": self._label,
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
        self._say(f"{self._label}: {counted(self.states)}; {self._jobs} jobs{left}")

    def _say(self, text: str) -> None:
        self._note = text
        if not self._quiet:
            print(text)
            sys.stdout.flush()

    def _time_left(self, found: RunStates) -> float | None:
        """Seconds until the runs under way have ended, by those that have finished and the jobs that run now."""
        from suite.runs.plan import Estimator

        open_ = [s for s in self._specs if found.statuses[s.run_id].state in UNDER_WAY]
        running = sum(not job.waits for job in found.jobs)
        if not open_ or not running:
            return None
        return Estimator.of_store(self._specs, self._store).of(open_).seconds / running
