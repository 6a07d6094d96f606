"""Where a table is read, what is published, what is refused, and where the runs behind a table come from.

Local results and published ones are parted, and never mixed within a set:

    <results>/tables/                  what was made here; git ignores it, and everything else that is made here
    <results>/published/               in git; `bandwise publish` alone writes here
        manifest.json                  every set: the day on which it was published, where it comes from, SHA-256 of each file
        tables/, figures/<study>/      as under <results>; pictures of a study

A *set* is what stands or falls as one: the tables of a study (its name), those of a timing session (`session-` and its name),
or any other table with the facts beside it (the name of its file). A set is read from here where it is whole, from what is
published otherwise; `source` says which. It is *whole* where `unfinished` and `lacking` both have nothing to say.

An *origin* is a distinct commit, environment and machine with how many runs of a cell it gave. Origins are recorded in a study's
facts when its tables are made, so that a page from tables alone can say what was mixed. Facts of older tables lack them; what
their rows hold (commit, environment) stands in.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal

import pandas as pd

from suite.analysis.tables import (
    BUDGET_RUNS,
    CELL,
    CLAIMS,
    OF_SESSION,
    OF_STUDY,
    PARTS,
    RUNS,
    SESSION,
    SWEEP_OPTIONAL,
    TABLES,
    Row,
    Table,
    TableError,
    read_frame,
    table_path,
)
from suite.runs.files import RefusedError, dump, read, replacing, write_atomic
from suite.runs.store import SETTLED, Store
from suite.runs.sweep import WHOLE
from suite.timing import store as sessions

FOLDER: Final = "published"
MANIFEST: Final = "manifest.json"
MANIFEST_SCHEMA: Final = 1
STUDY_FACTS: Final = "-study.json"
FACTS: Final = "-facts.json"
FACTS_SCHEMA: Final = 1
"""Version of the facts of studies and of sessions."""
OF_CLAIMS: Final = "claims"
"""The set of the tables of claims, which belong to no study and no session."""
Side = Literal["whole", "local", "published"]
"""Which one is taken where both are there: local where it is whole; local; published."""


class PublishedError(ValueError):
    """Something cannot be published, or what is published cannot be read; the message says what to do."""


@dataclass(frozen=True)
class Source:
    """Where a set is read. root: the results folder whose `tables/` holds it. local: made here. aside: why what was made here
    too is not shown; empty where nothing was, or where it is shown. day: on which it was published.
    """

    name: str
    root: Path
    local: bool
    aside: str = ""
    day: str = ""

    @property
    def not_shown(self) -> str:
        """A sentence on what was made here and is not shown; "" where there is nothing to say."""
        if not self.aside:
            return ""
        return f"What was made here of {self.name.removeprefix(SESSION)} is not shown: {self.aside}."

    @property
    def words(self) -> str:
        """made here; published 2026-11-22."""
        return "made here" if self.local else f"published {self.day}".rstrip()


def published_root(results_root: Path | str) -> Path:
    """The folder of what is published; it is laid out like a results folder."""
    return Path(results_root) / FOLDER


def documents_root(results_root: Path) -> Path:
    """Whose tables the documents of the project show: published ones, where there are any."""
    found = published_root(results_root)
    return found if found.is_dir() else results_root


def source(results_root: Path | str, name: str, side: Side = "whole") -> Source:
    """Where the set of that name is read. A set that is nowhere is looked for here, and not found. Raises `PublishedError` as
    `refuse_changed` does.
    """
    root = Path(results_root)
    shared = published_root(root)
    mine, theirs = files_of(root, name), files_of(shared, name)
    if not theirs and name not in _sets(shared):
        refuse_changed(root, name)  # a folder of what is published may itself be asked
        return Source(name, root, local=True)
    aside = ""
    if mine and side != "published":
        aside = unfinished(root, name) or lacking(root, name)
        if side == "local" or not aside:
            return Source(name, root, local=True)
    refuse_changed(shared, name)
    return Source(name, shared, local=False, aside=aside, day=str(_sets(shared).get(name, {}).get("day", "")))


def find_table(results_root: Path | str, table: Table, name: str = "", side: Side = "whole") -> Path:
    """Where a table is read, one of claims without a name; `suite.analysis.tables.table_path` is where it is written."""
    return table_path(source(results_root, name or OF_CLAIMS, side).root, table, name)


def find_frame(
    results_root: Path | str, table: Table, name: str = "", side: Side = "whole"
) -> pd.DataFrame | None:
    """A table as `find_table` finds it; None where it has not been made. Raises `TableError` where it is another table."""
    path = find_table(results_root, table, name, side)
    return read_frame(path, table) if path.is_file() else None


def runs_at_all_budgets(results_root: Path | str, sweep: str) -> pd.DataFrame | None:
    """Rows of the table `runs` of a sweep over budgets, with their `budget`; None where its tables are not made yet."""
    whole, others = (find_frame(results_root, table, sweep) for table in (RUNS, BUDGET_RUNS))
    if whole is None or others is None:
        return None
    return pd.concat([whole.assign(budget=WHOLE), others], ignore_index=True)


def studies_of(results_root: Path | str) -> list[str]:
    """Names of the studies that have tables, made here or published, in order."""
    return _names(results_root, f"**/*{STUDY_FACTS}", STUDY_FACTS)


def sessions_held(results_root: Path | str) -> list[str]:
    """Names of the sessions that have tables, made here or published, in order."""
    return [name.removeprefix(SESSION) for name in _names(results_root, f"{SESSION}*{FACTS}", FACTS)]


def _names(results_root: Path | str, pattern: str, end: str) -> list[str]:
    tops = (Path(results_root) / TABLES, published_root(results_root) / TABLES)
    return sorted(
        {p.relative_to(top).as_posix().removesuffix(end) for top in tops for p in top.glob(pattern)}
    )


def files_of(root: Path, name: str) -> list[str]:
    """The files of a set that a results folder has, below its `tables/`."""
    if name.startswith(SESSION):
        known = [*(f"{name}-{table.suffix}.csv" for table in OF_SESSION), f"{name}{FACTS}"]
    elif name == OF_CLAIMS:
        known = [f"{table.suffix}.csv" for table in (CLAIMS, PARTS)]
    else:
        known = [f"{name}.csv", f"{name}{FACTS}", f"{name}.json", f"{name}{STUDY_FACTS}"]
        known += [f"{name}-{table.suffix}.csv" for table in (*OF_STUDY, *SWEEP_OPTIONAL)]
    return sorted({file for file in known if (root / TABLES / file).is_file()})


def unfinished(root: Path, name: str) -> str:
    """Why a set in a results folder is not finished, in a sentence; "" where it is.

    A study is finished when each of its planned runs has ended as the method's own outcome; a session when it was held to the
    end and every link gave numbers; tables of neither when they are there.
    """
    files = files_of(root, name)
    if not files:
        return f"there are no tables of {name} here"
    if any(file.endswith(STUDY_FACTS) for file in files):
        facts = _facts(root, f"{name}{STUDY_FACTS}")
        if facts is None:
            return "its facts are damaged"
        states: Mapping[str, int] = facts["statuses"]
        open_ = {state: count for state, count in states.items() if state not in SETTLED}
        if not open_:
            return ""
        listed = ", ".join(f"{count} {state}" for state, count in sorted(open_.items()))
        return f"{sum(open_.values())} of {sum(states.values())} runs have not finished: {listed}"
    if not name.startswith(SESSION):
        return "one of its tables is missing" if name == OF_CLAIMS and len(files) < 2 else ""
    facts = _facts(root, f"{name}{FACTS}")
    if facts is None:
        return "its facts are missing or damaged"
    if facts["status"] != "done":
        return f"the session is {facts['status']}: {facts['reason']}"
    links = [f"{link['label']} is {link['status']}" for link in facts["links"] if link["status"] != "done"]
    return ", ".join(links)


def lacking(root: Path, name: str) -> str:
    """What is published of a set and is not here, in a sentence; "" where nothing is."""
    shared = published_root(root)
    mine, theirs = files_of(root, name), files_of(shared, name)
    if gone := [file for file in theirs if file not in mine and not file.endswith(FACTS)]:
        return f"{', '.join(gone)} of it was not made here"
    if name.startswith(SESSION):
        here, there = (
            [link["label"] for link in (_facts(top, f"{name}{FACTS}") or {"links": ()})["links"]]
            for top in (root, shared)
        )
        if gone := [label for label in there if label not in here]:
            return f"it was not held over {', '.join(gone)}"
    return ""


def _facts(root: Path, file: str) -> dict[str, Any] | None:
    """A file of facts; None where there is none that can be read."""
    try:
        found = json.loads((root / TABLES / file).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and {"statuses", "status"} & found.keys() else None


# ---- what is published


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a folder of what is published; an empty one where there is none. Raises `PublishedError`."""
    try:
        found: dict[str, Any] = dict(json.loads((folder / MANIFEST).read_text(encoding="utf-8")))
    except FileNotFoundError:
        return {"schema_version": MANIFEST_SCHEMA, "sets": {}}
    except (ValueError, TypeError) as error:
        raise PublishedError(f"{folder / MANIFEST} is damaged ({error}): take it from git again") from None
    if found.get("schema_version") != MANIFEST_SCHEMA:
        raise PublishedError(
            f"{folder / MANIFEST} has schema_version {found.get('schema_version')}, not {MANIFEST_SCHEMA}"
        )
    return found


