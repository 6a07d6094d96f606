"""The page of a study: whole with what lies beside it, the same each time, and nothing hidden."""

from __future__ import annotations

import functools
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest

from report.data import StudyData, load
from report.pages import Place, ReportError
from report.publication import build_report
from report.study import write_study
from report.trust import tuning_view
from suite.analysis.collect import collect, write
from suite.analysis.published import facts_path
from suite.analysis.tables import SUMMARY, TUNING, Row, TableError, frame_of
from tests.report.conftest import HOSTILE, build, tuning_rows
from tests.suite.analysis import made_up_study as made
from tests.support import ROOT

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
        if tag not in VOID:
            self.open.append(tag)
        given = dict(attrs)
        assert len(given) == len(attrs), f"<{tag}> repeats an attribute"
        self.tags.append((tag, given))
        if "id" in given:
            self.ids.append(given["id"])
        if tag == "section":
            self._section = given.get("id", "")
        self.references += [given[name] for name in LOADING & given.keys()]

    handle_startendtag = handle_starttag

    def said(self, *sections: str) -> str:
        """The words of these sections, or of the whole page, on one line."""
        return " ".join(" ".join(self.sections[name] for name in sections or self.sections).split())

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


@functools.cache
def ids(path: Path) -> frozenset[str]:
    return frozenset(Page(path.read_text(encoding="utf-8")).ids)


