"""Train what is missing of a sweep, here or on a cluster. Safe to interrupt: the same command goes on where it stopped.

    bandwise sweep digits --dry-run                              what it would do: runs, power, disk, time
    bandwise sweep digits --retry oom,node_lost --on large.yaml  only runs that ended so

`--tune` searches the learning rates of the sweep instead and rewrites its file of rates; on a cluster it stays until the
trials of each round have ended. `--retry` tries again what ended by circumstance: out of memory, out of time, with a lost
node, by a fault. A run that has a checkpoint goes on from it; runs that wait in a job are left to it.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bandwise.cli import (
    OptionError,
    ProgressLine,
    add_place_option,
    answer,
    counted,
    duration,
    profile_of,
    results_root,
    table,
)

if TYPE_CHECKING:
    from slurm.profile import Profile
    from suite.runs.plan import Plan
    from suite.runs.spec import RunSpec
    from suite.runs.store import Status, Store
    from suite.runs.sweep import Sweep
    from suite.training.execute import Slot, Tally

SETTLED_WELL = frozenset({"done", "diverged"})
SHOWN_FAILURES = 10


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("sweep", help="name of a sweep, or path of a .yaml file")
    add_place_option(
        parser, None, "where (default: local; with --retry as the sweep was submitted last, if it was)"
    )
    parser.add_argument(
        "--tune", action="store_true", help="search learning rates and rewrite the file of rates"
    )
    parser.add_argument(
        "--retry",
        nargs="?",
        const="",
        metavar="WORD,WORD",
        help="only runs that ended so (without a word: all that did not end by the method itself)",
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
        "--dry-run", action="store_true", help="show the plan, on slurm the batch scripts too; train nothing"
    )
    parser.add_argument("--runs", action="store_true", help="with --dry-run: list every run")
    parser.add_argument(
        "--wait", action="store_true", help="slurm: return when the jobs have left the queue, not at once"
    )


def run(args: argparse.Namespace) -> int:
    from suite.runs.plan import make_plan, refuse_underpowered
    from suite.runs.store import Store
    from suite.runs.sweep import load_sweep

    chosen = None if args.retry is None else _states(args.retry)
    sweep, store = load_sweep(args.sweep), Store(results_root(args))
    if chosen is not None and args.on is None and args.jobs is None and args.gpus is None:
        profile = _last_profile(sweep.name, store)
    else:
        profile = profile_of(args.on or "local")
    _agree(args, profile)
    if args.tune and sweep.borrows_rates:
        raise OptionError(
            f"{sweep.name} takes its rates from {sweep.rates_path.name}, which `{sweep.tuned_by}` writes and this would write "
            f"over: give it a file of its own by the key `rates: {sweep.path.stem}-lr.yaml` in {sweep.path.name}"
        )
    if args.dry_run:
        return _dry_run(args, make_plan(sweep, args.only, without_data=profile is None), profile, store)
    if args.tune:
        return _tune(args, sweep, store, () if profile else _slots(args), profile)
    if chosen is None:
        if sweep.gates:
            from suite.analysis.gates import refuse_unpassed

            refuse_unpassed(sweep)
        refuse_underpowered(sweep)
    plan = make_plan(sweep, args.only)
    if profile is not None:
        return _submit(args, plan, profile, store, chosen)
    return _locally(args, plan, store, _slots(args), chosen)


def _agree(args: argparse.Namespace, profile: Profile | None) -> None:
    """Raises `OptionError` for options that do not go together."""
    if profile is not None and (args.jobs is not None or args.gpus is not None):
        raise OptionError("--jobs and --gpus are for this machine; on Slurm the profile says what a job has")
    if args.wait and (profile is None or args.dry_run):
        raise OptionError("--wait belongs to --on slurm, without --dry-run")
    if args.tune and (args.only or args.dry_run):
        raise OptionError(
            "--tune is about all arms, and its later trials follow from earlier ones: leave --only and --dry-run out"
        )
    if args.retry is not None and (args.tune or args.dry_run):
        raise OptionError(
            "--retry goes with neither --tune nor --dry-run: `bandwise status` shows what failed"
        )


def _states(text: str) -> frozenset[str]:
    """The words after ``--retry``. Raises `OptionError` for one that names no failure."""
    from suite.runs.store import CIRCUMSTANCE

    chosen = frozenset(word for word in text.split(",") if word) or CIRCUMSTANCE
    if wrong := sorted(chosen - CIRCUMSTANCE):
        raise OptionError(
            f"--retry {','.join(wrong)}: nothing to try again; known: {', '.join(sorted(CIRCUMSTANCE))}"
        )
    return chosen


def _last_profile(sweep: str, store: Store) -> Profile | None:
    """The profile of the sweep's last submission, None where there was none."""
    from slurm.profile import Profile
    from slurm.states import records

    found = records(store.root, sweep)
    return Profile.from_dict(found[-1].profile) if found else None


