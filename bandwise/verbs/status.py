"""The state of a sweep, or of everything in the results folder: runs by state, and each that did not end well with its
reason; what lies among the runs and cannot be read is named.

Where runs were submitted, Slurm is asked once for all of them: which wait and why, and which have lost their job. The latter
are noted as what became of the job, with the command that tries them again.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

from bandwise.cli import OptionError, answer, counted, results_root, table

if TYPE_CHECKING:
    from suite.runs.spec import RunSpec

QUIET = frozenset({"done", "missing", "running"})


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "sweep", nargs="?", help="name of a sweep, or path of a .yaml file (default: all runs found)"
    )


def run(args: argparse.Namespace) -> int:
    from slurm.states import run_states, settle
    from suite.runs.plan import make_plan, run_rows
    from suite.runs.store import Store, counts
    from suite.runs.sweep import load_sweep

    if args.results is not None and not args.results.is_dir():
        raise OptionError(f"--results: no folder {args.results}; give the one in which runs were trained")
    store = Store(results_root(args))
    plan = make_plan(load_sweep(args.sweep)) if args.sweep else None
    specs = plan.specs if plan else [store.spec(run_id) for run_id in store.run_ids()]
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
    document = {
        "sweep": args.sweep,
        "runs": len(rows),
        "states": states,
        "jobs": len(found.jobs),
        "not_done": bad,
        "refused": refused,
        "slurm": found.unanswered or None,
    }
    lines = [f"{args.sweep or store.root}: {len(specs)} runs ({counted(states)})"]
    lines += [f"  {count} queued: {reason}" for reason, count in waiting.items()]
    if ended := [row for row in bad if row["state"] != "queued"]:
        lines.append(table(ended, ["run_id", "panel", "arm", "seed", "state", "reason"]))
    answer(args, document, *lines, *(f"not read: {line}" for line in refused))
    if found.unanswered and not args.json:
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