def _sets(folder: Path) -> Mapping[str, Any]:
    found: Mapping[str, Any] = read_manifest(folder)["sets"]
    return found


def refuse_changed(folder: Path, name: str) -> None:
    """Raise `PublishedError` where a table of that set in a folder of what is published is not as the manifest there has it."""
    manifest = folder / MANIFEST
    if manifest.is_file():
        _refuse_changed(folder, name, manifest.stat().st_mtime_ns)


@cache  # once a process, until something is published
def _refuse_changed(folder: Path, name: str, stamp: int) -> None:
    for file, digest in _sets(folder).get(name, {"files": {}})["files"].items():
        path = folder / file
        if file.startswith(TABLES) and not (path.is_file() and _hash(path.read_bytes()) == digest):
            what = "has changed since it was published" if path.is_file() else "is missing"
            raise PublishedError(f"{path} {what}: take it from git again, `git checkout -- {path}`")


def verify(results_root: Path | str) -> list[str]:
    """What of the published files is missing, has changed or is in no set of the manifest, in sentences; none: all is well."""
    folder = published_root(results_root)
    listed = {file: digest for one in _sets(folder).values() for file, digest in one["files"].items()}
    present = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()} - {
        MANIFEST
    }
    wrong = [f"{file} is missing" for file in sorted(listed.keys() - present)]
    wrong += [f"{file} is in no set of the manifest" for file in sorted(present - listed.keys())]
    changed = (
        file
        for file in sorted(listed.keys() & present)
        if _hash((folder / file).read_bytes()) != listed[file]
    )
    return wrong + [f"{file} has changed" for file in changed]