def whole(path: Path) -> Page:
    """A page that is sound: its tags close, its ids are unique, all that it refers to is there, and nothing lies elsewhere."""
    text = path.read_text(encoding="utf-8")
    page = Page(text)
    assert page.open == []
    assert len(set(page.ids)) == len(page.ids)
    loaded = [given.get("src") or given.get("href") for tag, given in page.tags if tag != "a"]
    assert not any(re.match(r"(?i:https?:|//)", address or "") for address in loaded)
    assert "@import" not in text
    policy = next(a["content"] for t, a in page.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'")
    for reference in page.references:
        file, _, anchor = unquote(reference).partition("#")
        if not reference.startswith(("data:", "https:")):
            target = path.parent / file if file else path
            assert target.is_file(), (path, reference)
            assert not anchor or anchor in ids(target), (path, reference)
    for tag, given in page.tags:
        assert tag != "img" or given["alt"], "a picture has words"
    return page


def test_the_page_is_whole_and_loads_nothing_from_elsewhere(built):
    page = whole(built.path)
    assert {"#controls", "#tuning", "#failures", "#provenance", "#curves"} <= set(page.references)


def test_its_tables_lie_beside_it_as_they_are(built):
    folder = built.path.parent / "files" / "made-up"
    assert {path.name for path in folder.glob("*.csv")} == {
        f"made-up-{name}.csv" for name in ("runs", "summary", "sensitivity", "tuning", "curves")
    }
    for path in folder.glob("*.csv"):
        assert path.read_text() == (built.root / "tables" / path.name).read_text()
        assert f'href="files/made-up/{path.name}" download' in built.html


def test_the_numbers_shown_are_those_of_the_table(built, page):
    rows = [r for r in built.study.rows(SUMMARY) if not r["control"] and r["sharding"] == "by-class"]
    values = {a["data-order"] for t, a in page.tags if t == "td" and "data-order" in a}
    for row in rows:
        assert all(
            row[c] is None or str(row[c]) in values for c in ("mean", "diff_mean", "wire_bytes_per_step")
        )
    worst = next(r for r in rows if r["arm"] == "lion-cub-1bit never")
    shown = f"−{-worst['diff_mean']:.2f} [−{-worst['diff_low']:.2f}, −{-worst['diff_high']:.2f}]"
    assert shown in page.said("section-digits-mlp-by-class-n4")


def test_failures_are_shown_with_their_reasons(built, page):
    shown = page.sections["failures"]
    assert HOSTILE in shown
    assert "training loss is nan at step 57" in shown
    assert shown.count("training loss is inf at step 9") == 6
    assert "208 of 216 runs done" in page.said("")
    assert shown.count("bandwise sweep made-up --retry error") == 1, "the one that another try may change"
    assert "8 of 216 runs did not finish: 7 diverged, 1 error." in page.sections["headline"]


def test_a_rate_that_is_scored_between_those_tried_stands_beside_the_grid():
    tried = [row for row in tuning_rows() if not row["options"]]
    tried[0] |= {"chosen": True, "vertex": 0.0789}

    def shown(rows: list[Row]) -> dict[str, str]:
        study = StudyData("made-up", {TUNING: frame_of(TUNING, rows)}, {}, [])
        view = tuning_view(study)
        return {column.title: column.make(view.rows[0]).text for column in view.columns}

    cells = shown(tried)
    assert (cells["chosen rate"], cells["scored rate"]) == ("0.1", "0.0789")
    assert cells["tried: metric"] == "0.1: 96.90; 0.3: 95.00; 1: diverged"
    assert "scored rate" not in shown(tuning_rows())


def test_a_study_that_is_not_sensitive_calls_nobody_equal(tmp_path, no_pictures):
    study = made.study_of(margin=1.0, made=made.FEW)
    made.run_all(tmp_path, study, made.FEW)
    write(tmp_path, collect(tmp_path, study))
    built = build(tmp_path)
    assert any(
        s.startswith("Shards i.i.d.: not sensitive, so no method is called equal") for s in built.headline
    )
    assert re.findall(r"<td[^>]*>(equal|not known)\b", built.html) == ["not known"] * 4 + ["equal"] * 2


def test_other_units_old_code_and_too_few_seeds(tmp_path, no_pictures):
    study = made.study_of(seeds=2, made=made.FEW)
    yardstick = replace(made.DIGITS, metric="nll", unit="bits/byte", direction="lower", margin=0.01)
    arms = tuple(replace(a, source_hash="moved") for a in study.arms)
    study = replace(study, yardsticks={"digits-mlp": yardstick}, arms=arms)
    made.run_all(tmp_path, study, made.FEW)
    write(tmp_path, collect(tmp_path, study))
    built = build(tmp_path)
    shown = Page(built.html).said("section-digits-mlp-iid-n4")
    wanted = (
        "lower is better",
        "difference (bits/byte)",
        "Stale: ran with another source",
        "qsr-sgd stale",
        "2 of 2",
    )
    assert [words for words in wanted if words not in shown] == []
    assert "[" not in shown, "no interval of two seeds"
    assert any("not sensitive" in sentence for sentence in built.headline)


def test_missing_tables_and_other_versions_are_refused(tmp_path, built):
    with pytest.raises(ReportError, match="run the sweep, then `bandwise report`"):
        load(tmp_path, "nothing")
    facts = facts_path(tmp_path, "made-up")
    facts.parent.mkdir(parents=True)
    facts.write_text(json.dumps({"schema_version": 99}))
    with pytest.raises(TableError, match="schema_version 99"):
        load(tmp_path, "made-up")


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


def test_a_sweep_without_runs_asks_for_them_or_shows_the_tables_in_git(tmp_path, no_pictures):
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
    assert "22 of 22 runs done" in Page(built.path.read_text()).said()


MOST_BYTES = 1_500_000
"""Of any page: on a slow line it is there in seconds, and a phone lays it out."""


@pytest.mark.parametrize(
    "sweep",
    ["size", pytest.param("language", marks=pytest.mark.full)],  # the most crowded that ships
)
def test_a_shipped_page_is_built_from_the_tables_in_git(sweep, tmp_path, no_pictures):
    (tmp_path / "published").symlink_to(ROOT / "results" / "published")
    path = write_study(load(tmp_path, sweep), Place(tmp_path, "page.html")).path
    assert path.stat().st_size < MOST_BYTES
    whole(path)
    shown = path.read_text(encoding="utf-8")
    assert not re.search(r">\s*(None|nan)\b(?! of)", shown)
    assert "are not in the tables here" not in shown
