"""From what was made here to tables, to its page, and to what is published.

To publish is to make results data in git, whole, with hashes, and never in silence.

    <results>/published/            laid out and checked as `suite.analysis.published` says
        tables/<sweep>-*.csv, <sweep>-study.json, figures/<sweep>/*.svg       a study: `bandwise publish quick`
        tables/session-<name>-*.csv, session-<name>-facts.json                a session: the same command

Figures are seeds-*.svg, rho-*.svg and equal-time-*.svg by panel, and phases-*.svg by session and link. A page is made of the
tables by `bandwise report`, and is not kept.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from report.accuracy import seeds
from report.data import StudyData, load
from report.equal_time import equal_time_figures
from report.figures import svg
from report.pages import Place, ReportError
from report.rho import rho_figures
from report.sessions import phases_figures
from report.study import BuiltReport, headline, write_study
from suite.analysis.published import (
    CHANGES,
    FACTS,
    OF_CLAIMS,
    STUDY_FACTS,
    PublishedError,
    Side,
    facts_path,
    files_of,
    fingerprint,
    load_facts,
    published_root,
    put,
    read_manifest,
    source,
    unfinished,
)
from suite.analysis.session_tables import collect_session, collect_study, held_on, machine_words, newest
from suite.analysis.tables import SESSION, TABLES
from suite.runs.spec import code_known, same_machine
from suite.runs.sweep import UnknownSweepError, load_sweep
from suite.timing.spec import UnknownSessionError, load_session


def update_tables(results_root: Path | str, sweep: str) -> str:
    """Collect the sweep's runs into tables, and the records of its timing sessions; returns the name under which the tables lie.

    What is published is never touched. Raises ReportError when there are neither runs nor tables, and the errors of reading a
    sweep.
    """
    root, found = Path(results_root), load_sweep(sweep)
    if not collect_study(root, found) and not facts_path(source(root, found.name).root, found.name).is_file():
        raise ReportError(f"no run of sweep {found.name} under {root}; run `{found.command('sweep')}` first")
    return found.name


def build_report(
    results_root: Path, sweep: str, out: Path | None = None, side: Side = "whole"
) -> BuiltReport:
    """Bring the tables up to date and build the page; by default at <root>/reports/<sweep>.html.

    `sweep` is a name or the path of a sweep's file; side: which tables are shown where some were made here and others are
    published. Raises ReportError, TableError, StoreError, or what reading the sweep raises; each message says what to do.
    """
    name = update_tables(results_root, sweep)
    path = out or results_root / "reports" / f"{name}.html"
    return write_study(load(results_root, name, side=side), Place(path.parent, path.name))


@dataclass(frozen=True)
class Publication:
    """A set that was published: its name, its day, how many files, and the hash of all their hashes."""

    name: str
    day: str
    files: int
    fingerprint: str


def publish(
    results_root: Path | str,
    name: str,
    *,
    replace: bool = False,
    day: str = "",
) -> list[Publication]:
    """Publish what was made here under a name: a study, the session of that name, or the record of claims.

    Args:
        name: A sweep or a session, by name or by the path of its file, or `claims`.
        replace: Take the place of what is published and different.
        day: In the manifest; today in UTC where it is empty.

    Returns:
        What is published now, a line each.

    Raises:
        PublishedError: Nothing was made here, it is not whole, its code had changes that are not kept, something else is
            published under its name, or published sessions of another machine would be lost.
        ReportError, TableError, YamlError: as `bandwise report` raises them.
    """
    root, moment = Path(results_root), day or f"{datetime.now(UTC):%Y-%m-%d}"
    if name == OF_CLAIMS:
        if not files_of(root, name):
            raise PublishedError("no verdict was made here: `bandwise claims --write` first")
        return [_put(root, name, _tables(root, name), {"day": moment}, replace)]
    _keeps_sessions(root, name)
    found = [*_study(root, name, moment, replace), *_session(root, name, moment, replace)]
    if not found:
        raise PublishedError(
            f"nothing was made here of {name}: no run of a sweep and no record of a session of that name under {root}"
        )
    return found


def _study(root: Path, name: str, day: str, replace: bool) -> Iterator[Publication]:
    """The study of that name, where there is such a sweep and any run of it is here."""
    study = _made_here(root, name)
    if study is not None:
        figures = {f"figures/{study.sweep}/{file}": text for file, text in _figures(study).items()}
        yield _put(root, study.sweep, {**_tables(root, study.sweep), **figures}, _about(study, day), replace)


def _session(root: Path, name: str, day: str, replace: bool) -> Iterator[Publication]:
    """The session of that name, where it was held here, and the pictures of its study, whose seconds are the session's."""
    try:
        session = load_session(name)
    except UnknownSessionError:
        return
    known = session.name
    collect_session(root, known)
    if files_of(root, f"{SESSION}{known}"):
        yield _put(root, f"{SESSION}{known}", _tables(root, f"{SESSION}{known}"), {"day": day}, replace)
        if session.sweep is not None and not files_of(root, session.sweep.name):
            yield from _redrawn(root, session.sweep.name)


