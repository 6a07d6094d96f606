"""The page of a comparison and the verb that makes it."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import pytest

from bandwise.cli import main
from report.pages.compare import headline, render
from suite.analysis.compare import compare, read_results
from suite.analysis.speed_columns import ARMS
from suite.analysis.tables import number, read_table, write_table
from tests.report.conftest import HOSTILE, Built
from tests.report.test_browser import open_in_browser
from tests.report.test_page import Page


@pytest.fixture
def changed(built: Built, tmp_path: Path) -> Path:
    """The made-up tables, with one arm ten points worse, an arm renamed, another processor."""
    root = tmp_path / "after"
    shutil.copytree(built.root / "tables", root / "tables")
    path = root / "tables" / "made-up-runs.csv"
    lines = path.read_text().splitlines()
    place = lines[0].split(",").index("lr_peak")
    assert place
    found = []
    for line in lines:
        if ",iid,4,apmsqueeze," in line:
            number = next(cell for cell in line.split(",") if cell.startswith("9") and "." in cell)
            line = line.replace(number, f"{float(number) - 10 - len(found) % 3:.6f}")
        found.append(line.replace("local-sgd H=16", "renamed"))
    path.write_text("\n".join(found) + "\n")
    facts = path.with_name("made-up-study.json")
    facts.write_text(facts.read_text().replace("Some Processor", HOSTILE.replace('"', "'")))
    return root


def test_what_changed_stands_on_the_page_and_hostile_text_does_nothing(built: Built, changed: Path) -> None:
    found = compare(read_results(str(built.root), built.root), read_results(str(changed), built.root))
    html = render(found)
    assert html == render(found)
    page = Page(html)
    assert page.open == []
    assert len(set(page.ids)) == len(page.ids)
    assert "alert(" not in html.split("<main id=")[0]
    assert "<script>alert" not in html
    assert "1 worse" in page.sections["headline"]
    assert "The hardware is another" in page.sections["headline"]
    assert "Only in B: sweep made-up: renamed" in page.sections["unpaired"]


def test_findings_name_what_is_worse_and_count_what_did_not_finish(
    built: Built, changed: Path, tmp_path: Path
) -> None:
    path = changed / "tables" / "made-up-runs.csv"
    lines = path.read_text().splitlines()
    names = lines[0].split(",")
    rows = list(csv.reader(lines))
    for row in rows[1:]:
        if row[names.index("arm")] == "allreduce-sgd" and row[names.index("sharding")] == "iid":
            row[names.index("status")], row[names.index("reason")] = "oom", HOSTILE
            row[names.index("value")] = ""
    with path.open("w", newline="") as out:
        csv.writer(out, lineterminator="\n").writerows(rows)
    found = compare(read_results(str(built.root), built.root), read_results(str(changed), built.root))
    told = headline(found)
    (worse,) = (line for line in told if line.startswith("Worse: apmsqueeze (made-up, iid) −1"))
    assert " points [−" in worse
    assert "6 runs ended otherwise, 6 of which were done in A; they are in no mean." in told
    page = Page(render(found))
    assert "done oom" in " ".join(page.sections["unpaired"].split())
    assert HOSTILE in page.sections["unpaired"]
    assert "higher is better" in page.sections["accuracy"]


def test_speedups_stand_with_the_rounds_of_both_sides(timed: Built, tmp_path: Path) -> None:
    shutil.copytree(timed.root / "tables", tmp_path / "tables")
    path = tmp_path / "tables" / "session-alone-arms.csv"
    rows = read_table(path, ARMS)
    for row in rows:
        if row["speedup"] is not None:
            row.update({name: 0.5 * number(row, name) for name in ("speedup", "speedup_low", "speedup_high")})
    write_table(path, ARMS, rows)
    found = compare(read_results(str(timed.root), timed.root), read_results(str(tmp_path), timed.root))
    slower = [change for change in found.speeds if change.word == "slower"]
    assert {change.session for change in slower} == {"alone"}
    assert {(change.n_a, change.n_b) for change in slower} == {(6, 6)}
    assert any(line.startswith("Slower, the largest of") and "0.50× [" in line for line in headline(found))
    assert "6, 6" in Page(render(found)).sections["speed"]


@pytest.mark.chromium
def test_the_page_opens_without_an_error(built: Built, changed: Path, tmp_path: Path) -> None:
    out = tmp_path / "changes.html"
    assert (
        main(["compare", str(built.root), str(changed), "--html", str(out), "--results", str(built.root)])
        == 0
    )
    document, console = open_in_browser(out, tmp_path / "profile", "#view&arms.find=apmsqueeze")
    assert console == []
    assert '<div class="tools">' in document


def test_the_verb(built: Built, changed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["compare", str(built.root), str(changed), "--results", str(built.root)]
    assert main([*given, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert [arm["arm"] for arm in answer["arms"] if arm["word"] == "worse"] == ["apmsqueeze"]
    assert main(given) == 0
    text = capsys.readouterr().out
    assert "only in A: sweep made-up: local-sgd H=16" in text
    assert "other hardware, sweep made-up: cpu Some Processor" in text
    assert main([*given, "--sweep", "absent"]) == 2
    assert "has no sweep absent; it has made-up" in capsys.readouterr().err
