"""Curves on the page: what the tables say, and in words where there is nothing."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
import time

import pytest

from report.drawing.scales import spread
from report.study.build import build_page
from report.study.curves import MOST_POINTS, Place, curves_parts, decades, drawn, panel_curves
from suite.analysis.collect import Collected, write
from suite.analysis.columns import CURVES, OF_STUDY, RUNS, SENSITIVITY, SUMMARY
from suite.analysis.summary import summarise
from suite.analysis.tables import frame_of, table_path
from tests.report.conftest import build, unpacked
from tests.report.test_page import Page
from tests.suite.analysis import made_up_study as made


@pytest.fixture(scope="module")
def page(raced):
    return Page(raced.html)


def words(page, section):
    return " ".join(page.sections[section].split())


def test_the_page_is_whole(raced, page):
    assert page.open == []
    assert len(set(page.ids)) == len(page.ids)
    wanted = {reference[1:] for reference in page.references if reference.startswith("#")}
    assert {"curves"} <= wanted <= set(page.ids)
    assert not re.search(r"https?://|\burl\((?!#)", raced.html)


def test_every_arm_with_a_curve_is_drawn_and_named(raced):
    for part in curves_parts(raced.study, panel_curves(raced.study))["panels"]:
        svg = " ".join(picture["svg"] for picture in part["pictures"])
        found = panel_curves(raced.study)[part["slug"]]
        for curve in found.values():
            short = curve.arm.removeprefix("control-")
            assert short in svg
        if part["slug"].endswith("iid-n4"):
            assert "apmsqueeze (5 of 6)" in svg
            assert found["apmsqueeze"].n == 5
        else:
            assert part["absent"] == ["qsr-sgd"]


def test_the_numbers_of_the_pictures_can_be_downloaded(raced):
    text = re.search(r'<script type="application/json" id="data">(.*?)</script>', raced.html, re.S).group(1)
    tables = json.loads(text)["tables"]
    assert "curves" not in tables, "every evaluation of every seed would swell the page"
    own = list(csv.DictReader(io.StringIO(unpacked(tables["mean-curves"]))))
    lost = [r for r in own if (r["arm"], r["sharding"]) == ("apmsqueeze", "iid")]
    assert [(r["step"], r["n"], r["low"]) for r in lost] == [(str(25 * i), "5", "") for i in range(1, 9)]
    last = next(r for r in own if (r["arm"], r["sharding"], r["step"]) == ("allreduce-sgd", "iid", "200"))
    ends = [
        r["value"] for r in raced.study.rows(RUNS) if (r["arm"], r["sharding"]) == ("allreduce-sgd", "iid")
    ]
    assert float(last["mean"]) == pytest.approx(sum(ends) / 6, rel=1e-8)
    assert float(last["low"]) < float(last["mean"]) < float(last["high"])


def test_a_study_whose_tables_have_no_curves_says_so_with_the_command(built, page, tmp_path):
    assert "The curves of these runs are not in the tables here. bandwise sweep made-up" in words(
        Page(built.html), "curves"
    )
    older = tmp_path / "older"
    shutil.copytree(built.root / "tables", older / "tables")
    table_path(older, CURVES, "made-up").unlink()  # tables of an earlier version
    assert words(Page(build(older).html), "curves") == words(Page(built.html), "curves")


def test_the_same_tables_give_the_same_bytes(raced, tmp_path):
    again = build_page(raced.root, "made-up", tmp_path / "again.html")
    assert again.path.read_text() == raced.html


def many_times(raced, root, copies):
    """The tables of the study with so many times the seeds."""
    study = made.study_of()

    def copied(table):
        return [
            {**row, "seed": row["seed"] + 6 * i} for row in raced.study.rows(table) for i in range(copies)
        ]

    runs, curves = copied(RUNS), frame_of(CURVES, copied(CURVES))
    for number, row in enumerate(runs):
        row["run_id"] = f"{number:016x}"
    frame = frame_of(RUNS, runs)
    summary, judged = summarise(study, frame)
    tables = {table: frame_of(table, ()) for table in OF_STUDY} | {
        RUNS: frame,
        SUMMARY: summary,
        SENSITIVITY: judged,
        CURVES: curves,
    }
    write(root, Collected("made-up", tables, raced.study.facts))
    return len(runs)


@pytest.mark.full
def test_curves_of_two_thousand_runs_build_in_bounded_time_and_size(raced, tmp_path):
    assert many_times(raced, tmp_path, 10) == 2160
    assert len(table_path(tmp_path, CURVES, "made-up").read_text().splitlines()) > 16_000
    start = time.process_time()
    path = build_page(tmp_path, "made-up").path
    assert time.process_time() - start < 25
    assert path.stat().st_size < 5e6


def test_names_that_touch_are_moved_apart_and_stay_in_order():
    spots = spread([10.0, 10.5, 40.0, 11.0], 8.0, 0.0, 50.0)
    assert spots == [2.5, 10.5, 40.0, 18.5]
    assert spread([49.0, 49.5, 50.0], 8.0, 0.0, 50.0) == [34.0, 42.0, 50.0]
    assert spread([0.0, 0.0], 8.0, 0.0, 50.0) == [0.0, 8.0]
    assert spread([], 8.0, 0.0, 50.0) == []


def test_few_powers_of_ten_name_an_axis_of_bytes():
    assert decades(2e5, 3e8) == [1e6, 1e7, 1e8]
    assert decades(9e4, 3e8) == [1e6, 1e8]
    assert decades(2.0, 3.0) == []


def test_a_long_curve_is_thinned_and_keeps_its_end():
    places = [Place(step, 1.0, None, None, None) for step in range(1, 1001)]
    thin = drawn(places)
    assert len(thin) <= MOST_POINTS
    assert thin[-1].step == 1000
    assert drawn(places[:5]) == places[:5]
