"""Whether results can be relied on: complete, readable, unmixed, up to date, and the tables those that the runs give.

bandwise check digits         one sweep
bandwise check                every sweep that has tables, every run folder, all that is published
bandwise check --strict       warnings count too: stale sources, mixed commits or machines, uncommitted changes

Every finding says what to do. Exit codes: 0 nothing is wrong, 3 something is.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from bandwise.options import add_results_option, require_checkout, results_root
from bandwise.output import print_json

if TYPE_CHECKING:
    from suite.runs.provenance import Finding

NAME = "check"
WRONG = 3


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the verb."""
    parser.add_argument(
        "sweep", nargs="?", help="name of a sweep, or path of its .yaml file (default: everything)"
    )
    parser.add_argument("--strict", action="store_true", help="warnings are wrong too")
    add_results_option(parser)


def run(args: argparse.Namespace) -> int:
    """Check."""
    require_checkout(NAME)
    from suite.analysis.check import check_published, check_store
    from suite.runs.provenance import ERROR

    root = results_root(args)
    sweeps = [args.sweep] if args.sweep else list(_with_tables(root))
    findings: list[tuple[str, Finding]] = []
    unchecked: list[str] = []
    if not args.sweep:
        findings += [("runs", finding) for finding in check_store(root)]
        findings += [("published", finding) for finding in check_published(root)]
    for sweep in sweeps:
        _sweep(root, sweep, findings, unchecked)
    wrong = [finding for _, finding in findings if args.strict or finding.level == ERROR]
    if args.json:
        listed = [{"of": of, **finding.as_dict()} for of, finding in findings]
        print_json({"checked": sweeps, "wrong": len(wrong), "findings": listed, "not_checked": unchecked})
    else:
        for of, finding in findings:
            print(f"{finding.level}: {of}: {finding.rule}: {finding.subject}: {finding.what}; {finding.fix}")
        for line in unchecked:
            print(f"not checked: {line}")
        errors = sum(finding.level == ERROR for _, finding in findings)
        names = ", ".join(sweeps) or "no sweep has tables"
        print(f"{names}: {errors} errors, {len(findings) - errors} warnings, {len(unchecked)} not checked")
    return WRONG if wrong else 0


def _with_tables(root: Path) -> Iterator[str]:
    """Names of the shipped sweeps that have tables, made here or published, in order."""
    from suite.analysis.published import studies_of
    from suite.runs.sweep import sweep_names

    known = set(studies_of(root))
    yield from (name for name in sweep_names() if name in known)


def _sweep(root: Path, name: str, findings: list[tuple[str, Finding]], unchecked: list[str]) -> None:
    """Findings of a sweep; without any run folder, as in a fresh clone, there is nothing to hold its tables against."""
    from suite.analysis.check import check_study
    from suite.analysis.collect import collect_sweep
    from suite.analysis.study import study_of
    from suite.runs.plan import make_plan
    from suite.runs.store import Store
    from suite.runs.sweep import load_sweep

    study, store = study_of(make_plan(load_sweep(name))), Store(root)
    if not any(store.folder(entry.spec.run_id).exists() for entry in study.entries):
        unchecked.append(
            f"{study.name}: no run of it has a folder under {root}; `{study.again('sweep')}` makes them"
        )
        return
    findings += [(study.name, finding) for finding in check_study(root, study, collect_sweep(root, name))]
