"""Time the methods of a study on an emulated cluster, or between real nodes: paired, interleaved, beside torch's own training.

`--on slurm` (or a profile) submits one job with a rank a task, which times the same over the network between the nodes, probed
first; its record has one link, called real. It returns at once; with `--wait` when the job has ended.

A session is a YAML file in suite/sessions; its record goes to results/sessions. Held again it leaves the earlier
records as they are and begins one of its own: net speedups are made of all that time the same (published ones from the
same kind of machine count too), what else is shown is of the newest, a whole run of the newest that trained it. Exit codes:
0 seconds were measured, 2 the request is wrong, 3 a rank was lost (what was measured is kept), 4 nothing could be measured
here: no cluster can be made, or the machine stayed disturbed; the record says why and what helps. 130 interrupted. A job
that was submitted and not waited for: 0.

`--doctor` says whether an emulated cluster can be made here and its seconds would be believable, a command a problem: exit
code 0 where one can (there may be warnings), 3 where not.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bandwise.cli import (
    FAILURE,
    OptionError,
    add_place_option,
    answer,
    duration,
    profile_of,
    results_root,
    table,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from slurm.session import Submitted
    from suite.timing.spec import SessionSpec

ENDS = (("step", "s"), ("low", "low"), ("high", "high"))
EXIT = {"done": 0, "error": 3, "disturbed": 4, "unavailable": 4, "cancelled": 130}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("session", nargs="?", help="name of a session, or path of a .yaml file")
    parser.add_argument(
        "--doctor", action="store_true", help="what this machine lacks for an emulated cluster"
    )
    parser.add_argument("--workers", metavar="N", type=int, help="with --doctor: of the cluster (default: 4)")
    parser.add_argument(
        "--links", nargs="+", metavar="RATE", help="only these of its links, as in the file, such as 100mbit"
    )
    parser.add_argument(
        "--device", choices=["cpu", "cuda"], help="where ranks compute (default: as the file says)"
    )
    add_place_option(parser, "local", "where (default: local, an emulated cluster in this machine)")
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="say what would be timed, and start nothing; slurm: show the batch script",
    )
    parser.add_argument(
        "--wait", action="store_true", help="slurm: return when the job has ended, with the table"
    )


def run(args: argparse.Namespace) -> int:
    if args.doctor == (args.session is not None):
        raise OptionError("give either a session (`bandwise session NAME`) or --doctor")
    if args.doctor:
        return _doctor(args)
    if args.workers is not None:
        raise OptionError("--workers goes with --doctor; of a session its file says how many: `world_size`")
    from suite.timing.session import Session
    from suite.timing.spec import load_session

    profile = profile_of(args.on)
    if args.wait and (profile is None or args.dry_run):
        raise OptionError("--wait belongs to --on slurm, without --dry-run")
    if args.links and profile is not None:
        raise OptionError(
            "--links are of the emulated cluster; between real nodes there is one link, the real one"
        )
    if args.device and profile is not None:
        raise OptionError(
            "--device is of the emulated cluster; between real nodes gpus_per_task of the profile decides"
        )
    spec = load_session(args.session)
    if args.device:
        spec = spec.model_copy(update={"device": args.device})
    if args.links:
        spec = spec.only_links(tuple(args.links))
    root, started = results_root(args), time.monotonic()

    def show(text: str) -> None:
        print(f"{spec.name}: {text}, {duration(time.monotonic() - started)}", file=sys.stderr, flush=True)

    if profile is not None:
        from slurm.session import submit_session, wait_for

        sent = submit_session(args.session, spec, profile, root, dry_run=args.dry_run)
        if not args.wait:
            return _submitted(args, spec, sent)
        show(f"submitted as Slurm job {sent.job}, logs in {sent.logs}")
        record = wait_for(sent, show)
    elif args.dry_run:
        return _dry_run(args, spec)
    else:
        record = Session(spec, root, show).run()
    return _ended(args, spec, root, record, duration(time.monotonic() - started))


def _ended(args: argparse.Namespace, spec: SessionSpec, root: Path, record: dict[str, Any], took: str) -> int:
    """Say what a session has measured; its exit code."""
    from suite.analysis.session_tables import MEASURED, between_nodes, repeats
    from suite.analysis.speed import case_table
    from suite.analysis.tables import rows_of
    from suite.timing.store import path_of

    path = path_of(root, record["name"], record["session_id"])
    cases = case_table(record)
    rows = rows_of(cases[(cases["n"] > 0) | (cases["n_disturbed"] > 0)])
    held = [
        one["started"]
        for one in repeats(root, record)
        if one["status"] in MEASURED and between_nodes(one) == between_nodes(record)
    ]
    kept = ("name", "session_id", "status", "reason", "fix")
    answer(
        args,
        {**{key: record[key] for key in kept}, "record": str(path), "held": held, "cases": rows},
        *_described(record, rows),
        f"{record['status']} in {took} (stated: {spec.minutes} min); record: {path}",
        f"sessions of {spec.name} that time the same: {len(held)} ({', '.join(held) or 'none'})",
    )
    return EXIT[record["status"]]


def _submitted(args: argparse.Namespace, spec: SessionSpec, sent: Submitted) -> int:
    lines = [
        f"{spec.name}: {sent.ranks} ranks submitted as Slurm job {sent.job} (`scancel {sent.job}` stops it)",
        f"its record will be {sent.record}, logs are in {sent.logs}",
    ]
    if args.dry_run:
        stated = f"{spec.name}: {sent.ranks} ranks would be submitted; stated: {spec.minutes} min"
        lines = [sent.script, stated]
    answer(args, sent.as_dict(), *lines)
    return 0


def _dry_run(args: argparse.Namespace, spec: SessionSpec) -> int:
    from suite.timing.cases import cases_of
    from suite.timing.session import estimate

    cases = cases_of(spec)
    estimated = estimate(spec, cases)
    users: dict[str, list[str]] = {}
    for arm, shardings in cases.uses.items():
        for kinds in shardings.values():
            for case_id in kinds.values():
                users.setdefault(case_id, []).append(arm)
    rows = [
        {
            "case": case.label,
            "steps_a_unit": case.unit_steps,
            "timed": "always" if case_id in cases.timed else "if it is the best",
            "arms": len(set(users.get(case_id, []))) or None,
        }
        for case_id, case in cases.by_id.items()
    ]
    answer(
        args,
        {"name": spec.name, **estimated, "case_list": rows},
        table(rows, ["case", "steps_a_unit", "timed", "arms"]),
        f"{spec.name}: {len(estimated['links'])} links ({'; '.join(estimated['links'])}), {estimated['rounds']} rounds, "
        f"{estimated['blocks_a_link']} blocks and {estimated['direct_runs_a_link']} whole runs a link; blocks take about "
        f"{duration(estimated['block_seconds'])} in all, stated for everything: {estimated['stated_minutes']} min",
    )
    return 0


def _described(record: dict[str, Any], rows: list[dict[str, Any]]) -> Iterator[str]:
    """The links in lines. rows: one a link and case, seconds a step and the speedup over the reference, with intervals."""
    from suite.links.link import measured_words

    labels = {case["case_id"]: case["label"] for case in record["cases"]}
    for link in record["links"]:
        yield f"{link['label']}{measured_words(link['link'])}, reference {labels.get(link['reference'], '-')}"
        shown = [
            {
                "case": row["case"],
                "rounds": row["n"],
                "disturbed": row["n_disturbed"],
                **{
                    f"{name}_ms": None if (taken := row[f"step_{end}"]) is None else 1000 * taken
                    for name, end in ENDS
                },
                "speedup": row["speedup"],
                "from": row["speedup_low"],
                "to": row["speedup_high"],
            }
            for row in rows
            if row["link"] == link["label"]
        ]
        yield table(shown, list(shown[0]) if shown else [])
        if link["reason"]:
            yield f"{link['status']}: {link['reason']}"
        yield ""
    if record["reason"]:
        yield f"why: {record['reason']}"
    if record["fix"]:
        yield f"what helps: {record['fix']}"


def _doctor(args: argparse.Namespace) -> int:
    """Examine this machine."""
    from suite.links.doctor import checks

    findings = checks(workers=4 if args.workers is None else args.workers)
    can = all(finding.ok for finding in findings if finding.needed)
    width, lines = max(len(finding.name) for finding in findings), []
    for finding in findings:
        mark = "ok" if finding.ok else "NO" if finding.needed else "--"
        lines.append(f"{mark}  {finding.name.ljust(width)}  {finding.detail}")
        if finding.fix:
            lines.append(f"    {' ' * width}  do: {finding.fix}")
    lines.append(
        "an emulated cluster can be made here"
        if can
        else "no emulated cluster can be made here: see NO above"
    )
    answer(args, {"cluster": can, "findings": [asdict(finding) for finding in findings]}, *lines)
    return 0 if can else FAILURE
