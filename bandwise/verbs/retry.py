"""Try runs of a sweep again that ended by circumstance: out of memory, out of time, with a lost node, by a fault.

    bandwise retry digits --status oom,node_lost --on big-memory.yaml

They are submitted as they were (the profile of the sweep's last submission) unless `--on` says otherwise; a run that has a
checkpoint goes on from it. Runs that wait in a job are left to it. Nothing else of the sweep is touched: `bandwise sweep`
does all that is missing.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from bandwise.options import (
    OptionError,
    add_place_option,
    add_results_option,
    profile_of,
    require_checkout,
    results_root,
)
from bandwise.output import counted, print_json

if TYPE_CHECKING:
    from slurm.profile import Profile
    from suite.runs.spec import RunSpec
    from suite.runs.store import Store

NAME = "retry"


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the verb."""
    parser.add_argument("sweep", help="name of a sweep, or path of a .yaml file")
    parser.add_argument(
        "--status", metavar="WORD,WORD", help="which (default: all that did not end by the method itself)"
    )
    parser.add_argument("--only", metavar="GLOB", help="only the arms whose label matches")
    add_place_option(parser, None, "where (default: as it was submitted last, else here)")
    add_results_option(parser)


def run(args: argparse.Namespace) -> int:
    """Retry."""
    require_checkout(NAME)
    from slurm.submit import submit_runs
    from suite.runs.plan import make_plan
    from suite.runs.store import Store
    from suite.runs.sweep import load_sweep

    chosen = _states(args.status)
    plan = make_plan(load_sweep(args.sweep), args.only)
    store = Store(results_root(args))
    profile = _last_profile(plan.sweep.name, store) if args.on is None else profile_of(args.on)
    if profile is None:
        return _here(args, plan.specs, chosen, store)
    submission = submit_runs(
        plan.specs, profile, store.root, sweep=plan.sweep.name, called=plan.sweep.called, only=chosen
    )
    if args.json:
        print_json(submission.as_dict())
    else:
        print(submission)
    return 0


def _states(text: str | None) -> frozenset[str]:
    """The words after ``--status``. Raises `OptionError` for one that names no failure."""
    from suite.runs.result import CIRCUMSTANCE

    chosen = frozenset(word for word in (text or "").split(",") if word) or CIRCUMSTANCE
    if wrong := sorted(chosen - CIRCUMSTANCE):
        raise OptionError(
            f"--status {','.join(wrong)}: nothing to try again; known: {', '.join(sorted(CIRCUMSTANCE))}"
        )
    return chosen


def _last_profile(sweep: str, store: Store) -> Profile | None:
    """The profile of the sweep's last submission, None where there was none."""
    from slurm.profile import Profile
    from slurm.records import records

    found = records(store.root, sweep)
    return Profile.from_dict(found[-1].profile) if found else None


def _here(args: argparse.Namespace, specs: list[RunSpec], chosen: frozenset[str], store: Store) -> int:
    """Try them again in the local pool."""
    from slurm.states import run_states, settle
    from suite.training.pool import run_local

    found = run_states(specs, store)
    settle(found, store)
    again = [spec for spec in specs if found.statuses[spec.run_id].state in chosen]
    tally = run_local(again, store)
    if args.json:
        print_json({"sweep": args.sweep, "ran": tally.runs, "states": tally.states})
    else:
        print(f"{args.sweep}: {tally.runs} tried again ({counted(tally.states)})")
    return 130 if tally.interrupted else 0
