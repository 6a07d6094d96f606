"""Make results that were made here part of the project: whole, with hashes, in results/published, which git keeps.

    bandwise publish quick --check     # complete, readable, unmixed, up to date? every finding says what to do
    bandwise publish quick             # the study and the session of that name: tables, facts, figures
    bandwise publish quick --replace   # in place of what is published and different; git keeps what it was
    bandwise publish claims            # the record of claims
    bandwise publish --verify          # every published file against its hash
    bandwise publish --check           # that, every run folder, and every sweep that has tables

Nothing else writes there. Refused is what is not whole (a run that has not finished, a link without numbers), what
was made by changed code whose changes were not kept, and a session that would take the place of published ones of another
machine, whose seconds are not put together with its own. Exit codes: 0 well, 3 something is wrong, or not as it was published.
With --strict warnings are wrong too: stale sources, mixed commits or machines, uncommitted changes.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from bandwise.cli import FAILURE, OptionError, answer, results_root

if TYPE_CHECKING:
    from suite.runs.spec import Finding


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "name",
        nargs="?",
        help="a sweep or a session, by name or path of its .yaml file; claims",
    )
    parser.add_argument(
        "--replace", action="store_true", help="take the place of what is published and different"
    )
    parser.add_argument("--verify", action="store_true", help="check every published file against its hash")
    parser.add_argument(
        "--check", action="store_true", help="whether results can be relied on; without a name everything"
    )
    parser.add_argument("--strict", action="store_true", help="with --check: warnings are wrong too")


def run(args: argparse.Namespace) -> int:
    if args.replace + args.verify + args.check > 1 or (args.strict and not args.check):
        raise OptionError("give one of --replace, --check and --verify; --strict belongs to --check")
    if not args.check and (args.name is None) != args.verify:
        raise OptionError("give either a name (`bandwise publish NAME`) or --verify or --check alone")
    root = results_root(args)
    if args.check:
        return _check(args, root)
    if args.verify:
        return _verify(args, root)
    from report.publication import publish

    found = publish(root, args.name, replace=args.replace)
    lines = (
        f"{one.name}: published {one.day}, {one.files} files, fingerprint {one.fingerprint}" for one in found
    )
    answer(args, [asdict(one) for one in found], *lines)
    return 0


def _verify(args: argparse.Namespace, root: Path) -> int:
    from suite.analysis.published import published_root, verify

    wrong, folder = verify(root), published_root(root)
    verdict = f"{len(wrong)} files are not as published" if wrong else "every file is as published"
    answer(args, {"folder": str(folder), "wrong": wrong}, *wrong, f"{folder}: {verdict}")
    return FAILURE if wrong else 0


def _check(args: argparse.Namespace, root: Path) -> int:
    from suite.analysis.check import check_published, check_store
    from suite.analysis.published import studies_of
    from suite.runs.spec import ERROR
    from suite.runs.sweep import sweep_names

    sweeps = [args.name]
    findings: list[tuple[str, Finding]] = []
    unchecked: list[str] = []
    if not args.name:
        known = set(studies_of(root))
        sweeps = [name for name in sweep_names() if name in known]
        findings += [("runs", finding) for finding in check_store(root)]
        findings += [("published", finding) for finding in check_published(root)]
    for sweep in sweeps:
        try:
            _sweep(root, sweep, findings, unchecked)
        except ValueError as error:
            if args.name:
                raise
            unchecked.append(f"{sweep}: {error}")
    wrong = [finding for _, finding in findings if args.strict or finding.level == ERROR]
    listed = [{"of": of, **finding.as_dict()} for of, finding in findings]
    errors, names = sum(one["level"] == ERROR for one in listed), ", ".join(sweeps) or "no sweep has tables"
    answer(
        args,
        {"checked": sweeps, "wrong": len(wrong), "findings": listed, "not_checked": unchecked},
        *("{level}: {of}: {rule}: {subject}: {what}; {fix}".format(**one) for one in listed),
        *(f"not checked: {line}" for line in unchecked),
        f"{names}: {errors} errors, {len(listed) - errors} warnings, {len(unchecked)} not checked",
    )
    return FAILURE if wrong else 0


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