def _keeps_sessions(root: Path, name: str) -> None:
    """Raise `PublishedError` where the session of that name would take the place of sessions of another machine."""
    try:
        known = load_session(name).name
    except UnknownSessionError:
        return
    there, here = (
        load_facts(root, known, "published"),
        newest(root, known) or load_facts(root, known, "local"),
    )
    if there is None or here is None or there["session_id"] == here["session_id"]:
        return
    if not same_machine(*held_on(there), *held_on(here)):
        raise PublishedError(
            f"{len(there['sessions'])} published sessions of {known} would be lost: they were held on {machine_words(there)}, "
            f"and these on {machine_words(here)}; seconds of different machines are not put together. "
            f"Hold a session of another name on this machine, of a file with `base: {known}`"
        )


def _redrawn(root: Path, name: str) -> Iterator[Publication]:
    """A published study whose runs are not here, with its tables as they are and its pictures drawn anew."""
    folder = published_root(root)
    known = read_manifest(folder)["sets"].get(name)
    if known is None:
        return
    tables = {
        file: (folder / file).read_bytes() for file in known["files"] if not file.startswith("figures/")
    }
    study = load(root, name, side="published")
    figures = {f"figures/{name}/{file}": text for file, text in _figures(study).items()}
    about = {key: value for key, value in known.items() if key != "files"} | {"headline": headline(study)}
    yield _put(root, name, {**tables, **figures}, about, replace=True)


def _made_here(root: Path, name: str) -> StudyData | None:
    """The study of that name with its tables brought up to date; None where no run of it is here. Raises `PublishedError`."""
    try:
        sweep = load_sweep(name)
    except UnknownSweepError:
        if not files_of(root, name):
            return None
        known = name  # copied here from elsewhere: tables without a sweep's file
    else:
        known = sweep.name
        try:
            update_tables(root, sweep.called)
        except ReportError:  # no run of it is here
            return None
    if not files_of(root, known):
        return None
    if why := unfinished(root, known):
        raise PublishedError(
            f"{known} is not whole, so it is not published: {why}; `{shlex.join(['bandwise', 'status', name])}` says more"
        )
    return load(root, known, side="local")


def _tables(root: Path, name: str) -> dict[str, bytes]:
    """The files of a set made here. Raises `PublishedError`."""
    if why := unfinished(root, name):
        raise PublishedError(f"{name.removeprefix(SESSION)} is not whole, so it is not published: {why}")
    files = {f"{TABLES}/{file}": (root / TABLES / file).read_bytes() for file in files_of(root, name)}
    for file, content in files.items():
        if file.endswith((FACTS, STUDY_FACTS)):
            _refuse_changed_code(json.loads(content), name.removeprefix(SESSION))
    return files


def _refuse_changed_code(facts: Mapping[str, Any], name: str) -> None:
    """Raise `PublishedError` where facts speak of code that nobody can have again."""
    held = [one["provenance"] for one in facts.get("sessions", ())]
    for origin in facts.get("origins") or [facts.get("provenance") or {}, *held]:
        if not code_known(origin):
            raise PublishedError(
                f"{name}: of what was made here it is not known of which commit it is, or whether that was changed: run it "
                "again in a checkout that git accepts (`git status` says why it does not)"
            )
        if origin.get(CHANGES) or "True" in str(origin.get("dirty")):
            raise PublishedError(f"{name} was made by changed code: commit, and run it again")


def _figures(study: StudyData) -> dict[str, bytes]:
    """File name -> SVG."""
    drawn = {f"seeds-{panel.slug}": seeds(panel) for panel in study.panels}
    drawn |= {**rho_figures(study), **equal_time_figures(study), **phases_figures(study)}
    return {f"{name}.svg": svg(figure).encode() for name, figure in drawn.items()}


def _about(study: StudyData, day: str) -> dict[str, Any]:
    """What the manifest says of a study besides its files."""
    facts = study.facts
    return {
        "day": day,
        "command": facts["command"],
        "last_finished": facts["last_finished"],
        "statuses": facts["statuses"],
        "commit": facts["provenance"]["commit"],
        "environment_hash": facts["provenance"]["environment_hash"],
        "headline": headline(study),
    }


def _put(
    root: Path, name: str, files: Mapping[str, bytes], about: Mapping[str, Any], replace: bool
) -> Publication:
    found = put(root, name, files, about, replace=replace)
    return Publication(name, str(found["day"]), len(found["files"]), fingerprint(found["files"]))
