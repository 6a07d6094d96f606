"""Train what is missing of a sweep, here or on a cluster. Safe to interrupt: the same command goes on where it stopped.

`--tune` searches the learning rates of the sweep instead and rewrites its file of rates. On a cluster the search goes on by
itself, round by round; given again when it has ended, the same command writes the rates. `--then session,report` has
jobs follow the runs: the timing sessions of the sweep, each alone on a node, and the report.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
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
    from slurm.submit import Submission
    from suite.runs.plan import Plan
    from suite.runs.spec import RunSpec
    from suite.runs.store import Store
    from suite.runs.sweep import Sweep
    from suite.training.pool import Slot, Tally

NAME = "sweep"
SETTLED_WELL = frozenset({"done", "diverged"})
SHOWN_FAILURES = 10
ORDER = ("runs", "session", "report")
"""Of the stages after `--then`."""


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
        "--then",
        metavar="STAGE,STAGE",
        help="slurm: what follows: runs (after --tune), session[:NAME], report",
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
    if args.then and profile is None:
        raise OptionError("--then belongs to --on slurm; here give one command after the other")
    if (args.tune or args.then) and (args.only or args.wait):
        raise OptionError(
            "--tune and --then are about all arms and return at once: leave --only and --wait out"
        )
    if args.tune and sweep.borrows_rates:
        raise OptionError(
            f"{sweep.name} takes its rates from {sweep.rates_path.name}, which `{sweep.tuned_by}` writes and this would write "
            f"over: give it a file of its own by the key `rates: {sweep.path.stem}-lr.yaml` in {sweep.path.name}"
        )
    if profile is not None and (args.tune or args.then):
        return _study(args, sweep, profile, root)
    if args.tune:
        return _tune(args, sweep, Store(root), places)
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


def _tune(args: argparse.Namespace, sweep: Sweep, store: Store, places: Sequence[Slot]) -> int:
    from suite.runs.plan import open_specs
    from suite.runs.sweep import write_rates
    from suite.runs.tuning import tune

    def carry_out(specs: Sequence[Any]) -> None:
        missing = open_specs(specs, store)
        print(f"{sweep.name} --tune: {len(specs)} trials, {len(missing)} to do", file=sys.stderr)
        if _carry_out(f"{sweep.name} --tune", missing, store, places).interrupted:
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


def _study(args: argparse.Namespace, sweep: Sweep, profile: Profile, root: Path) -> int:
    stages = _stages_of(sweep, args.tune, args.then)
    answer = _submit_study(sweep, profile, root, stages, dry_run=args.dry_run)
    if args.json:
        print_json(answer)
    else:
        print("\n".join(_said(answer, args.sweep)))
    return 0


def _submit(args: argparse.Namespace, sweep: Sweep, profile: Profile, root: Path) -> int:
    from slurm.submit import submit_runs
    from suite.runs.plan import make_plan, summary
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
    states = _wait(plan, submission, root)
    if args.json:
        print_json({**submission.as_dict(), "states": states})
    else:
        print(f"{sweep.name}: {counted(states)}")
    return 0 if all(state in SETTLED_WELL for state in states) else 3


def _wait(plan: Plan, submission: Submission, root: Path) -> dict[str, int]:
    """Wait for the jobs; returns how many runs of the sweep are in which state then."""
    from slurm.jobs import run_states, settle
    from slurm.submit import wait
    from suite.runs.plan import statuses
    from suite.runs.result import counts
    from suite.runs.store import Store

    line, store = ProgressLine(plan.sweep.name), Store(root)

    def show(jobs: int) -> None:
        found = statuses(plan, store).values()
        ended = sum(status.terminal for status in found)
        line.runs(ended, len(found), ended / len(found), counts(found), f"{jobs} jobs in the queue")

    try:
        wait(submission.job_ids, show)
    finally:
        line.close()
    found = run_states(plan.specs, store)
    settle(found, store)
    return counts(found.statuses.values())


# ---- stages on a cluster, which follow each other without anybody waiting


def _stages_of(sweep: Sweep, tune: bool, then: str | None) -> tuple[str, ...]:
    """The stages that were asked for, in their order. Raises `OptionError`.

    then: words of `ORDER`, separated by commas; ``session`` alone stands for the sessions of the sweep that reports show.
    """
    from suite.timing.spec import load_session, sessions_of

    words = [word for word in (then or "").split(",") if word]
    kinds = [word.partition(":")[0] for word in words]
    if wrong := [word for word, kind in zip(words, kinds, strict=True) if kind not in ORDER]:
        raise OptionError(f"--then {wrong[0]}: known are {', '.join(ORDER)}, and session:NAME")
    if kinds != sorted(kinds, key=ORDER.index):
        raise OptionError(f"--then {then}: they follow each other as {', '.join(ORDER)}")
    found = [] if "runs" in kinds or (tune and not words) else ["runs"]
    for word in words:
        if word == "session":
            own = sessions_of(sweep.name)
            if not own:
                raise OptionError(f"--then session: no session of {sweep.name} ships; name one: session:NAME")
            found += [f"session:{name}" for name in own]
        else:
            if word.startswith("session:"):
                load_session(word.partition(":")[2])
            found.append(word)
    return (*(["tune"] if tune else []), *dict.fromkeys(found))


def _submit_study(
    sweep: Sweep, profile: Profile, root: Path, stages: Sequence[str], *, dry_run: bool
) -> dict[str, Any]:
    """Submit the stages, or say what would be submitted. Returns plain data: see `_said`."""
    from slurm.stage import advance, send_rest
    from slurm.study import new_study, under_way
    from suite.runs.sweep import write_rates

    going_on = None if dry_run else under_way(sweep, root, stages)
    study = going_on or new_study(sweep, profile, root, stages, dry_run=dry_run)
    answer: dict[str, Any] = {"sweep": sweep.name, "stages": list(stages), "tuned": None, "trials": 0}
    if dry_run:
        return {**answer, **_planned(sweep, profile, root, study)}
    if stages[0] == "tune":
        found, sent = advance(study, 0, again=True)
        answer["trials"] = found.trials
        if found.tuned is not None:
            write_rates(sweep, found.tuned)
            answer["tuned"] = str(sweep.rates_path)
    else:
        sent = send_rest(study, 0, sweep)
    rows = [{"stage": one.stage, "job": one.job} for one in sent]
    return {**answer, "study": str(study.path), "sent": rows}


def _planned(sweep: Sweep, profile: Profile, root: Path, study: Any) -> dict[str, Any]:
    """The scripts of a dry run, in their order."""
    from slurm.stage import search
    from slurm.study import PLACEHOLDER, send_stages
    from slurm.submit import submit_runs
    from suite.runs.plan import make_plan

    scripts: list[str] = []
    trials, first = 0, 0
    if study.stages[0] == "tune":
        found = search(sweep, profile, root, again=True, dry_run=True)
        scripts += found.submission.scripts if found.submission else ()
        scripts += [sent.script or "" for sent in send_stages(study, 0, [PLACEHOLDER], dry_run=True)[:1]]
        trials, first = found.trials, 1
    if study.stages[first : first + 1] == ("runs",):
        if first == 0:
            plan = make_plan(sweep)
            runs = submit_runs(plan.specs, profile, root, sweep=sweep.name, called=sweep.called, dry_run=True)
            scripts += runs.scripts
        first += 1
    scripts += [sent.script or "" for sent in send_stages(study, first, [PLACEHOLDER], dry_run=True)]
    return {"trials": trials, "scripts": scripts}


def _said(answer: dict[str, Any], called: str) -> list[str]:
    """What was submitted, or would be, in lines."""
    stages = " -> ".join(answer["stages"])
    if "scripts" in answer:
        runs = "; the arrays of its runs follow the rates" if {"tune", "runs"} <= {*answer["stages"]} else ""
        return [*answer["scripts"], f"{answer['sweep']}: {stages} would be submitted{runs}"]
    lines = []
    if answer["tuned"]:
        lines.append(f"learning rates written to {answer['tuned']}")
    elif answer["trials"]:
        lines.append(
            f"{answer['trials']} trials of learning rates are under way; the same command, given when they have ended, "
            "writes the rates beside the sweep"
        )
    lines += [f"{row['stage']}: Slurm job {row['job']}" for row in answer["sent"]]
    return [f"{answer['sweep']}: {stages}", *lines, f"look with `bandwise status {called}`"]