# ---- what it would do


def _dry_run(args: argparse.Namespace, plan: Plan, profile: Profile | None, store: Store) -> int:
    """Show the plan, on Slurm with its batch scripts."""
    from suite.runs.plan import power_of, run_rows, statuses, summary

    states = statuses(plan, store)
    found = summary(plan, store, states)
    if plan.sweep.headline:
        known = [power for power in power_of(plan.sweep) if power.df]
        found["power"] = [{**dataclasses.asdict(power), "enough": power.enough} for power in known]
    if plan.sweep.gates:
        from suite.analysis.gates import gate_rows

        found["gates"] = gate_rows(plan.sweep)
    if args.runs or args.json:
        found["list"] = run_rows(plan, states)
    submission = None
    if profile is not None:
        from slurm.submit import submit_runs

        submission = submit_runs(
            plan.specs, profile, store.root, sweep=plan.sweep.name, called=plan.sweep.called, dry_run=True
        )
    lines = described(found)
    if args.runs:
        lines.append(table(found["list"], ["run_id", "panel", "arm", "steps", "seed", "state", "reason"]))
    if submission is not None:
        lines.append(str(submission))
    answer(args, found if submission is None else {**submission.as_dict(), "plan": found}, *lines)
    return 0


def described(found: Mapping[str, Any]) -> list[str]:
    """The summary of a plan in lines."""
    lines = [
        f"{found['sweep']}: {found['title']}",
        f"{found['runs']} runs of {_lengths(found['ladder'])} steps ({counted(found['states'])}), {found['to_do']} to do",
    ]
    for panel in found["panels"]:
        p = f"smallest p after Holm {panel['smallest_p']:.2g}" if found["ranks"] else _without_ranks(found)
        lines.append(
            f"  {panel['panel']}: {panel['arms']} arms, {found['seeds']} seeds, {panel['comparisons']} comparisons, {p}"
        )
    for power in found.get("power", ()):
        lines.append(
            f"  {power['panel']}: intervals of a difference will be +-{power['half_width']:.3g} (sd {power['sd']:.3g} in tuning, "
            f"{power['df']} degrees of freedom); the margin is {power['margin']:.3g}"
        )
    if "gates" in found:
        from suite.analysis.gates import gate_words

        lines.extend(f"  gate {gate_words(row)}" for row in found["gates"])
    for left_out in found["skipped"]:
        lines.append(
            f"  left out: {left_out['arm']} in {left_out['panel']}, {left_out['runs']} runs: {left_out['reason']}"
        )
    lines.extend(f"  warning: {warning}" for warning in found["warnings"])
    basis = "by finished runs" if found["core_seconds_measured"] else "a rough guess until runs have finished"
    sent = found["wire_bytes_left"]
    traffic = "" if sent is None else f", and sends {sent / 1e6:.1f} MB in all"
    lines.append(
        f"needs about {found['disk_bytes'] / 1e6:.1f} MB of disk and {duration(found['core_seconds_left'])} on one core "
        f"({basis}){traffic}"
    )
    if found["stale_code"]:
        lines.append(
            f"{found['stale_code']} results are older than the code of their method (its version did not move)"
        )
    return lines


def _without_ranks(found: Mapping[str, Any]) -> str:
    """What so many seeds can show where nobody is ranked."""
    if found["seeds"] >= found["seeds_for_intervals"]:
        return "intervals, no ranks"
    return f"means alone: an interval needs {found['seeds_for_intervals']} seeds, and nobody is called equal without one"


def _lengths(steps_by_budget: Sequence[int]) -> str:
    """The lengths of the runs: `100`, or with several budgets `50, 71, 100 and 141`."""
    first = ", ".join(str(steps) for steps in steps_by_budget[:-1])
    return f"{first} and {steps_by_budget[-1]}" if first else str(steps_by_budget[-1])


# ---- training


def _locally(
    args: argparse.Namespace, plan: Plan, store: Store, places: Sequence[Slot], chosen: frozenset[str] | None
) -> int:
    from suite.runs.plan import open_specs, statuses, warnings_of
    from suite.runs.store import counts

    sweep = plan.sweep
    if chosen is None:
        missing = open_specs(plan.specs, store)
    else:
        from slurm.states import run_states, settle

        found = run_states(plan.specs, store)
        settle(found, store)
        missing = [spec for spec in plan.specs if found.statuses[spec.run_id].state in chosen]
    print(
        f"{sweep.name}: {len(plan.specs)} runs, {len(missing)} to do, results in {store.root}",
        file=sys.stderr,
    )
    for warning in warnings_of(plan):
        print(f"warning: {warning}", file=sys.stderr)
    tally = _carry_out(sweep.name, missing, store, places)
    states = counts(statuses(plan, store).values())
    failures = [dict(zip(("run_id", "state", "reason"), one, strict=True)) for one in tally.failures]
    lines = ["  {run_id} {state}: {reason}".format(**one) for one in failures[:SHOWN_FAILURES]]
    if len(failures) > SHOWN_FAILURES:
        lines.append(f"  and {len(failures) - SHOWN_FAILURES} more: {sweep.command('status')}")
    told = {"sweep": sweep.name, "states": states, "ran": tally.runs, "interrupted": tally.interrupted}
    answer(args, {**told, "failures": failures}, f"{sweep.name}: {counted(states)}", *lines)
    if tally.interrupted:
        return 130
    return 0 if all(state in SETTLED_WELL for state in states) else 3


