"""``sweep --tune`` and ``sweep --then`` on a cluster: stages that follow each other without anybody waiting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from bandwise.options import OptionError

if TYPE_CHECKING:
    from pathlib import Path

    from slurm.profile import Profile
    from suite.runs.sweep import Sweep

ORDER = ("runs", "session", "report")


def stages_of(sweep: Sweep, tune: bool, then: str | None) -> tuple[str, ...]:
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


def submit_study(
    sweep: Sweep, profile: Profile, root: Path, stages: Sequence[str], *, dry_run: bool
) -> dict[str, Any]:
    """Submit the stages, or say what would be submitted. Returns plain data: see `described`."""
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


def described(answer: dict[str, Any], called: str) -> list[str]:
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
