"""Train what is missing of a sweep, here or on a cluster. Safe to interrupt: the same command goes on where it stopped.

`--tune` searches the learning rates of the sweep instead and rewrites its file of rates; on a cluster it stays until the
trials of each round have ended.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bandwise.options import (
    OptionError,
    add_place_option,
    add_results_option,
    profile_of,
    require_checkout,
    results_root,
)
from bandwise.output import ProgressLine, counted, print_json

if TYPE_CHECKING:
    from slurm.profile import Profile
    from suite.runs.result import Status
    from suite.runs.spec import RunSpec
    from suite.runs.store import Store
    from suite.runs.sweep import Sweep
    from suite.training.pool import Slot, Tally

NAME = "sweep"
SETTLED_WELL = frozenset({"done", "diverged"})
SHOWN_FAILURES = 10


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the verb."""
    parser.add_argument("sweep", help="name of a sweep, or path of a .yaml file")
    add_place_option(parser, "local", "where (default: local)")
    parser.add_argument(
        "--tune", action="store_true", help="search learning rates and rewrite the file of rates"
    )
    parser.add_argument("--only", metavar="GLOB", help="only the arms whose label matches")
    parser.add_argument(
        "--jobs",
        type=int,
        metavar="N",
        help="local: worker processes, one thread each (default: one a core, or one a GPU of --gpus)",
    )
    parser.add_argument(
        "--gpus", metavar="ID,ID", help="local: deal these GPUs to the workers; each computes its runs on one"
    )
    parser.add_argument(
        "--cores", type=int, metavar="N", help="local: bind each worker to N cores of its own"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="slurm: show the plan and the batch scripts, submit nothing"
    )
    parser.add_argument(
        "--wait", action="store_true", help="slurm: return when the jobs have left the queue, not at once"
    )
    add_results_option(parser)


def run(args: argparse.Namespace) -> int:
    """Sweep."""
    require_checkout(NAME)
    from suite.runs.store import Store
    from suite.runs.sweep import load_sweep

    profile = profile_of(args.on)
    if profile is not None and (args.jobs, args.gpus, args.cores) != (None, None, None):
        raise OptionError(
            "--jobs, --gpus, --cores are for this machine; on Slurm the profile says what a job has"
        )
    places = _slots(args)
    if args.dry_run and profile is None:
        raise OptionError("--dry-run belongs to --on slurm; `bandwise plan` shows what a sweep would do here")
    if args.wait and (profile is None or args.dry_run):
        raise OptionError("--wait belongs to --on slurm, without --dry-run")
    sweep, root = load_sweep(args.sweep), results_root(args)
    if args.tune and (args.only or args.dry_run):
        raise OptionError(
            "--tune is about all arms, and its later trials follow from earlier ones: leave --only and --dry-run out"
        )
    if args.tune and sweep.borrows_rates:
        raise OptionError(
            f"{sweep.name} takes its rates from {sweep.rates_path.name}, which `{sweep.tuned_by}` writes and this would write "
            f"over: give it a file of its own by the key `rates: {sweep.path.stem}-lr.yaml` in {sweep.path.name}"
        )
    if args.tune:
        return _tune(args, sweep, Store(root), places, profile)
    if sweep.headline:
        from suite.runs.plan import refuse_underpowered

        refuse_underpowered(sweep)
    if profile is not None:
        return _submit(args, sweep, profile, root)
    return _locally(args, sweep, Store(root), places)


def _locally(args: argparse.Namespace, sweep: Sweep, store: Store, places: Sequence[Slot]) -> int:
    from suite.runs.plan import make_plan, open_specs, statuses, warnings_of
    from suite.runs.result import counts

    plan = make_plan(sweep, args.only)
    missing = open_specs(plan.specs, store)
    print(
        f"{sweep.name}: {len(plan.specs)} runs, {len(missing)} to do, results in {store.root}",
        file=sys.stderr,
    )
    for warning in warnings_of(plan):
        print(f"warning: {warning}", file=sys.stderr)
    tally = _carry_out(sweep.name, missing, store, places)
    states = counts(statuses(plan, store).values())
    if args.json:
        print_json(
            {
                "sweep": sweep.name,
                "states": states,
                "ran": tally.runs,
                "interrupted": tally.interrupted,
                "failures": [
                    dict(zip(("run_id", "state", "reason"), f, strict=True)) for f in tally.failures
                ],
            }
        )
    else:
        print(f"{sweep.name}: {counted(states)}")
        for run_id, state, reason in tally.failures[:SHOWN_FAILURES]:
            print(f"  {run_id} {state}: {reason}")
        if len(tally.failures) > SHOWN_FAILURES:
            print(f"  and {len(tally.failures) - SHOWN_FAILURES} more: {sweep.command('status')}")
    if tally.interrupted:
        return 130
    return 0 if all(state in SETTLED_WELL for state in states) else 3