def fingerprint(files: Mapping[str, str]) -> str:
    """One hash of a set: SHA-256 of its files' hashes and names, as `sha256sum` lists them."""
    return _hash("".join(f"{digest}  {file}\n" for file, digest in sorted(files.items())).encode())


def put(
    results_root: Path | str,
    name: str,
    files: Mapping[str, bytes],
    about: Mapping[str, Any],
    *,
    replace: bool = False,
) -> dict[str, Any]:
    """Publish a set: its files by their path in the folder, and what the manifest says of it besides.

    The files come first, each whole, the manifest last. Where that is cut off `verify` names what does not fit, and the same
    command completes it.

    Args:
        name: of the set.
        files: path below the published folder -> content.
        about: day, command, commits and the like; the hashes are added.
        replace: take the place of a set of that name that is different; git has what it was.

    Returns:
        The set as the manifest has it now.

    Raises:
        PublishedError: Another set of that name is published, or a file belongs to another set.
        StoreError: A file cannot be written.
    """
    folder = published_root(results_root)
    manifest = read_manifest(folder)
    hashes = {file: _hash(content) for file, content in sorted(files.items())}
    old = manifest["sets"].get(name)
    if old is not None and old["files"] == hashes:
        return dict(old)
    if old is not None and not replace:
        raise PublishedError(
            f"{name} is published, {old['day']}, and differs from what is here: --replace takes its place, and git keeps "
            "what it was"
        )
    shared = {
        file: digest
        for other, one in manifest["sets"].items()
        if other != name
        for file, digest in one["files"].items()
    }
    if clash := [file for file in hashes if file in shared and shared[file] != hashes[file]]:
        raise PublishedError(f"{clash[0]} belongs to another published set: give the study another name")
    for file, content in files.items():
        with replacing(folder / file) as target:
            target.write(content)
    manifest["sets"][name] = {**about, "files": hashes}
    write_atomic(folder / MANIFEST, dump(manifest, indent=1) + "\n")
    for file in (old or {"files": ()})["files"]:
        if file not in hashes and file not in shared:
            (folder / file).unlink(missing_ok=True)
    return dict(manifest["sets"][name])


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


