"""All pages of a results folder as a site that opens from disk: a first page, and every page that its tables allow.

<results>/reports/
    index.html          the answer of the study that compared most, the studies, what was refused
    <sweep>.html        a study, as `bandwise report <sweep>` makes it, without what belongs to no study
    calculator.html     what to run for a reader's model and link
    claims.html         the claims on record
    speed.html          sessions of no study
    docs/               the documents of the checkout
    search.html         all headings, to search
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Final, TypeVar

from report.claims import Verdicts, build_claims_page, findings, load_verdicts
from report.data import SessionData, StudyData, load, load_sessions
from report.documents import documents, write_document, write_search
from report.equal_time import timed_links
from report.numbers import MISSING, share
from report.pages import HOME, Place, ReportError, write_page
from report.publication import update_tables
from report.rho import ROLES, windows
from report.sessions import alone_sentence, ended_sentence, session_parts
from report.sizes import sizes_parts
from report.study import failure_sentence, write_study
from report.tables import Cell, Column, View, text
from suite.analysis.published import PublishedError, files_of, refused_rows, studies_of
from suite.analysis.session_tables import collect_session
from suite.analysis.tables import TABLES, Row, TableError
from suite.runs.plan import make_plan
from suite.runs.sweep import load_sweep, sweep_names
from suite.timing.spec import sessions_of
from suite.workloads.base import DataError

CALCULATOR, CLAIMS, SPEED, SEARCH = "calculator.html", "claims.html", "speed.html", "search.html"
KNOWN: Final = Path(__file__).with_name("calculator.json")
"""What the calculator knows: studies that answer, presets, and what methods send; `docs/calculator.py` makes it."""
FEW: Final = 4
"""Studies a process, of which the start takes as long as a page or two."""
RESERVED: Final = frozenset({"index", "calculator", "claims", "speed", "search"})
"""Names of pages that no study can have."""

Read = TypeVar("Read")
Pages = tuple[tuple[str, str], ...]
"""Addresses and words of the navigation."""


@dataclass(frozen=True)
class BuiltSite:
    """The first page, its findings in sentences, how many pages there are in all, and what could not be built."""

    path: Path
    headline: list[str]
    pages: int
    unread: list[tuple[str, str]]


def update_all(root: Path) -> list[tuple[str, str]]:
    """Bring the tables of every shipped sweep with runs here up to date; returns which cannot be, each with the reason.

    Sweeps that do not ship have their tables from `bandwise report FILE`, and keep them. Runs that are in no table made here are
    taken for those of a sweep that has tables here, else of the one with the most runs here, of equals the smallest. What is
    published stays as it is, and so do the tables of sweeps on files of the user's where these are not at hand (`bandwise
    --data-dir DIR report`).
    """
    unread: list[tuple[str, str]] = []
    for session in sessions_of(None):
        with suppress(PublishedError):  # its page says so
            collect_session(root, session)
    begun = {name for name in studies_of(root) if files_of(root, name)}
    there = {folder.name for folder in root.glob("runs/*/*")}
    tuned = [name for name in sweep_names() if load_sweep(name).is_tuned]
    if new := there - _in_tables(root):
        planned = {name: _run_ids(name) for name in tuned}
        most = {name: (name not in begun, -len(own & there), len(own)) for name, own in planned.items()}
        for name in sorted(tuned, key=most.__getitem__):
            if new & planned[name]:
                begun.add(name)
                new -= planned[name]
    for name in tuned:
        if name in begun:
            try:
                update_tables(root, name)
            except (ReportError, DataError, PublishedError):
                continue  # no run of it is here, or none is told from others without its files, or its page says why
            except ValueError as error:  # its file asks for what cannot be planned
                unread.append((name, _short(root, error)))
    return unread


def _run_ids(name: str) -> set[str]:
    """Of all runs of a sweep; none where it cannot be planned."""
    with suppress(ValueError):
        return {spec.run_id for spec in make_plan(load_sweep(name), without_data=True).specs}
    return set()


def _in_tables(root: Path) -> set[str]:
    """Ids of the runs in tables made here, read or not: whatever has the form of one."""
    found: set[str] = set()
    for path in (root / TABLES).glob("**/*-ru*s.csv"):  # runs, and rungs of ladders
        found |= set(re.findall(r"\b[0-9a-f]{16}\b", path.read_text(encoding="utf-8", errors="replace")))
    return found


def build_site(root: Path, out: Path | None = None) -> BuiltSite:
    """Build all pages from the tables, in `out` (by default <root>/reports)."""
    folder = out if out is not None else root / "reports"
    unread: list[tuple[str, str]] = []
    none: tuple[SessionData, ...] = ()
    alone = _readable(unread, root, "sessions of no study", lambda: load_sessions(root, None), none)
    verdicts = _readable(unread, root, "claims", lambda: load_verdicts(root), Verdicts())
    studies = _studies(root, verdicts, unread)
    own = documents()
    pages = (
        *([("docs/index.html", "Start")] if own else []),
        (CALCULATOR, "Calculator"),
        (f"{HOME}#studies", "Studies"),
        *([("docs/methods.html", "Methods")] if own else []),
        *([(CLAIMS, "Claims")] if verdicts.claims else []),
        *([(SPEED, "Speed alone")] if alone else []),
        *([("docs/README.html", "Documents")] if own else []),
    )
    lead = _written(root, folder, pages, studies, verdicts)
    known = json.loads(KNOWN.read_text(encoding="utf-8"))
    write_page(Place(folder, CALCULATOR, pages), "calculator", known=known)
    if verdicts.claims:
        build_claims_page(root, Place(folder, CLAIMS, pages))
    if alone:
        _speed(alone, Place(folder, SPEED, pages))
    for document, address in own.items():
        write_document(document, Place(folder, address, pages), own)
    refused = refused_view(refused_rows(root), unread)
    said = _headline(studies, len(refused.rows))
    totals = [counts(study) for study in studies.values()]
    path = write_page(
        Place(folder, HOME, pages),
        "index",
        done=sum(done for done, _ in totals),
        planned=sum(planned for _, planned in totals),
        newest=max(map(when, studies.values()), default=""),
        headline=said,
        lead=lead,
        sizes=sizes_parts(studies.values(), Place(folder, HOME, pages)),
        claims=findings(verdicts)[:2] if verdicts.claims else [],
        studies=studies_view({f"{name}.html": study for name, study in studies.items()}),
        refused=refused,
    )
    addresses = [
        HOME,
        CALCULATOR,
        *own.values(),
        *(f"{name}.html" for name in studies),
        *([CLAIMS] if verdicts.claims else []),
        *([SPEED] if alone else []),
    ]
    write_search(Place(folder, SEARCH, pages), addresses)
    return BuiltSite(path, said, len(addresses) + 1, unread)


def _readable(
    unread: list[tuple[str, str]], root: Path, name: str, read: Callable[[], Read], otherwise: Read
) -> Read:
    """What is read, or where its tables are damaged `otherwise`, and a line among the unread."""
    try:
        return read()
    except (ReportError, TableError, PublishedError) as error:
        unread.append((name, _short(root, error)))
        return otherwise


def _short(root: Path, error: Exception) -> str:
    """A reason without the place of the results folder."""
    return str(error).replace(f"{root}{os.sep}", "")


def _studies(root: Path, verdicts: Verdicts, unread: list[tuple[str, str]]) -> dict[str, StudyData]:
    """The studies that can be read, the newest first; the others become lines of `unread`."""
    found = {}
    for name in studies_of(root):
        if name in RESERVED or name.startswith("docs/"):
            unread.append((name, f"a study cannot be called {name}: another page has that name"))
        elif study := _readable(unread, root, name, partial(load, root, name, verdicts), None):
            found[name] = study
    return dict(sorted(found.items(), key=lambda item: when(item[1]), reverse=True))


def _speed(alone: Sequence[SessionData], place: Place) -> None:
    said = [ended_sentence(session) for session in alone]
    said += [alone_sentence(session, link, 1) for session in alone for link in session.links if link.usable]
    sessions = [session_parts(session, place) for session in alone]
    write_page(place, "speed", headline=list(filter(None, said)), sessions=sessions)


# ---- the first page


def leading(studies: Mapping[str, StudyData]) -> str | None:
    """The study that the first page shows.

    Args:
        studies: By name, the newest first, which counts among equals.

    Returns:
        The one that compared the most methods over rho; without any, the one that compared the most over links; without any,
        the one of which the most trainings have a worth; None where no study names a reference.
    """

    def size(name: str) -> tuple[int, bool, int]:
        panels = studies[name].panels
        timed = any(timed_links(studies[name], panel) for panel in panels if panel.worth)
        over_rho = max((len(windows(panel, *ROLES)) for panel in panels if panel.rho), default=0)
        return over_rho, timed, max((len(panel.worth) for panel in panels), default=0)

    there = [
        name for name, study in studies.items() if any(panel.rho or panel.worth for panel in study.panels)
    ]
    return max(there, key=size, default=None)


def _written(
    root: Path, folder: Path, pages: Pages, studies: Mapping[str, StudyData], verdicts: Verdicts
) -> dict[str, object] | None:
    """Write the pages of all studies, by several processes where there are many.

    Returns:
        What the first page shows of the leading study: the parts of its page, its name and address; None where none leads.
    """
    lead = leading(studies)
    rest = [name for name in studies if name != lead]
    processes = min(len(os.sched_getaffinity(0)), len(rest) // FEW)
    shown: dict[str, object] | None = None
    writing: Iterable[object]
    with ExitStack() as stack:
        if processes > 1:
            pool = stack.enter_context(ProcessPoolExecutor(processes, mp_context=get_context("spawn")))
            writing = pool.map(partial(_write_read, root, folder, pages, verdicts), rest)
        else:
            writing = (write_study(studies[name], Place(folder, f"{name}.html", pages)) for name in rest)
        if lead is not None:
            address = f"{lead}.html"
            built = write_study(studies[lead], Place(folder, address, pages))
            shown = {
                "rho": built.rho,
                "parts": built.equal_time,
                "study": studies[lead].sweep,
                "address": address,
            }
        for _ in writing:
            pass
    return shown


def _write_read(root: Path, folder: Path, pages: Pages, verdicts: Verdicts, name: str) -> None:
    """Write the page of a study, in a process of a pool: views hold functions, so that the tables are read again."""
    write_study(load(root, name, verdicts), Place(folder, f"{name}.html", pages))


def when(study: StudyData) -> str:
    """When the last run of a study finished; empty where none did."""
    return str(study.facts["last_finished"] or "")


def counts(study: StudyData) -> tuple[int, int]:
    """Runs done, and planned."""
    statuses = study.facts["statuses"]
    return int(statuses.get("done", 0)), sum(statuses.values())


def studies_view(studies: Mapping[str, StudyData]) -> View:
    """A line a study. studies: by the address of its page."""

    def done(item: tuple[str, StudyData]) -> Cell:
        finished, planned = counts(item[1])
        return Cell(share(finished, planned), finished, css="" if finished == planned else "maybe")

    def lost(item: tuple[str, StudyData]) -> Cell:
        finished, planned = counts(item[1])
        return Cell(str(planned - finished), link=f"{item[0]}#failures" if finished < planned else "")

    def sensitive(item: tuple[str, StudyData]) -> Cell:
        able = sum(panel.sensitive for panel in item[1].panels)
        return Cell(share(able, len(item[1].panels)), able, css="" if able else "maybe")

    def equal(item: tuple[str, StudyData]) -> Cell:
        rows = [row for panel in item[1].panels for row in panel.methods]
        even = sum(row["equal"] == "yes" for row in rows)
        return Cell(share(even, len(rows)), even)

    def links(item: tuple[str, StudyData]) -> Cell:
        labels = [link.label for session in item[1].sessions for link in session.links if link.usable]
        return Cell(", ".join(dict.fromkeys(labels)) or MISSING)

    columns = (
        Column("study", lambda item: Cell(item[1].sweep, link=item[0])),
        Column("what", lambda item: Cell(str(item[1].facts["about"]), css="reason")),
        Column("last finished", lambda item: Cell(when(item[1]) or MISSING)),
        Column(
            "from",
            lambda item: Cell(item[1].origin.words),
            "Made here where that is whole, otherwise published.",
        ),
        Column("done", done, "Runs done, of those planned.", True),
        Column("not done", lost, "Each with its reason on the study's page.", True),
        Column(
            "sensitive",
            sensitive,
            "Settings that would have shown a bad method; elsewhere nobody is called equal.",
            True,
        ),
        Column("equal", equal, "Methods called equal, of those compared, over all settings.", True),
        Column("speed", links, "Links over which its own sessions were timed."),
    )
    return View("studies-table", "Studies", columns, list(studies.items()))


def refused_view(rows: Sequence[Row], unread: Sequence[tuple[str, str]]) -> View:
    """What is not read: `rows` as of `refused_rows`, and studies and pages whose tables cannot be, each with the reason."""
    named = [
        {**row, "what": " ".join(filter(None, [row["kind"], row["name"], row["record"]]))} for row in rows
    ]
    named += [{"what": f"tables of {name}", "reason": why, "fix": ""} for name, why in unread]
    columns = (
        Column("what", text("what", "code")),
        Column("why it is not read", text("reason", "reason")),
        Column("what to do", text("fix", "reason")),
    )
    return View("refused-table", "Refused", columns, named)


def _headline(studies: Mapping[str, StudyData], refused: int) -> list[str]:
    """How much was run, and what is missing."""
    found = [_totals(list(studies.values()))] if studies else []
    for study in studies.values():
        if sentence := failure_sentence(study):
            found.append(f"{study.sweep}: {sentence.replace(' They are listed below and in no mean.', '')}")
    if aside := [f"{study.sweep} ({study.origin.aside})" for study in studies.values() if study.origin.aside]:
        found.append(f"Made here and not shown, since it is not whole: {'; '.join(aside)}.")
    return found + ([f"{refused} of what lies here is refused, and listed below."] if refused else [])


def _totals(studies: list[StudyData]) -> str:
    """How much was run, and in how much of it equality can be told."""
    done, planned = (sum(column) for column in zip(*map(counts, studies), strict=True))
    panels = [panel for study in studies for panel in study.panels]
    can_tell = [panel for panel in panels if panel.sensitive]
    methods = [row for panel in can_tell for row in panel.methods]
    equal = sum(row["equal"] == "yes" for row in methods)
    ran = (
        f"{done} of {planned} runs of {len(studies)} {'study' if len(studies) == 1 else 'studies'} are done."
    )
    told = f"{len(can_tell)} of {len(panels)} settings can tell whether a method is equal to its uncompressed run"
    return f"{ran} {told}" + (f"; in them {equal} of {len(methods)} are." if methods else ".")
