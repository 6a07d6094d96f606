"""All pages of a results folder as a site that opens from disk: a first page, and every page that its tables allow.

    <results>/reports/
        index.html                      studies, pictures, provenance
        <sweep>.html                    a study, as `bandwise report <sweep>` makes it, without what belongs to no study
        methods.html                    every method of the catalogue
        methods/<method>.html           a method that something here was measured of
        claims.html                     the claims on record
        speed.html                      sessions of no study

Links are relative and lead only to pages that were built. A study whose tables cannot be read is named on the first page
and keeps none of the others from being built. The same tables and run folders give the same bytes.
"""

from __future__ import annotations

import gc
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, TypeVar

from report.drawing.scales import look
from report.pages.claims import Verdicts, build_claims_page, findings, load_verdicts
from report.rendering import Links, ReportError, asset, embedded, navigation, render_page, script, template
from report.site import methods, overview
from report.study.build import BuiltReport, write_page
from report.study.data import SessionData, StudyData, load, load_sessions
from report.study.headline import failure_sentence
from report.study.publication import update_tables
from report.study.runs import drift, origins_view
from report.study.sessions import ended_sentence, session_parts
from report.study.step_time import alone_sentence
from suite.analysis.published import files_of, refused_rows, studies_of
from suite.analysis.session_tables import collect_session
from suite.analysis.tables import TABLES, TableError
from suite.runs.files import write_atomic
from suite.runs.sweep import sweep_names
from suite.timing.spec import sessions_of
from suite.workloads.base import DataError

HOME: Final = "index.html"
SPEED: Final = "speed.html"
STUDIES: Final = (f"{HOME}#studies-section", "Studies")
PAGES: Final = (("claims", "Claims", build_claims_page),)
"""Pages that no study owns: name of the file, words of its link, what builds it or says why it cannot."""
RARELY: Final = 200_000
"""New objects, more than have gone, from which on cycles are looked for while pages are built."""
RESERVED: Final = frozenset({"index", "speed", "methods", *(name for name, _, _ in PAGES)})
"""Names of pages that no study can have."""


Read = TypeVar("Read")


@dataclass(frozen=True)
class BuiltSite:
    """The first page, its findings in sentences, how many pages there are in all, and what could not be built."""

    path: Path
    headline: list[str]
    pages: int
    unread: list[tuple[str, str]]


def update_all(root: Path) -> None:
    """Bring the tables of every shipped sweep with runs here up to date.

    Sweeps that do not ship have their tables from `bandwise report FILE`, and keep them. Sweeps without tables here are looked
    at where there are runs that are in no table made here. What is published stays as it is, and so do the tables of sweeps on
    files of the user's where these are not at hand (`bandwise --data-dir DIR report`).
    """
    for session in sessions_of(None):
        collect_session(root, session)
    known = {name for name in studies_of(root) if files_of(root, name)}
    there = {folder.name for folder in root.glob("runs/*/*")}
    new = there - _in_tables(root)
    for name in sweep_names():
        if name in known or new:
            try:
                update_tables(root, name, alone=False)
            except (ReportError, DataError):
                continue  # no run of it is here, or none can be told from others without the files that it is of


def _in_tables(root: Path) -> set[str]:
    """Ids of the runs in tables made here, read or not: whatever has the form of one."""
    found: set[str] = set()
    for path in (root / TABLES).glob("**/*-ru*s.csv"):  # runs, and rungs of ladders
        found |= set(re.findall(r"\b[0-9a-f]{16}\b", path.read_text(encoding="utf-8", errors="replace")))
    return found


@contextmanager
def _drawing() -> Iterator[None]:
    """For who builds many pages: the look of pictures is set once, and cycles are looked for rarely. Axes and their parts
    hold each other, so nothing else frees them; but at Python's own thresholds that takes a seventh of all time.
    """
    before = gc.get_threshold()
    gc.freeze()  # modules and tables that are read stay to the end
    gc.set_threshold(RARELY, *before[1:])
    try:
        with look():
            yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


