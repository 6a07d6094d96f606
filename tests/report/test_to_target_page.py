"""To target and profiles on the page: what the tables say, in words where there is nothing, in a browser and without."""

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
from report.study.curves import MOST_POINTS, Place, decades, drawn, panel_curves
from report.study.data import load
from report.study.to_target import profiles_parts, to_target_parts, unit_steps
from suite.analysis.collect import Collected, collect, write
from suite.analysis.columns import CURVES, OF_STUDY, PROFILES, RUNS, SENSITIVITY, SUMMARY, TO_TARGET
from suite.analysis.speed_columns import ARMS
from suite.analysis.summary import summarise
from suite.analysis.tables import frame_of, table_path, write_table
from suite.analysis.to_target import arrivals, to_target
from tests.report import made_up_speed
from tests.report.conftest import build, unpacked
from tests.report.test_browser import open_in_browser
from tests.report.test_page import Page
from tests.suite.analysis import made_up_curves
from tests.suite.analysis import made_up_study as made

FOUR = ("allreduce-sgd", "allreduce-lion", "lion-cub-1bit never", "global-qsgd standard")


@pytest.fixture(scope="module")
def page(raced):
    return Page(raced.html)


def words(page, section):
    return " ".join(page.sections[section].split())


def test_the_page_is_whole(raced, page):
    assert page.open == []
    assert len(set(page.ids)) == len(page.ids)
    wanted = {reference[1:] for reference in page.references if reference.startswith("#")}
    assert {"to-target", "profiles"} <= wanted <= set(page.ids)
    assert not re.search(r"https?://|\burl\((?!#)", raced.html)


def test_the_section_says_what_the_target_is_and_that_misses_count(raced, page):
    text = words(page, "to-target")
    rows = [r for r in raced.study.rows(TO_TARGET) if r["sharding"] == "by-class"]
    reference, target = rows[0]["reference"], rows[0]["target"]
    assert f"of at least {target:.2f}, which is what {reference} ends at (median of 6 finished seeds)" in text
    assert "given way by the margin of 0.4 points. Evaluated at least every 25 steps of 200." in text
    assert "cosine schedule" in text
    lost = next(r for r in rows if r["arm"] == "qsr-sgd")
    assert (lost["n"], lost["n_reached"], lost["n_diverged"]) == (6, 0, 6)
    assert "qsr-sgd 0 of 6 never [never, never] never" in text
    assert "Not drawn, since no seed finished with a curve: qsr-sgd." in text
    assert "bandwise report made-up" in text


def test_censored_rows_stand_in_the_table_with_their_interval(raced, page):
    """Some seeds of some arm miss: its row says how many reached it, and its interval ends at never."""
    rows = [r for r in raced.study.rows(TO_TARGET) if 0 < r["n_reached"] < r["n"]]
    assert rows
    text = words(page, "to-target")
    for row in rows:
        assert f"{row['arm']} {row['n_reached']} of {row['n']}" in text
        assert row["steps_high"] == float("inf")
    assert re.search(r"\d+ \[\d+, never\]", text)


def test_every_arm_with_a_curve_is_drawn_and_named(raced):
    for part in to_target_parts(raced.study, panel_curves(raced.study))["panels"]:
        svg = " ".join(picture["svg"] for picture in part["pictures"])
        found = panel_curves(raced.study)[part["slug"]]
        for curve in found.values():
            short = curve.arm.removeprefix("control-")
            assert short in svg
        if part["slug"].endswith("iid-n4"):
            assert "apmsqueeze (5 of 6)" in svg
            assert found["apmsqueeze"].n == 5


def test_the_numbers_of_the_pictures_can_be_downloaded(raced):
    text = re.search(r'<script type="application/json" id="data">(.*?)</script>', raced.html, re.S).group(1)
    tables = json.loads(text)["tables"]
    assert "curves" not in tables, "every evaluation of every seed would swell the page"
    for name in ("to-target", "profiles"):
        assert unpacked(tables[name]) == (raced.root / f"tables/made-up-{name}.csv").read_text()
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
        Page(built.html), "to-target"
    )
    older = tmp_path / "older"
    shutil.copytree(built.root / "tables", older / "tables")
    for table in (CURVES, TO_TARGET, PROFILES):  # tables of an earlier version
        table_path(older, table, "made-up").unlink()
    assert words(Page(build(older).html), "to-target") == words(Page(built.html), "to-target")


def test_the_same_tables_give_the_same_bytes(raced, tmp_path):
    again = build_page(raced.root, "made-up", tmp_path / "again.html")
    assert again.path.read_text() == raced.html


