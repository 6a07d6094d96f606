"""The published JSON Schemas of files, one a version, made from what `runs.formats` and `timing.formats` say.

python -m suite.analysis.schemas      writes results/schema/, which tests hold equal to what stands here
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from suite.runs.described import json_schema
from suite.runs.formats import (
    EVALUATION,
    EVALUATION_VERSION,
    RESULT,
    RESULT_VERSION,
    STATUS,
    STATUS_VERSION,
)
from suite.runs.writing import dump, write_atomic
from suite.timing.formats import SESSION, SESSION_VERSION

FILES: Final = (
    ("evaluation", EVALUATION, EVALUATION_VERSION, "A line of a run's curve: metrics.jsonl."),
    ("result", RESULT, RESULT_VERSION, "How a run ended, written last: result.json."),
    ("session", SESSION, SESSION_VERSION, "The record of a timing session: session.json."),
    ("status", STATUS, STATUS_VERSION, "How a run stands: status.json."),
)


def schemas() -> dict[str, dict[str, Any]]:
    """All published schemas by the name of their file."""
    return {
        f"{name}-v{version}.json": json_schema(
            record,
            f"bandwise {name}",
            f"{about} Version {version}.",
            f"urn:bandwise:{name}:{version}",
            version,
        )
        for name, record, newest, about in FILES
        for version in range(1, newest + 1)
    }


def write_schemas(folder: Path) -> list[Path]:
    """Write the published schemas; returns the files."""
    written = []
    for name, schema in schemas().items():
        write_atomic(folder / name, dump(schema, indent=1) + "\n")
        written.append(folder / name)
    return written


if __name__ == "__main__":
    write_schemas(Path(__file__).resolve().parents[2] / "results" / "schema")