def build_site(root: Path, out: Path | None = None) -> BuiltSite:
    """Build all pages from the tables, in `out` (by default <root>/reports)."""
    with _drawing():
        return _build(root, out if out is not None else root / "reports")


def _build(root: Path, folder: Path) -> BuiltSite:
    unread: list[tuple[str, str]] = []
    none: tuple[SessionData, ...] = ()
    alone = _readable(unread, root, "sessions of no study", lambda: load_sessions(root, None), none)
    verdicts = _readable(unread, root, "claims", lambda: load_verdicts(root), Verdicts())
    studies = _studies(root, verdicts, unread)
    lone = _pages(root, folder, unread)
    with_speed = bool(alone)
    pages = [
        *([STUDIES, (methods.ALL, "Methods")] if studies else []),
        *lone,
        *([(SPEED, "Speed alone")] if with_speed else []),
    ]
    for address, _ in lone:  # written before it was known which others there are
        path, bare = folder / address, navigation(Links(HOME))
        whole = path.read_text(encoding="utf-8").replace(bare, navigation(_links(pages, address)), 1)
        write_atomic(path, whole)
    if with_speed:
        write_atomic(folder / SPEED, _speed(alone, _links(pages, SPEED)))
    built = 1 + len(lone) + with_speed
    known = methods.trained({f"{name}.html": study for name, study in studies.items()})
    if studies:
        built += _methods(folder, known, verdicts, pages)
    drawn = {
        f"{name}.html": _study(folder, name, study, pages, list(known)) for name, study in studies.items()
    }
    built += len(drawn)
    said, text = _index(root, studies, drawn, pages, unread, verdicts)
    write_atomic(folder / HOME, text)
    return BuiltSite(folder / HOME, said, built, unread)


def _links(pages: Sequence[tuple[str, str]], here: str = "", up: str = "") -> Links:
    """The navigation of a page. here: its address, where it is in the navigation; up: the way to the first page's folder."""
    return Links(up + HOME, tuple((up + address, words) for address, words in pages), here)


def _methods(
    folder: Path,
    known: dict[str, list[methods.Trained]],
    verdicts: Verdicts,
    pages: list[tuple[str, str]],
) -> int:
    """Write the page of every method in `known`, and the one that leads to them; how many."""
    write_atomic(folder / methods.ALL, methods.render_methods(known, verdicts, _links(pages, methods.ALL)))
    for name, found in known.items():
        text = methods.render_method(name, found, verdicts, _links(pages, up="../"))
        write_atomic(folder / methods.FOLDER / f"{name}.html", text, flushed=False)
    return 1 + len(known)


def _readable(
    unread: list[tuple[str, str]], root: Path, name: str, read: Callable[[], Read], otherwise: Read
) -> Read:
    """What is read, or where its tables are damaged `otherwise`, and a line among the unread."""
    try:
        return read()
    except (ReportError, TableError) as error:
        unread.append((name, _short(root, error)))
        return otherwise


def _short(root: Path, error: Exception) -> str:
    """A reason without the place of the results folder."""
    return str(error).replace(f"{root}{os.sep}", "")


