"""The page of asv's values: courses, changes told only outside both intervals, what is said to those who cannot see it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bandwise.cli import main
from report.pages.micro import (
    BETTER,
    COMMITS,
    ONLY,
    STEADY,
    WORSE,
    asv_site,
    build_micro_page,
    series_of,
    sparkline,
)
from report.rendering import ReportError
from suite.analysis.columns import MICRO
from suite.analysis.tables import Row, table_path, write_table
from tests.report.conftest import HOSTILE
from tests.report.test_browser import open_in_browser
from tests.report.test_page import Page


def measured(day: int, value: float | None, half: float | None = 0.1, **cells: object) -> Row:
    """A value of a day's commit; its interval reaches `half` of it to either side."""
    ends = (None, None) if value is None or half is None else (value * (1 - half), value * (1 + half))
    row: Row = {
        "benchmark": "codecs.Encode.time_encode", "params": "'sign', 4096", "commit": f"{day:08x}",
        "committed": f"2027-01-{day:02d}T10:00:00Z", "machine": "box", "environment": "0a0a0a0a",
        "status": "failed" if value is None else "done", "value": value, "ci_low": ends[0], "ci_high": ends[1],
        "unit": "seconds",
    }  # fmt: skip
    return row | cells


@pytest.mark.parametrize(
    ("before", "now", "half", "word"),
    [
        (1.0, 1.05, 0.1, STEADY),
        (1.0, 1.105, 0.1, STEADY),  # outside one interval, inside the other
        (1.0, 1.3, 0.1, WORSE),
        (1.0, 0.7, 0.1, BETTER),
        (16.0, 17.0, None, WORSE),  # counted: any change is told
        (16.0, 16.0, None, STEADY),
        (None, 1.0, 0.1, ONLY),
        (1.0, None, 0.1, ONLY),
    ],
)
def test_a_change_is_told_outside_both_intervals(
    before: float | None, now: float | None, half: float | None, word: str
) -> None:
    (series,) = series_of([measured(2, now, half), measured(1, before, half)])
    assert series.word == word
    assert series.ratio == (None if word == ONLY else pytest.approx(now / before))


def test_machines_and_environments_are_not_mixed_and_old_commits_are_left_out() -> None:
    rows = [measured(day, 1.0) for day in range(1, 28)]
    rows += [measured(1, 9.0, machine="other"), measured(2, 9.0, environment="0b0b0b0b")]
    lengths = sorted(len(series.rows) for series in series_of(rows))
    assert lengths == [1, 1, COMMITS]
    assert max(series_of(rows), key=lambda one: len(one.rows)).last["commit"] == f"{27:08x}"


def test_a_sparkline_marks_the_last_value_leaves_gaps_and_says_its_numbers() -> None:
    drawn = sparkline([1.0, None, 3.0, 2.0], '1 at a, 3 at "b"')
    assert re.search(r'd="M3\.0 17\.0M\S+ 3\.0L\S+ 10\.0"', drawn)
    assert 'aria-label="1 at a, 3 at &quot;b&quot;"' in drawn
    assert 'cx="89.0" cy="10.0"' in drawn
    assert 'cy="10.0"' in sparkline([5.0, 5.0], "")
    assert sparkline([None], "failed") == ""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    rows = [
        measured(1, 1e-3), measured(2, 2e-3),
        measured(1, 8.0, None, benchmark="codecs.track_bytes", params=HOSTILE, unit="bytes"),
        measured(2, None, benchmark="codecs.track_bytes", params=HOSTILE, unit="bytes"),
    ]  # fmt: skip
    write_table(table_path(tmp_path, MICRO), MICRO, rows)
    return tmp_path


def test_the_page(root: Path, tmp_path: Path) -> None:
    path, found = build_micro_page(root, tmp_path / "page.html")
    text = path.read_text(encoding="utf-8")
    page = Page(text)
    assert page.open == []
    assert len(set(page.ids)) == len(page.ids)
    assert found[0] == "2 values of 2 benchmarks over 2 commits; 1 failed at the newest."
    assert found[1].startswith(
        "Of 1 held against the commit before, outside both 99 % intervals: 1 worse, 0 better"
    )
    assert found[2] == "Worse by most: codecs.Encode.time_encode('sign', 4096) 2×."
    shown = " ".join(page.sections["benchmarks"].split())
    assert "2 ms [1.8 ms, 2.2 ms]" in shown
    assert "failed" in shown
    assert 'aria-label="1 ms at 00000001, 2 ms at 00000002"' in text
    assert "<script>alert" not in text
    assert "asv publish" in shown
    assert build_micro_page(root, tmp_path / "again.html")[0].read_text(encoding="utf-8") == text


def test_asv_s_site_is_linked_where_it_was_built(tmp_path: Path) -> None:
    results, page = tmp_path / "results", tmp_path / "results" / "reports" / "micro.html"
    assert asv_site(results, page) == ""
    (tmp_path / "asv.conf.json").write_text('{"html_dir": ".asv/html"}')
    assert asv_site(results, page) == ""
    (tmp_path / ".asv" / "html").mkdir(parents=True)
    (tmp_path / ".asv" / "html" / "index.html").write_text("")
    assert asv_site(results, page) == "../../.asv/html/index.html"
    write_table(table_path(results, MICRO), MICRO, [measured(1, 1.0)])
    built, found = build_micro_page(results)
    assert built == page
    assert 'href="../../.asv/html/index.html"' in built.read_text(encoding="utf-8")
    assert "Only one commit was measured" in found[1]


def test_hundreds_of_values_over_many_commits_stay_small(tmp_path: Path) -> None:
    rows = [
        measured(
            day,
            1e-3 * (1 + day / 100),
            params=f"'codec {number}'",
            benchmark=f"codecs.Part{number % 12}.time",
        )
        for number in range(600)
        for day in range(1, 29)
    ]
    write_table(table_path(tmp_path, MICRO), MICRO, rows)
    path, _ = build_micro_page(tmp_path)
    assert path.stat().st_size < 5e6
    assert (
        path.read_text(encoding="utf-8").count('<details class="claim" id') == 12
    )  # closed: nothing changed


def test_without_measurements_the_command_is_named(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match="asv run"):
        build_micro_page(tmp_path)


def test_the_verb(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "micro", "--results", str(root)]) == 0
    assert capsys.readouterr().out.endswith(f"report: {root / 'reports' / 'micro.html'}\n")


@pytest.mark.chromium
def test_in_a_browser(root: Path, tmp_path: Path) -> None:
    path, _ = build_micro_page(root, tmp_path / "page.html")
    document, console = open_in_browser(
        path, tmp_path / "profile", "#view&micro-codecs-encode-time-encode.sort=ratio"
    )
    assert console == []
    assert '<div class="tools" hidden' not in document
    assert 'aria-sort="ascending"' in document