ATTRIBUTES: Final = (
    "commit", "dirty", "environment_hash", "torch", "python", "system", "cpu", "gpu", "cores", "threads",
)  # fmt: skip
CHANGES: Final = "changes"
"""SHA-256 of how the code differed from its commit."""
Origin = dict[str, Any]
"""A panel (`CELL`), the `ATTRIBUTES` that are known of some of its runs, and how many: `runs`."""


def counted(found: Iterable[tuple[Sequence[Any], Mapping[str, Any]]]) -> list[Origin]:
    """Distinct origins from (cell, provenance) of every run that has one, in order of their content."""
    names = (*ATTRIBUTES, CHANGES)
    counts = Counter((*cell, *(_value(provenance, name) for name in names)) for cell, provenance in found)
    return [
        {**dict(zip((*CELL, *names), key, strict=True)), "runs": runs}
        for key, runs in sorted(counts.items(), key=lambda item: tuple(map(str, item[0])))
    ]


def _value(provenance: Mapping[str, Any], name: str) -> Any:
    found = provenance.get(name)
    return found["sha256"] if name == CHANGES and found else found


def of_study(facts: Mapping[str, Any], runs: Iterable[Row]) -> list[Origin]:
    """The origins on record of a study; of tables that lack them what rows and facts say: None is not known."""
    if "origins" in facts:
        return [dict(origin) for origin in facts["origins"]]
    same = {name: values[0] for name, values in facts["provenance"].items() if len(values) == 1}
    same["dirty"] = {"True": True, "False": False}.get(same.get("dirty", ""))
    return counted(
        (
            [row[name] for name in CELL],
            {**same, "commit": row["commit"], "environment_hash": row["environment"]},
        )
        for row in runs
        if row["commit"] is not None or row["environment"] is not None
    )


def refused_rows(root: Path) -> list[Row]:
    """Records of sessions, and folders among the runs, that are refused: kind, name (of a run its folder), record, reason,
    fix.
    """
    found = refused_sessions(root)
    for error in Store(root).refused():
        folder = error.path.parent if error.path.name == "spec.json" else error.path
        found.append(_refused_row("run", folder.relative_to(root).as_posix(), "", error))
    return found


def refused_sessions(root: Path) -> list[Row]:
    """Those that are records of sessions."""
    return [
        _refused_row("session", error.path.parent.parent.name, error.path.parent.name, error)
        for error in sessions.refused(root)
    ]


def _refused_row(kind: str, name: str, record: str, error: RefusedError) -> Row:
    """Of valid UTF-8, whatever a folder is called."""
    texts = {"name": name, "record": record, "reason": error.reason, "fix": error.fix}
    return {"kind": kind} | {key: text.encode("utf-8", "replace").decode() for key, text in texts.items()}


def facts_path(results_root: Path, sweep: str) -> Path:
    """Where the facts of a study lie: tables/<sweep>-study.json."""
    return Path(results_root) / TABLES / f"{sweep}{STUDY_FACTS}"


def session_facts_path(results_root: Path, session: str) -> Path:
    """Where the facts of a session lie: tables/session-<name>-facts.json."""
    return Path(results_root) / TABLES / f"{SESSION}{session}{FACTS}"


def load_facts(results_root: Path | str, name: str, side: Side = "whole") -> dict[str, Any] | None:
    """The facts of a session's tables, or None where there are none. Raises TableError for another version.

    side: which are taken where some were made here and others are published.
    """
    return read_facts(session_facts_path(source(results_root, f"{SESSION}{name}", side).root, name))


def read_facts(path: Path) -> dict[str, Any] | None:
    """The facts in a file, of a study or of a session, or None where there is none. Raises TableError for another version."""
    text = read(path)
    if text is None:
        return None
    try:
        found = dict(json.loads(text))
    except (ValueError, TypeError) as error:
        raise TableError(f"{path} is damaged ({error}); run `bandwise report` again") from None
    if found.get("schema_version") != FACTS_SCHEMA:
        raise TableError(
            f"{path} has schema_version {found.get('schema_version')}, this version reads {FACTS_SCHEMA}; "
            "run `bandwise report` again"
        )
    return found
