"""Build pages from results: of everything, of one sweep, or one that no sweep owns. They open from disk, and load nothing from
elsewhere; pictures, tables as CSV and what pages share lie beside them (`files/`, `assets/`).

bandwise report                 a site: a first page with the answer, every study, methods, claims
bandwise report quick           the page of one sweep
bandwise report claims          the claims on record

Tables are brought up to date from the run folders first; those of another results folder are copied beside those here
(`rsync -a --ignore-existing OTHER/runs OTHER/sessions results/`), since they are named by what they hold.

What was made here is shown where it is whole (every run has ended, every link gave numbers), what is published otherwise, a
study's tables always as one; pages say which. --local shows what was made here in any case. Exit code 3 where a study's
tables could not be read.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from bandwise.cli import FAILURE, OptionError, answer, results_root

CLAIMS = "claims"
"""The page that no sweep owns; sweeps of claims have a further part, as in claims/qsr."""
EVERYTHING = "all"
"""Stands for the site, as no name does."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "sweep",
        nargs="?",
        default=EVERYTHING,
        help=f"name of a sweep, path of a .yaml file, {CLAIMS}, or all (the default)",
    )
    parser.add_argument(
        "--out",
        metavar="PATH",
        type=Path,
        help="the page (default: <results>/reports/<sweep>.html), of everything the folder (<results>/reports)",
    )
    parser.add_argument(
        "--local",
        action="store_true",
        help="of one sweep: what was made here, whole or not, instead of what is published",
    )


def run(args: argparse.Namespace) -> int:
    from report.publication import build_report
    from slurm.states import note_ends
    from suite.runs.store import Store
    from suite.runs.sweep import tables_of
    from suite.timing.spec import sessions_of

    root = results_root(args)
    everything = args.sweep == EVERYTHING
    if args.local and (everything or args.sweep == CLAIMS):
        raise OptionError("--local is for the page of one sweep: `bandwise report NAME --local`")
    if not everything and args.out is not None and args.out.is_dir():
        raise OptionError(
            f"--out {args.out} is a folder: of one page it is the file, such as {args.out}/page.html"
        )
    if args.sweep == CLAIMS:
        return _claims(args, root)
    if not everything:
        _no_session(args.sweep)
    if unanswered := note_ends(Store(root), None if everything else args.sweep):
        print(f"Slurm was not asked: {unanswered}", file=sys.stderr)
    if everything:
        return _site(args, root)
    built = build_report(root, args.sweep, args.out, "local" if args.local else "whole")
    name = tables_of(args.sweep)
    here = {"again": [*_again(root, name)], "timed": _timed(root, sessions_of(name))}
    found = {"path": str(built.path), "headline": built.headline, "origin": built.origin, **here}
    lines = [*built.headline, *built.origin, *here["again"], *here["timed"]]
    answer(args, {"sweep": args.sweep, **found}, *lines, f"report: {built.path}")
    return 0


def _again(root: Path, *names: str) -> Iterator[str]:
    """Of studies that were trained here, whether they came out as published."""
    from suite.analysis.published import PublishedError
    from suite.analysis.reproduction import of_study
    from suite.analysis.tables import TableError

    for name in names:
        try:
            found = of_study(root, name)
        except (PublishedError, TableError) as error:
            yield f"{name}: not held against what is published: {error}"
        else:
            if found:
                yield str(found)


def _timed(root: Path, names: Sequence[str]) -> list[str]:
    """Of sessions that were held here, what they timed and how disturbed they were."""
    from suite.analysis.published import read_facts, session_facts_path
    from suite.analysis.session_tables import timed_words

    found = (read_facts(session_facts_path(root, name)) for name in names)
    return [timed_words(facts) for facts in found if facts]


def _no_session(name: str) -> None:
    """Raises `OptionError` where a name or a file is that of a session alone: it stands on the page of its sweep."""
    from suite.runs.sweep import UnknownSweepError, load_sweep
    from suite.timing.spec import UnknownSessionError, load_session

    try:
        load_sweep(name)
    except UnknownSweepError as unknown:
        try:
            session = load_session(name)
        except UnknownSessionError:
            raise unknown from None
        page = "bandwise report" if session.sweep is None else session.sweep.command("report")
        raise OptionError(
            f"{session.name} is a timing session; it stands on the page that `{page}` makes"
        ) from None


def _site(args: argparse.Namespace, root: Path) -> int:
    from report.site import build_site, update_all
    from suite.analysis.published import published_root, sessions_held, studies_of

    if not published_root(root).is_dir():
        print(
            f"nothing is published in {root}: published studies are on pages of the checkout's own results",
            file=sys.stderr,
        )
    old = update_all(root)
    built = build_site(root, args.out)
    unread = [{"study": name, "reason": reason} for name, reason in [*old, *built.unread]]
    here = {"again": [*_again(root, *studies_of(root))], "timed": _timed(root, sessions_held(root))}
    found = {
        "path": str(built.path),
        "pages": built.pages,
        "headline": built.headline,
        "unread": unread,
        **here,
    }
    lines = [*built.headline, *(f"not read: {one['study']}: {one['reason']}" for one in unread)]
    lines += [*here["again"], *here["timed"], f"report: {built.path} ({built.pages} pages)"]
    answer(args, {"sweep": EVERYTHING, **found}, *lines)
    return FAILURE if unread else 0


def _claims(args: argparse.Namespace, root: Path) -> int:
    from report.claims import build_claims_page
    from report.pages import Place

    out = args.out or root / "reports" / "claims.html"
    findings = build_claims_page(root, Place(out.parent, out.name))
    answer(args, {"sweep": args.sweep, "path": str(out), "headline": findings}, *findings, f"report: {out}")
    return 0
