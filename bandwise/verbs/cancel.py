"""Cancel the Slurm jobs of a sweep, and no others. What was finished is kept; what was not is noted as `cancelled`, and
`bandwise sweep` or `bandwise retry --status cancelled` takes it up again."""

from __future__ import annotations

import argparse

from bandwise.options import add_results_option, require_checkout, results_root
from bandwise.output import counted, print_json

NAME = "cancel"
END_S = 60.0


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the verb."""
    parser.add_argument("sweep", help="name of a sweep, or path of a .yaml file")
    add_results_option(parser)


def run(args: argparse.Namespace) -> int:
    """Cancel."""
    require_checkout(NAME)
    from slurm.jobs import run_states, settle
    from slurm.study import cancel_sweep
    from suite.runs.plan import make_plan
    from suite.runs.result import counts
    from suite.runs.store import Store
    from suite.runs.sweep import load_sweep

    plan, store = make_plan(load_sweep(args.sweep)), Store(results_root(args))
    cancelled, left = cancel_sweep(plan.sweep.name, store.root, END_S)
    found = run_states(plan.specs, store)
    settle(found, store)
    states = counts(found.statuses.values())
    if args.json:
        print_json({"sweep": plan.sweep.name, "jobs": cancelled, "still_ending": left, "states": states})
        return 0
    jobs = ", ".join(cancelled) or "none were left"
    print(f"{plan.sweep.name}: cancelled jobs: {jobs}; {len(found.statuses)} runs ({counted(states)})")
    if left:
        print(
            f"still ending after {END_S:.0f} s: {', '.join(left)}; `bandwise status {args.sweep}` notes them later"
        )
    return 0
