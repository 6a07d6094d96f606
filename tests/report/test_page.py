"""The page: one file, whole by itself, the same each time, and nothing hidden."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from report.drawing.table import Cell
from report.study.build import build_page
from report.study.data import ReportError
from report.study.publication import build_report
from suite.analysis.collect import Collected, collect, write
from suite.analysis.columns import OF_STUDY, RUNS, SENSITIVITY, SUMMARY
from suite.analysis.published import facts_path
from suite.analysis.summary import summarise
from suite.analysis.tables import frame_of, table_path
from tests.report.conftest import HOSTILE, build, unpacked
from tests.suite.analysis import made_up_study as made

ROOT = Path(__file__).resolve().parents[2]
VOID = {"meta", "link", "input", "br", "hr", "img"}
LOADING = {"src", "href", "data", "action", "poster", "srcset", "xlink:href", "formaction"}


class Page(HTMLParser):
    """What tests ask of a page: whether tags close, its ids, links, loads, scripts and text by section."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.ids: list[str] = []
        self.references: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.sections: dict[str, str] = {}
        self._section = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self._note(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self._note(tag, attrs)

    def _note(self, tag, attrs):
        given = dict(attrs)
        assert len(given) == len(attrs), f"<{tag}> repeats an attribute"
        self.tags.append((tag, given))
        if "id" in given:
            self.ids.append(given["id"])
        if tag == "section":
            self._section = given["id"]
        self.references += [given[name] for name in LOADING & given.keys()]

    def handle_endtag(self, tag):
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag, f"</{tag}> closes another tag"
        if tag == "section":
            self._section = ""

    def handle_data(self, data):
        self.sections[self._section] = self.sections.get(self._section, "") + data


@pytest.fixture(scope="module")
def page(built):
    return Page(built.html)


def test_tags_close_and_ids_are_unique(page):
    assert page.open == []
    assert len(set(page.ids)) == len(page.ids)


def test_nothing_is_loaded_from_elsewhere(built, page):
    for reference in page.references:
        assert reference.startswith(("#", "data:,")), reference
    assert not re.search(r"(?i:https?://|//[a-z0-9-]+\.[a-z]{2,}/|@import)|\burl\((?!#)", built.html)
    policy = next(a["content"] for t, a in page.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'")
    assert [path.name for path in built.path.parent.iterdir()] == [built.path.name]


def test_internal_links_resolve(page):
    wanted = {reference[1:] for reference in page.references if reference.startswith("#")}
    assert wanted <= set(page.ids)
    assert {"controls", "tuning", "failures", "provenance"} <= wanted


def test_the_json_inside_equals_the_tables(built):
    text = re.search(r'<script type="application/json" id="data">(.*?)</script>', built.html, re.S).group(1)
    inside = json.loads(text)
    assert inside["facts"] == json.loads(facts_path(built.root, "made-up").read_text())
    assert set(inside["tables"]) == {
        "runs",
        "summary",
        "sensitivity",
        "tuning",
    }
    for name, table in inside["tables"].items():
        path = built.root / "tables" / f"made-up-{name}.csv"
        assert unpacked(table) == path.read_text()


def test_the_numbers_shown_are_those_of_the_table(built, page):
    rows = [r for r in built.study.rows(SUMMARY) if not r["control"] and r["sharding"] == "by-class"]
    values = [a.get("data-v", "").split(" ")[0] for t, a in page.tags if t == "td"]
    for row in rows:
        assert all(row[c] is None or Cell("", row[c]).value in values for c in ("mean", "diff_mean"))
    worst = next(r for r in rows if r["arm"] == "lion-cub-1bit never")
    shown = f"−{-worst['diff_mean']:.2f} [−{-worst['diff_low']:.2f}, −{-worst['diff_high']:.2f}]"
    assert shown in " ".join(page.sections["digits-mlp-by-class-n4"].split())


@pytest.mark.full
def test_the_same_tables_give_the_same_bytes_in_another_process(built, tmp_path):
    target = str(tmp_path / "again.html")
    code = (
        f"from report.study.build import build_page; build_page({str(built.root)!r}, 'made-up', {target!r})"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "77", "TZ": "Asia/Tokyo", "LC_ALL": "C"}
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, check=True)
    assert (tmp_path / "again.html").read_bytes() == built.path.read_bytes()


def test_failures_are_shown_with_their_reasons(built, page):
    shown = page.sections["failures"]
    assert HOSTILE in shown
    assert "training loss is nan at step 57" in shown
    assert shown.count("training loss is inf at step 9") == 6
    assert "208 of 216 runs done" in " ".join(page.sections[""].split())
    assert shown.count("bandwise sweep made-up --retry error") == 1, "the one that another try may change"
    assert "8 of 216 runs did not finish: 7 diverged, 1 error." in page.sections["headline"]


def test_hostile_text_stays_text(built, page):
    scripts = [a for t, a in page.tags if t == "script"]
    assert scripts == [{"type": "application/json", "id": "data"}, {}]
    assert not any(t == "img" or "onerror" in a for t, a in page.tags)


def test_hostile_labels_stay_text(tmp_path):
    bad = '<b>"x"&</b>'
    made_of = tuple(
        replace(m, arm=replace(m.arm, name=bad)) if m.arm.name == "qsr-sgd" else m for m in made.FEW
    )
    study = replace(made.study_of(made=made_of), about="<script>alert(3)</script>", command="a && b <c>")
    made.run_all(tmp_path, study, made_of)
    write(tmp_path, collect(tmp_path, study))
    page = Page(build(tmp_path).html)
    assert page.open == []
    assert bad in page.sections["digits-mlp-iid-n4"]
    assert bad in page.sections["seeds"]
    assert "<script>alert(3)</script>" in page.sections[""]
    assert sum(t == "script" for t, _ in page.tags) == 2


def test_what_every_number_stands_on_is_said(built, page):
    text = " ".join(built.html.split())
    assert text.count("Speed is not measured: no timing session belongs to the sweep made-up.") == 1
    for slug in ("digits-mlp-iid-n4", "digits-mlp-by-class-n4"):
        assert "Brackets are 95 % t intervals over the seeds of the row" in page.sections[slug]
        assert "6 of 6" in page.sections[slug]
    assert "chosen, on an edge" in page.sections["tuning"]
    assert "sensitive" in page.sections["controls"]
    assert "git checkout 0123456789abcdef0123456789abcdef01234567" in page.sections["provenance"]
    assert "feedfacecafebeef" in page.sections["provenance"]


def test_a_study_that_is_not_sensitive_calls_nobody_equal(tmp_path):
    study = made.study_of(margin=1.0, made=made.FEW)
    made.run_all(tmp_path, study, made.FEW)
    write(tmp_path, collect(tmp_path, study))
    built = build(tmp_path)
    assert any(
        s.startswith("Shards i.i.d.: not sensitive, so no method is called equal") for s in built.headline
    )
    cells = re.findall(r"<td([^>]*)>([^<]*)<", built.html)
    values = [re.findall(r'data-v="([^"]*)"', held) or [said.strip()] for held, said in cells]
    equal = [value for (value,) in values if value in {"equal", "not known"}]
    assert equal == ["not known"] * 4 + ["equal"] * 2


def test_units_and_directions_of_other_workloads(tmp_path):
    study = made.study_of(made=made.FEW)
    yardstick = replace(made.DIGITS, metric="nll", unit="bits/byte", direction="lower", margin=0.01)
    study = replace(study, yardsticks={"digits-mlp": yardstick})
    made.run_all(tmp_path, study)
    write(tmp_path, collect(tmp_path, study))
    page = Page(build(tmp_path).html)
    assert "lower is better" in page.sections["digits-mlp-iid-n4"]
    assert "difference (bits/byte)" in page.sections["digits-mlp-iid-n4"]


def test_results_of_older_code_wear_a_badge(tmp_path):
    study = made.study_of(made=made.FEW)
    study = replace(study, arms=tuple(replace(a, source_hash="moved") for a in study.arms))
    made.run_all(tmp_path, study, made.FEW)
    write(tmp_path, collect(tmp_path, study))
    shown = Page(build(tmp_path).html).sections["digits-mlp-iid-n4"]
    assert "Stale: ran with another source" in shown
    assert "qsr-sgd stale" in " ".join(shown.split())


def test_studies_without_seeds_for_intervals_build(tmp_path):
    study = made.study_of(seeds=2, made=made.FEW)
    made.run_all(tmp_path, study, made.FEW)
    write(tmp_path, collect(tmp_path, study))
    built = build(tmp_path)
    page = Page(built.html)
    assert "2 of 2" in page.sections["digits-mlp-iid-n4"]
    assert "[" not in page.sections["digits-mlp-iid-n4"]
    assert any("not sensitive" in sentence for sentence in built.headline)


@pytest.mark.full
def test_two_thousand_runs_build_in_bounded_time_and_size(built, tmp_path):
    runs = [
        {**row, "seed": row["seed"] + 6 * copy, "run_id": f"{copy:04x}{row['run_id'][4:]}"}
        for row in built.study.rows(RUNS)
        for copy in range(10)
    ]
    study = made.study_of()
    frame = frame_of(RUNS, runs)
    summary, judged = summarise(study, frame)
    tables = {table: frame_of(table, ()) for table in OF_STUDY} | {
        RUNS: frame,
        SUMMARY: summary,
        SENSITIVITY: judged,
    }
    write(tmp_path, Collected("made-up", tables, built.study.facts))
    assert len(table_path(tmp_path, RUNS, "made-up").read_text().splitlines()) == 2161
    start = time.process_time()
    path = build_page(tmp_path, "made-up").path
    assert time.process_time() - start < 20
    assert path.stat().st_size < 5e6


def test_missing_tables_and_other_versions_are_refused(tmp_path, built):
    with pytest.raises(ReportError, match="run the sweep, then `bandwise report`"):
        build_page(tmp_path, "nothing")
    facts = facts_path(tmp_path, "made-up")
    facts.parent.mkdir(parents=True)
    facts.write_text(json.dumps({"schema_version": 99}))
    with pytest.raises(ReportError, match="schema_version 99"):
        build_page(tmp_path, "made-up")
    facts.write_text("{")
    with pytest.raises(ReportError, match="damaged"):
        build_page(tmp_path, "made-up")


SWEEP = """
title: Two seeds that never ran
workloads: [digits-mlp]
shardings: [iid]
world_size: 4
steps: 20
batch_size: 8
seeds: 2
arms:
  allreduce-sgd: {algorithm: allreduce-sgd, lr: 0.1}
  local-sgd: {algorithm: local-sgd, options: {period: 2}, baseline: allreduce-sgd, lr: 0.1}
"""


def test_a_sweep_without_runs_asks_for_them_or_shows_the_tables_in_git(tmp_path):
    file = tmp_path / "never.yaml"
    file.write_text(SWEEP)
    with pytest.raises(
        ReportError, match=r"no run of sweep never .* run `bandwise sweep /.*never.yaml` first"
    ):
        build_report(tmp_path / "results", str(file))
    study = replace(made.study_of(seeds=1, made=made.FEW), name="never")
    made.run_all(tmp_path / "elsewhere", study)
    write(tmp_path / "results", collect(tmp_path / "elsewhere", study))
    built = build_report(tmp_path / "results", str(file), tmp_path / "page.html")
    assert built.path == tmp_path / "page.html"
    assert "22 of 22 runs done" in " ".join(built.path.read_text().split())
