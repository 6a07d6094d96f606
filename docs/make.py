"""What is made of declarations and of published tables: pages of file formats, JSON Schemas, claims, throughput and
the cost model: `make docs`.

A page has blocks ``<!-- table: keys KIND -->`` ... ``<!-- end of table -->``; what stands between them is made here. Tests hold
all of it equal to what is made.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from report.pages import costs, throughput
from slurm.profile import ProfileFile
from suite.analysis.columns import MICRO, REFUSED
from suite.analysis.document import fill, markdown
from suite.analysis.export import OF_SESSION, OF_SWEEP
from suite.analysis.published import documents_root
from suite.analysis.tables import read_table, table_path
from suite.claims import document as claims_document
from suite.claims.claim import ClaimFile
from suite.claims.columns import VERDICT_TABLES
from suite.costs import document as cost_document
from suite.costs.columns import BREAK_EVEN_CHECKS
from suite.costs.document import COST_TABLES
from suite.costs.external import Rules, Source
from suite.micro import document as rates_document
from suite.micro.tables import AGAINST, CODECS, COMPILE, SCALING, SIMULATION
from suite.runs.documents import json_schema, key_rows
from suite.runs.files import dump, write_atomic
from suite.runs.result import RESULT_VERSION, Evaluation, Note, Result
from suite.runs.spec import RunSpec
from suite.runs.sweep import RatesFile, Sweep
from suite.studies.rate_distortion import EQUAL_LEVELS, RATE_DISTORTION
from suite.studies.sign_agreement import SIGN_AGREEMENT
from suite.timing.spec import SessionSpec
from suite.timing.store import SESSION_VERSION, SessionRecord

ROOT: Final = Path(__file__).resolve().parent.parent
SCHEMAS: Final = ROOT / "results" / "schema"
KINDS: Final = MappingProxyType(
    {
        "claim": ClaimFile,
        "evaluation": Evaluation,
        "external": Source,
        "external-rules": Rules,
        "learning-rates": RatesFile,
        "profile": ProfileFile,
        "result": Result,
        "session": SessionSpec,
        "session-record": SessionRecord,
        "status": Note,
        "sweep": Sweep,
    }
)
"""What a block's argument names: a kind of document."""
TABLES: Final = (
    *(*OF_SWEEP, *OF_SESSION, MICRO, REFUSED),
    *(*VERDICT_TABLES, RATE_DISTORTION, EQUAL_LEVELS, SIGN_AGREEMENT),
    *COST_TABLES,
    *(BREAK_EVEN_CHECKS, CODECS, AGAINST, COMPILE, SCALING, SIMULATION),
)
"""All tables whose columns pages list."""
PUBLISHED: Final = (
    ("evaluation", Evaluation, 1, "A line of a run's curve: metrics.jsonl."),
    ("result", Result, RESULT_VERSION, "How a run ended, written last: result.json."),
    ("session", SessionRecord, SESSION_VERSION, "The record of a timing session: session.json."),
    ("spec", RunSpec, 1, "All that decides what a run computes: spec.json."),
    ("status", Note, 1, "How a run stands: status.json."),
)


def keys(results_root: Path, kind: str) -> str:
    """The table of a kind of document: every key, its kind, its default where it has one, its meaning."""
    rows = [(f"`{name}`", of, default, meaning) for name, of, default, meaning in key_rows(KINDS[kind])]
    if {default for _, _, default, _ in rows} - {"", "needed"}:
        return markdown(("key", "kind", "default", "meaning"), rows)
    return markdown(("key", "kind", "meaning"), [(name, of, meaning) for name, of, _, meaning in rows])


def columns(results_root: Path, name: str) -> str:
    """The table of a table: every column, its kind and its meaning, after the columns that are its key."""
    table = next(table for table in TABLES if table.suffix == name)
    key = ", ".join(f"`{column}`" for column in table.names[: table.keys])
    rows = [(f"`{column.name}`", column.kind, column.meaning) for column in table.columns]
    return f"Key: {key}.\n\n{markdown(('column', 'kind', 'meaning'), rows)}"


def schemas() -> dict[str, dict[str, Any]]:
    """All published schemas by the name of their file."""
    return {
        f"{name}-v{version}.json": json_schema(
            kind, f"bandwise {name}", f"{about} Version {version}.", f"urn:bandwise:{name}:{version}"
        )
        for name, kind, version, about in PUBLISHED
    }


def made() -> Iterator[tuple[Path, str]]:
    """Every file that is made, with its text."""
    for page in sorted((ROOT / "docs").glob("*-formats.md")):
        text = page.read_text(encoding="utf-8")
        if "<!-- table: " in text:
            yield page, fill(text, ROOT / "results", {"keys": keys, "columns": columns})
    for name, schema in schemas().items():
        yield SCHEMAS / name, dump(schema, indent=1) + "\n"


def cost_model() -> Iterator[tuple[Path, str]]:
    """The pages of the cost model and their pictures, of published tables where there are any."""
    root = documents_root(ROOT / "results")
    for name, text in costs.pictures(root, cost_document.places(root)).items():
        yield costs.IMAGES / name, text
    for page in costs.DOCUMENTS:
        yield page, cost_document.filled(page.read_text(encoding="utf-8"), root)


def measured() -> Iterator[tuple[Path, str]]:
    """The pages of throughput and of claims, and the pictures of the first, of published tables where there are any."""
    root = documents_root(ROOT / "results")
    path = table_path(root, SCALING)
    for name, text in throughput.pictures(read_table(path, SCALING) if path.is_file() else ()).items():
        yield throughput.IMAGES / name, text
    yield throughput.DOCUMENT, rates_document.filled(throughput.DOCUMENT.read_text(encoding="utf-8"), root)
    yield (
        claims_document.DOCUMENT,
        claims_document.filled(claims_document.DOCUMENT.read_text(encoding="utf-8"), root),
    )


if __name__ == "__main__":
    for path, text in (*made(), *cost_model(), *measured()):
        write_atomic(path, text)