def _pages(root: Path, folder: Path, unread: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Build what can be built of the pages that no study owns; address and words of each."""
    known, found = {name for name, _ in unread}, []
    for name, words, build in PAGES:
        try:
            build(root, folder / f"{name}.html", Links(HOME))
        except ReportError:
            continue  # nothing of it was measured here; `bandwise report NAME` says what to do
        except TableError as error:
            if name not in known:
                unread.append((name, _short(root, error)))
            continue
        found.append((f"{name}.html", words))
    return found


def _studies(root: Path, verdicts: Verdicts, unread: list[tuple[str, str]]) -> dict[str, StudyData]:
    """The studies that can be read, the newest first; the others become lines of `unread`."""
    found = {}
    for name in studies_of(root):
        try:
            if name in RESERVED:
                raise ReportError(f"a study cannot be called {name}: another page has that name")
            study = load(root, name, alone=False, verdicts=verdicts)
        except (ReportError, TableError) as error:
            unread.append((name, _short(root, error)))
            continue
        found[name] = study
    return dict(sorted(found.items(), key=lambda item: overview.when(item[1]), reverse=True))


def _study(
    folder: Path, name: str, study: StudyData, pages: list[tuple[str, str]], known: list[str]
) -> BuiltReport:
    """Write the page of a study. known: methods that have a page."""
    up = "../" * name.count("/")
    links = replace(
        _links(pages, up=up), methods={method: f"{up}{methods.FOLDER}/{method}.html" for method in known}
    )
    return write_page(study, folder / f"{name}.html", links)


def _speed(alone: tuple[SessionData, ...], links: Links) -> str:
    sentences = [ended_sentence(session) for session in alone]
    sentences += [alone_sentence(s, link, 1) for s in alone for link in s.links if link.usable]
    said = [sentence for sentence in sentences if sentence]
    parts = {"sessions": [session_parts(session) for session in alone]}
    return render_page("speed_page.html.j2", said, (), parts, links)


def _index(
    root: Path, studies: dict[str, StudyData], drawn: dict[str, BuiltReport],
    pages: list[tuple[str, str]],
    unread: list[tuple[str, str]], verdicts: Verdicts,
) -> tuple[list[str], str]:  # fmt: skip
    by_address = {f"{name}.html": study for name, study in studies.items()}
    said = _headline(root, studies, unread, verdicts)
    totals = [overview.counts(study) for study in studies.values()]
    text = template("index.html.j2").render(
        done=sum(done for done, _ in totals),
        planned=sum(planned for _, planned in totals),
        newest=max((overview.when(study) for study in studies.values()), default=""),
        headline=said,
        links=_links(pages, HOME),
        equal_time=overview.equal_time(by_address, {at: page.equal_time for at, page in drawn.items()}),
        bars=overview.claims_bars(verdicts),
        studies=overview.studies_view(by_address),
        refused=overview.refused_view(refused_rows(root), unread),
        origins=origins_view(*studies.values()),
        drift=drift(*studies.values()),
        data=embedded({"tables": {}}),
        css=asset("style.css"),
        js=script(),
    )
    return said, text


def _headline(
    root: Path,
    studies: dict[str, StudyData],
    unread: list[tuple[str, str]],
    verdicts: Verdicts,
) -> list[str]:
    """How much was run, what of claims was decided, and what is missing."""
    found = [_totals(list(studies.values()))] if studies else []
    found += findings(verdicts)[:2] if verdicts.claims else []
    for study in studies.values():
        if sentence := failure_sentence(study):
            found.append(f"{study.sweep}: {sentence.replace(' They are listed below and in no mean.', '')}")
    if aside := [f"{study.sweep} ({study.origin.aside})" for study in studies.values() if study.origin.aside]:
        found.append(f"Made here and not shown, since it is not whole: {'; '.join(aside)}.")
    rest = len(refused_rows(root)) + len(unread)
    return found + ([f"{rest} of what lies here is refused, and listed below."] if rest else [])


def _totals(studies: list[StudyData]) -> str:
    """How much was run, and in how much of it equality can be told."""
    done, planned = (sum(column) for column in zip(*map(overview.counts, studies), strict=True))
    panels = [panel for study in studies for panel in study.panels]
    can_tell = [panel for panel in panels if panel.sensitive]
    methods = [row for panel in can_tell for row in panel.methods]
    equal = sum(row["equal"] == "yes" for row in methods)
    ran = (
        f"{done} of {planned} runs of {len(studies)} {'study' if len(studies) == 1 else 'studies'} are done."
    )
    told = f"{len(can_tell)} of {len(panels)} settings can tell whether a method is equal to its uncompressed run"
    return f"{ran} {told}" + (f"; in them {equal} of {len(methods)} are." if methods else ".")