def _carry_out(label: str, specs: Sequence[RunSpec], store: Store, places: Sequence[Slot]) -> Tally:
    from suite.runs.plan import Estimator
    from suite.training.pool import run_local

    line = ProgressLine(label)

    def show(tally: Tally) -> None:
        line.runs(tally.runs, tally.runs_total, tally.share, tally.states, tally.note)

    try:
        return run_local(specs, store, places, show, cost=Estimator().seconds)
    finally:
        line.close()


def _slots(args: argparse.Namespace) -> tuple[Slot, ...]:
    """The slots that were asked for."""
    from suite.training.pool import slots

    for name in ("jobs", "cores"):
        if (given := getattr(args, name)) is not None and given < 1:
            raise OptionError(f"--{name} {given}: give at least 1")
    gpus = [word for word in (args.gpus or "").split(",") if word]
    if args.gpus is not None and not gpus:
        raise OptionError("--gpus: name at least one, such as 0,1")
    if gpus:
        import torch

        from suite.training.train import no_gpu

        if not torch.cuda.is_available():
            raise OptionError(f"--gpus {args.gpus}: {no_gpu()}")
    return slots(args.jobs, gpus, args.cores or 0)


def _tune(
    args: argparse.Namespace, sweep: Sweep, store: Store, places: Sequence[Slot], profile: Profile | None
) -> int:
    from suite.runs.plan import open_specs
    from suite.runs.sweep import write_rates
    from suite.runs.tuning import tune

    def carry_out(specs: Sequence[Any]) -> None:
        missing = open_specs(specs, store)
        print(f"{sweep.name} --tune: {len(specs)} trials, {len(missing)} to do", file=sys.stderr)
        if profile is not None:
            _on_slurm(sweep, specs, profile, store)
        elif _carry_out(f"{sweep.name} --tune", missing, store, places).interrupted:
            raise KeyboardInterrupt

    found = tune(sweep, store, carry_out, lambda text: print(text, file=sys.stderr))
    write_rates(sweep, found)
    rows: list[dict[str, Any]] = [
        {
            "workload": t.workload,
            "sharding": t.sharding,
            "world_size": t.world_size,
            "arm": t.arm,
            "lr": t.lr,
            "options": t.options,
            "edge": t.edge,
            "failed": {trial.label: trial.status for trial in t.trials if trial.status != "done"},
        }
        for t in found
    ]
    if args.json:
        print_json({"sweep": sweep.name, "rates": str(sweep.rates_path), "tuned": rows})
    else:
        edges = [f"{row['arm']} ({row['sharding']}, {row['edge']})" for row in rows if row["edge"] != "none"]
        print(f"{len(rows)} learning rates written to {sweep.rates_path}")
        print("on an edge of the grid: " + (", ".join(edges) or "none"))
        for row in rows:
            if failed := ", ".join(f"{lr} ({status})" for lr, status in row["failed"].items()):
                print(
                    f"chosen among the others, since trials failed: {row['arm']} ({row['sharding']}) at {failed}"
                )
    return 0


def _on_slurm(sweep: Sweep, specs: Sequence[RunSpec], profile: Profile, store: Store) -> None:
    """Submit what is missing and wait for the jobs that hold any of the runs."""
    from slurm.submit import submit_runs

    print(submit_runs(specs, profile, store.root, sweep=sweep.name, called=sweep.called), file=sys.stderr)
    _wait(sweep.name, specs, store)


def _submit(args: argparse.Namespace, sweep: Sweep, profile: Profile, root: Path) -> int:
    from slurm.submit import submit_runs
    from suite.runs.plan import make_plan, summary
    from suite.runs.result import counts
    from suite.runs.store import Store

    plan = make_plan(sweep, args.only)
    submission = submit_runs(
        plan.specs, profile, root, sweep=sweep.name, called=sweep.called, dry_run=args.dry_run
    )
    if args.dry_run:
        from bandwise.verbs.plan import described

        found = summary(plan, Store(root))
        if args.json:
            print_json({**submission.as_dict(), "plan": found})
        else:
            print("\n".join([*described(found), str(submission)]))
        return 0
    if not args.wait:
        if args.json:
            print_json(submission.as_dict())
        else:
            print(submission)
        return 0
    print(submission, file=sys.stderr)
    states = counts(_wait(sweep.name, plan.specs, Store(root)).values())
    if args.json:
        print_json({**submission.as_dict(), "states": states})
    else:
        print(f"{sweep.name}: {counted(states)}")
    return 0 if all(state in SETTLED_WELL for state in states) else 3


def _wait(label: str, specs: Sequence[RunSpec], store: Store) -> Mapping[str, Status]:
    """Wait for the jobs that hold the runs; how each stands then."""
    from slurm.states import RunStates, wait
    from suite.runs.result import counts

    line = ProgressLine(label)

    def show(found: RunStates) -> None:
        ended = sum(status.terminal for status in found.statuses.values())
        share = ended / len(found.statuses)
        line.runs(
            ended, len(found.statuses), share, counts(found.statuses.values()), f"{len(found.jobs)} jobs"
        )

    try:
        return wait(specs, store, show).statuses
    finally:
        line.close()
