"""The document of performance says what the tables say, and its pictures are drawn from them."""

from __future__ import annotations

from pathlib import Path

import pytest

from report.pages.throughput import DOCUMENT, IMAGES, pictures
from suite.analysis.tables import read_table, table_path, write_table
from suite.micro import document
from suite.micro.document import BLOCKS, PICTURES, DocumentError, filled
from suite.micro.tables import (
    AGAINST,
    CODECS,
    COMPILE,
    SCALING,
    THROUGHPUT_TABLES,
    facts_path,
    write_with_facts,
)

RESULTS = Path(__file__).resolve().parents[3] / "results" / "published"


def codec_row(**changes) -> dict:
    row = {
        "case": "signs", "operation": "encode", "numel": 25_000_000, "threads": 2, "n": 31, "seconds": 0.002,
        "copy_s": 0.004, "rate": 2.0, "rate_q1": 1.9, "rate_q3": 2.125, "rate_low": 1.8, "rate_high": 2.2,
        "limit": 2.82, "touched": 4.25, "sent": 0.125, "error": 0.708, "path": "compiled", "allocated": 0,
        "first_s": 3.0, "bar": 1.4, "met": "yes",
    }  # fmt: skip
    return {**row, **changes}


def scaling_row(against: str, subject: str, operation: str, value: int, seconds: float, **changes) -> dict:
    row = {
        "against": against, "subject": subject, "operation": operation, "value": value, "numel": 262_144,
        "threads": 2, "n": 9, "seconds": seconds, "seconds_q1": 0.9 * seconds, "seconds_q3": 1.2 * seconds,
        "theory": 1e-3 * value, "anchor": False,
    }  # fmt: skip
    return {**row, **changes}


@pytest.fixture
def results(tmp_path: Path) -> Path:
    write_table(
        table_path(tmp_path, CODECS),
        CODECS,
        [
            codec_row(),
            codec_row(case="bf16", rate=0.5, bar=None, met=None, allocated=2_500_000, path="torch"),
            codec_row(operation="accumulate", rate=0.25, bar=1.0, met="no"),
        ],
    )
    rows = [
        scaling_row("workers", method, "step", n, 1.5e-3 * n)
        for method in ("lion-cub-1bit", "ef-signsgd")
        for n in (2, 4, 8)
    ]
    rows += [
        scaling_row("elements", "signs", verb, d, 1e-9 * d, theory=1e-9 * d)
        for verb in ("encode", "accumulate")
        for d in (10**4, 10**6)
    ]
    rows += [scaling_row("bits", "packing", "encode", b, 1e-3 * b) for b in (1, 2, 16)]
    rows += [scaling_row("bits", "copy", "encode", 32, 1e-3)]
    write_table(table_path(tmp_path, SCALING), SCALING, rows)
    return tmp_path


def test_the_document_is_what_the_tables_say() -> None:
    """After an edit by hand, or of a table: `make docs`."""
    text = DOCUMENT.read_text(encoding="utf-8")
    assert filled(text, RESULTS) == text


def test_the_pictures_are_those_of_the_table() -> None:
    path = table_path(RESULTS, SCALING)
    drawn = pictures(read_table(path, SCALING)) if path.is_file() else {}
    assert {name: (IMAGES / name).read_text(encoding="utf-8") for name in drawn} == drawn


def test_every_table_has_its_place_and_its_machine() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    for name in BLOCKS:
        assert f"<!-- table: {name}" in text, name
    for suffix in ("rates-codecs", "rates-against", "rates-compile", "rates-scaling", "rates-simulation"):
        assert f"<!-- table: machine {suffix} -->" in text
    for table in THROUGHPUT_TABLES:
        command = {CODECS: "", AGAINST: " --against", COMPILE: " --compile", SCALING: " --scaling"}.get(
            table, " --simulation"
        )
        assert f"`bandwise rates{command}`" in text


def test_a_table_of_codecs(results: Path) -> None:
    text = filled("a\n<!-- table: codecs -->\nold\n<!-- end of table -->\nb\n", results)
    lines = text.splitlines()
    assert lines[:2] == ["a", "<!-- table: codecs -->"]
    assert lines[-2:] == ["<!-- end of table -->", "b"]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[4:-2]]
    assert cells == [
        ["signs", "encode", "2.00", "1.90 to 2.12", "31", "2.82", "4.25", "0.125", "0.708", "compiled", "0", "1.40", "yes"],
        ["signs", "accumulate", "0.25", "1.90 to 2.12", "31", "2.82", "4.25", "0.125", "0.708", "compiled", "0", "1.00", "no"],
        ["bf16", "encode", "0.5", "1.90 to 2.12", "31", "2.82", "4.25", "0.125", "0.708", "torch", "2.5 MB", "", ""],
    ]  # fmt: skip
    assert filled(text, results) == text