@pytest.fixture(scope="module")
def profiled(tmp_path_factory):
    """The study's tables with a profile of four cells."""
    root = tmp_path_factory.mktemp("profiled")
    chosen = tuple(m for m in made.MADE if m.arm.name in FOUR)
    study = made.study_of(made=chosen)
    store = made.run_all(root, study, chosen)
    made_up_curves.keep_all(store, study)
    write(root, collect(root, study))
    taus = (1.0, 2.0, 4.0)
    shares = {
        "allreduce-sgd": (0, 0, 1),
        "allreduce-lion": (0, 0.5, 1),
        "lion-cub-1bit never": (0.5, 0.5, 0.5),
        "global-qsgd standard": (0.5, 1, 1),
    }
    families = {m.arm.name: m.arm.family for m in chosen}
    rows = [
        {
            "quantity": quantity, "arm": arm, "tau": tau, "family": families[arm], "share": float(share),
            "low": share * 0.5, "high": 1.0, "never": 1.0 - own[-1], "cells": 4, "seeds": 6,
        }
        for quantity in ("steps", "bytes")
        for arm, own in shares.items()
        for tau, share in zip(taus, own, strict=True)
    ]  # fmt: skip
    write_table(table_path(root, PROFILES, "made-up"), PROFILES, rows)
    return build(root)


def test_profiles_write_out_what_was_never_reached(profiled):
    text = words(Page(profiled.html), "profiles")
    assert "Over all 4 cells" in text
    assert "lion-cub-1bit never 2 of 4 50 % [25, 100 %]" in text
    assert "global-qsgd standard 0 of 4" in text
    found = profiles_parts(load(profiled.root, "made-up"))
    assert [picture["title"].partition(":")[0] for picture in found["pictures"]] == ["Sign", "Quantiser"]
    assert "50 % of the cells at the fewest bytes, 50 % never" in found["pictures"][0]["svg"]


def test_a_study_that_is_too_small_for_a_profile_says_so(page):
    assert "takes 4 cells that share their arms, with 6 seeds each; 2 of this study have curves" in words(
        page, "profiles"
    )


@pytest.mark.parametrize(
    ("units", "steps"),
    [
        ('{"step":100}', 1),
        ('{"round-4":1,"round-8":12}', 8),
        ('{"round-100":1}', 100),
        ('{"step":90,"sync":10}', None),
        ('{"round-4":8,"round-29":1}', None),
        ('{"round-8":10,"step":20}', None),
        (None, None),
    ],
)
def test_only_trainings_whose_steps_all_cost_the_same_have_seconds(units, steps):
    assert unit_steps({"steps_by_kind": units}) == steps


@pytest.mark.full
def test_seconds_on_every_link_that_was_timed(raced, tmp_path):
    """Steps to the target times seconds a step, a link each; where the session has no number, why."""
    shutil.copytree(raced.root / "tables", tmp_path / "tables")
    made_up_speed.save_both(tmp_path)
    study = load(tmp_path, "made-up")
    part = next(
        p for p in to_target_parts(study, panel_curves(study))["panels"] if p["slug"].endswith("iid-n4")
    )
    (view,) = part["seconds"]
    (session,) = [one for one in study.sessions if one.sweep]
    timed = {(r["arm"], r["link"]): r for r in session.rows(ARMS) if r["sharding"] == "iid"}
    steps = {r["arm"]: r for r in study.rows(TO_TARGET) if r["sharding"] == "iid"}
    assert {(line.cells["method"].raw, line.cells["link"].raw) for line in view.lines} == timed.keys()
    for line in view.lines:
        arm, link = line.cells["method"].raw, line.cells["link"].raw
        cell, row = line.cells["seconds"], timed[arm, link]
        if row["refused"]:
            assert cell.raw is None
            assert line.cells["why"].text == row["reason"]
        elif steps[arm]["n_reached"] == 0:
            assert cell.text == "never"
        else:
            assert cell.raw == pytest.approx(steps[arm]["steps"] * row["step_s"])
            assert cell.ends[0] == pytest.approx(steps[arm]["steps_low"] * row["step_s"])
    assert part["seconds"][0].caption in build(tmp_path).html


@pytest.mark.chromium
def test_both_sections_in_a_browser(raced, profiled, tmp_path):
    slug = "digits-mlp-by-class-n4-to-target"
    document, console = open_in_browser(raced.path, tmp_path / "a", f"#view&{slug}.sort=bytes&{slug}.down=1")
    assert console == []
    table = re.search(rf'id="table-{slug}".*?</table>', document, re.S).group(0)
    assert re.search(r'<th[^>]*data-key="bytes"[^>]*aria-sort="descending"', table)
    first = re.search(r"<tbody>.*?</tr>", table, re.S).group(0)
    assert re.search(r'data-v="inf[ "]', first), "what never got there is the most"
    document, console = open_in_browser(profiled.path, tmp_path / "b", "#view&profiles.sort=steps1")
    assert console == []
    assert 'id="table-profiles"' in document


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
        TO_TARGET: to_target(study, arrivals(study, frame, curves)),
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