def _carry_out(label: str, specs: Sequence[RunSpec], store: Store, places: Sequence[Slot]) -> Tally:
    from suite.runs.plan import Estimator
    from suite.training.execute import run_local

    line = ProgressLine(label)

    def show(tally: Tally) -> None:
        line.runs(tally.runs, tally.runs_total, tally.share, tally.states, tally.note)

    def samples(spec: RunSpec) -> float:
        return float(spec.steps * spec.world_size * spec.batch_size)

    try:
        # what a processor takes would be measured first, and says nothing of a GPU
        cost = samples if any(places) else Estimator().seconds
        return run_local(specs, store, places, show, cost=cost)
    finally:
        line.close()


def _slots(args: argparse.Namespace) -> tuple[Slot, ...]:
    """The slots that were asked for."""
    from suite.training.execute import slots

    if args.jobs is not None and args.jobs < 1:
        raise OptionError(f"--jobs {args.jobs}: give at least 1")
    gpus = [word for word in (args.gpus or "").split(",") if word]
    if args.gpus is not None and not gpus:
        raise OptionError("--gpus: name at least one, such as 0,1")
    if gpus:
        import torch

        from suite.training.train import no_gpu

        if not torch.cuda.is_available():
            raise OptionError(f"--gpus {args.gpus}: {no_gpu()}")
    return slots(args.jobs, gpus)


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
            from slurm.submit import submit_runs

            sent = submit_runs(specs, profile, store.root, sweep=sweep.name, called=sweep.called)
            print(sent, file=sys.stderr)
            _wait(sweep.name, specs, store)  # for the jobs that hold any of the runs
        elif _carry_out(f"{sweep.name} --tune", missing, store, places).interrupted:
            raise KeyboardInterrupt

    def note(text: str) -> None:
        print(text, file=sys.stderr)

    found = tune(sweep, store, carry_out, note)
    write_rates(sweep, found)
    if sweep.gates:
        from suite.analysis.gates import measure_tables

        measure_tables(sweep, note)
    rows: list[dict[str, Any]] = [
        {
            "workload": t.workload,
            "sharding": t.sharding,
            "world_size": t.world_size,
            "arm": t.arm,
            "lr": t.lr,
            "vertex": t.vertex,
            "options": t.options,
            "edge": t.edge,
            "failed": {trial.label: trial.status for trial in t.trials if trial.status != "done"},
        }
        for t in found
    ]
    edges = [f"{row['arm']} ({row['sharding']}, {row['edge']})" for row in rows if row["edge"] != "none"]
    lines = []
    for row in rows:
        if failed := ", ".join(f"{lr} ({status})" for lr, status in row["failed"].items()):
            where = f"{row['arm']} ({row['sharding']}) at {failed}"
            lines.append(f"chosen among the others, since trials failed: {where}")
    answer(
        args,
        {"sweep": sweep.name, "rates": str(sweep.rates_path), "tuned": rows},
        f"{len(rows)} learning rates written to {sweep.rates_path}",
        f"on an edge of the grid: {', '.join(edges) or 'none'}",
        *lines,
    )
    return 0


def _submit(
    args: argparse.Namespace, plan: Plan, profile: Profile, store: Store, chosen: frozenset[str] | None
) -> int:
    from slurm.submit import OPEN, submit_runs
    from suite.runs.store import counts

    sweep = plan.sweep
    submission = submit_runs(
        plan.specs, profile, store.root, sweep=sweep.name, called=sweep.called, only=chosen or OPEN
    )
    if not args.wait:
        answer(args, submission.as_dict(), str(submission))
        return 0
    print(submission, file=sys.stderr)
    states = counts(_wait(sweep.name, plan.specs, store).values())
    answer(args, {**submission.as_dict(), "states": states}, f"{sweep.name}: {counted(states)}")
    return 0 if all(state in SETTLED_WELL for state in states) else 3


def _wait(label: str, specs: Sequence[RunSpec], store: Store) -> Mapping[str, Status]:
    """Wait for the jobs that hold the runs; how each stands then."""
    from slurm.states import RunStates, wait
    from suite.runs.store import counts

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