def test_another_number_in_the_table_is_another_document(results: Path) -> None:
    text = filled("<!-- table: codecs -->\n<!-- end of table -->", results)
    write_table(table_path(results, CODECS), CODECS, [codec_row(rate=2.5)])
    assert filled(text, results) != text


def test_what_is_not_there_names_its_command(tmp_path: Path) -> None:
    for block, command in {
        "codecs": "bandwise rates`", "against": "bandwise rates --against`", "first-calls": "bandwise rates --compile",
        "scaling bits": "bandwise rates --scaling", "simulation": "bandwise rates --simulation",
        "session some-name": "bandwise session some-name", "bounds some-name": "bandwise session some-name",
    }.items():  # fmt: skip
        text = filled(f"<!-- table: {block} -->\n<!-- end of table -->", tmp_path)
        assert f"*Not measured yet: `{command}" in text


def test_unknown_tables_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DocumentError, match="no table is called 'codec'; there are codecs"):
        filled("<!-- table: codec -->\n<!-- end of table -->", tmp_path)
    with pytest.raises(DocumentError, match="no table is called 'rates'"):
        filled("<!-- table: machine rates -->\n<!-- end of table -->", tmp_path)


def test_the_machine_in_a_sentence(tmp_path: Path) -> None:
    facts = {
        "ended": "2026-11-21T10:00:00+00:00", "took_s": 200.4, "threads": 2, "compiler": None, "not_compiled": {"signs.x": "why"},
        "allocator": "libc", "foreign_share": 0.012, "steal_share": 0.0, "load_average": 1.0, "gpu": "not measured",
        "provenance": {"cpu": "A CPU", "cores": 2, "system": "Linux x86_64", "python": "3.11", "torch": "2.13.0",
                       "commit": "0123456789abcdef", "dirty": True},
    }  # fmt: skip
    write_with_facts(tmp_path, CODECS, [], facts)
    assert facts_path(tmp_path, CODECS).name == "rates-codecs-facts.json"
    said = document.machine(tmp_path, "rates-codecs")
    for word in ("A CPU, 2 cores, 2 threads", "compiler: none, so everything ran eagerly", "others used 1.2%",
                 "commit 01234567 with changes", "could not be compiled: signs.x", "GPU: not measured"):  # fmt: skip
        assert word in said


def test_a_session_is_shown_with_its_limit() -> None:
    """From a table of this repository: the reference has speedup 1 and a limit of its own step over that without sending."""
    text = document.session(RESULTS, "code-gpt-pair")
    head, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]
    assert head[-2:] == ["limit", "speedup over limit"]
    references = [row for row in rows if row[1].startswith("**")]
    assert references
    assert {row[5] for row in references} == {"1.00"}
    ours = [row for row in rows if row[7]]
    assert ours
    for row in ours:
        assert float(row[8]) == pytest.approx(float(row[5]) / float(row[7]), rel=0.02)


def test_the_bounds_of_a_session() -> None:
    """From a table of this repository: the best fp32 DDP of each link is what all others are over."""
    text = document.bounds(RESULTS, "performance-small")
    head, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]
    assert head[2:5] == ["over fp32 DDP", "95 %", "n"]
    assert {row[2] for row in rows if row[3] == "1.000 to 1.000"} == {"1.000"}
    assert {row[0] for row in rows if row[3] == "1.000 to 1.000"} == {row[0] for row in rows}
    for row in rows:
        low, high = (float(end) for end in row[3].split(" to "))
        assert low <= float(row[2]) <= high
        assert int(row[4]) >= 20


def test_pictures(results: Path) -> None:
    rows = read_table(table_path(results, SCALING), SCALING)
    drawn = pictures(rows)
    assert list(drawn) == list(PICTURES.values())
    assert drawn == pictures(rows)
    assert "lion-cub-1bit" in drawn[PICTURES["workers"]]
    assert "simulated workers" in drawn[PICTURES["workers"]]
    assert pictures([row for row in rows if row["against"] == "bits"]).keys() == {PICTURES["bits"]}
