"""Loss against time: what the pictures, the table and the sentences say of made-up answers, and pages that have none."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path

import matplotlib.colors
import matplotlib.text
import pytest

from report import site as overview
from report.data import SessionData
from report.equal_time import (
    NOT,
    SIGNS,
    UNDECIDED,
    WORTH_IT,
    curve_of,
    equal_time_figures,
    equal_time_parts,
    equal_time_view,
    loss_against_time,
    marks_of,
    sentences,
    timed_links,
)
from report.numbers import factor
from report.pages import Place
from report.rho import rho_figures
from suite.analysis.tables import NET, WORTH, read_frame, rows_of, session_table_path, table_path, write_table
from suite.runs.sweep import ONE_WORKER, PLAIN
from tests.report import made_up_rho as made
from tests.report.conftest import Built, build
from tests.report.test_page import Page, whole
from tests.support import undrawn

SLOW, MIDDLE, FAST = made.LINKS


@pytest.fixture(scope="module")
def equal(over: Built, tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The study with sessions over three links."""
    root = tmp_path_factory.mktemp("equal")
    shutil.copytree(over.root / "tables", root / "tables")
    made.save_session(root)
    with undrawn():
        return build(root, made.NAME)


@pytest.fixture
def panel(equal):
    return equal.study.panels[0]


@pytest.fixture
def links(equal, panel):
    return timed_links(equal.study, panel)


def edited(equal: Built, root: Path, path: Path, table, change) -> Built:
    """The page of the same tables with rows of one changed."""
    shutil.copytree(equal.root / "tables", root / "tables")
    rows = rows_of(read_frame(path, table))
    for row in rows:
        change(row)
    write_table(root / "tables" / path.name, table, rows)
    with undrawn():
        return build(root, made.NAME)


def by_method(view):
    """Name of a method -> its cells by the title of their column."""
    titles = [column.title for column in view.columns]
    return {cells[0].text: dict(zip(titles, cells, strict=True)) for cells in view.lines}


def test_net_speedups_in_the_table_are_those_that_were_made(panel, links):
    lines = by_method(equal_time_view(panel, links, curve_of(panel)))
    assert lines.keys() == made.BY_NAME.keys()
    assert next(iter(lines)) == "diloco", "the best on the slowest link"
    for arm, cells in lines.items():
        worth = cells["worth, % of steps"]
        assert worth.raw == pytest.approx(made.BY_NAME[arm].worth, rel=0.05)
        assert re.fullmatch(r"\[[\d.]+, [\d.]+\]", worth.note)
        for one in links:
            cell, row = cells[one.label], one.net[arm]
            if not made.is_timed(arm, one.label):
                assert (cell.raw, cells["why not"].text) == (None, "direct runs disagree")
                continue
            net = made.BY_NAME[arm].worth / made.time(arm, one.label)
            assert cell.raw == pytest.approx(net, rel=0.07)
            assert row["net_low"] < cell.raw < row["net_high"]
            assert cell.note.startswith(f"[{factor(row['net_low'])}, ")
            assert cell.text.startswith(SIGNS[row["verdict"]][0])
            assert cell.note.endswith("†") == (row["check"] != "confirmed")
        assert (cells["seeds"].text, worth.css) == ("6", "")
    least = replace(panel, worth=[{**row, "worth": 0.0, "low": 0.0, "high": 1 / 8} for row in panel.worth])
    cells = by_method(equal_time_view(least, links, curve_of(least)))["diloco"]
    assert cells["worth, % of steps"].text == "< 12.5 %"
    assert {row["verdict"] for one in links for row in one.net.values()} >= {WORTH_IT, NOT, UNDECIDED}


def test_every_method_with_a_number_is_a_mark_at_its_time_and_metric(panel, links):
    for one in links:
        marks, (absent,) = marks_of(panel, one)
        timed = {arm for arm in made.BY_NAME if made.is_timed(arm, one.label)}
        assert set(marks["arm"]) == timed
        assert absent == f"{', '.join(sorted(made.BY_NAME.keys() - timed))} (direct runs disagree)"
        for mark in marks.itertuples():
            assert mark.name == mark.arm.removeprefix("control-")
            assert mark.x == pytest.approx(made.time(mark.arm, one.label), rel=0.05)
            assert mark.x_low < mark.x < mark.x_high
            assert mark.y == pytest.approx(made.loss(made.BY_NAME[mark.arm].worth), abs=0.01)
            assert mark.y_low < mark.y < mark.y_high
            assert mark.family == made.BY_NAME[mark.arm].arm.family
            assert mark.verdict == one.net[mark.arm]["verdict"]


def test_what_a_session_timed_and_the_study_no_longer_has_is_no_mark(panel, links):
    gone = panel.worth[0]["arm"]
    fewer = replace(panel, worth=panel.worth[1:], summary=[r for r in panel.summary if r["arm"] != gone])
    for one in links:
        assert gone in one.net
        assert gone not in set(marks_of(fewer, one)[0]["arm"])


def test_one_worker_alone_is_no_negative_control(panel, links) -> None:
    (row,) = (row for row in panel.summary if row["arm"] == "one-worker")
    others = [own for own in panel.summary if own is not row]
    control = {**row, "algorithm": ONE_WORKER, "family": "control", "control": True}
    marks, _ = marks_of(replace(panel, summary=[*others, control]), links[0])
    assert marks.set_index("arm").loc["one-worker", "family"] == "baseline"


def test_the_curve_is_the_ladder_of_the_reference(panel):
    curve = curve_of(panel)
    assert curve is not None
    assert (curve.arm, curve.budgets) == (PLAIN, made.BUDGETS)
    assert list(curve.mean) == pytest.approx([made.loss(b) for b in made.BUDGETS], abs=0.01)
    assert curve.at(0.5) == pytest.approx(curve.mean[2])
    assert all(low < mean < high for low, mean, high in zip(curve.low, curve.mean, curve.high, strict=True))


def test_a_verdict_can_be_seen_without_colour(panel, links):
    """Filled, hollow or half filled, and as many of each as the table has; plain training is filled."""
    wanted = {WORTH_IT: "full", NOT: "hollow", UNDECIDED: "half"}
    for one in links:
        marks = marks_of(panel, one)[0]
        (axes,) = loss_against_time(panel, curve_of(panel), [(one.label, marks)]).axes
        paper = axes.figure.get_facecolor()
        drawn = [line for line in axes.lines if line.get_marker() not in ("None", "", None, "|", "_")]
        seen = []
        for line in drawn:
            hollow = matplotlib.colors.same_color(line.get_markerfacecolor(), paper)
            seen.append("half" if line.get_fillstyle() == "left" else "hollow" if hollow else "full")
        assert seen == [*(wanted[verdict] for verdict in marks["verdict"]), "full"]


def test_a_picture_a_link_with_up_for_better_and_one_of_all_that_is_published(equal, panel, links):
    section = equal.html.partition('id="equal-time"')[2].partition("</section>")[0]
    assert len(re.findall(r'<img src="([^"]*)"', section)) == len(links) == 3
    ((name, figure),) = equal_time_figures(equal.study).items()
    assert name == "equal-time-python-gpt-size-0-15m-iid-n4"
    for axes, one in zip(figure.axes, links, strict=True):
        words = {text.get_text() for text in axes.findobj(matplotlib.text.Text)}
        assert set(marks_of(panel, one)[0]["name"]) <= words, "every method has its name"
        assert any(one.label in text for text in words)
        assert axes.yaxis_inverted()
        assert axes.get_xscale() == "log"
        assert axes.get_ylim() == figure.axes[0].get_ylim()


def test_what_beats_plain_training_but_not_one_worker_alone_is_told_apart(equal, tmp_path):
    def change(row):
        if row["link"] == SLOW:
            row.update(alone=NOT, verdict=NOT)
        if row["link"] == FAST:
            row.update(alone=None, verdict=UNDECIDED)

    found = edited(equal, tmp_path, session_table_path(equal.root, NET, "timed"), NET, change)
    text = Page(found.html).said("equal-time")
    methods = [row["arm"] for row in found.study.panels[0].methods]
    slow, _, fast = timed_links(found.study, found.study.panels[0])
    plain = [sum(one.net[arm]["plain"] == WORTH_IT for arm in methods) for one in (slow, fast)]
    assert plain[0] > 3
    assert (
        f"{SLOW}: none of 7 methods is shown to be worth it. {plain[0]} beat plain training, 0 one worker alone."
        in text
    )
    assert f"{plain[1]} beat plain training, and one worker alone was not timed." in text


def test_plain_training_is_not_counted_among_the_methods(panel):
    """Where it is itself a method with a baseline, as bf16 is beside fp32."""
    worth = [{**row, "reference": "snoo"} for row in panel.worth if row["arm"] != "snoo"]
    said = sentences(replace(panel, worth=worth), [])[0]
    assert "0 of 6 methods end better and 5 worse; 1 is undecided." in said


def test_a_diverged_arm_is_told_in_words(equal, tmp_path):
    def change(row):
        if row["arm"] == "qsr-adamw":
            row.update(n_diverged=2, worth=0.0, low=0.0, high=0.0)

    diverged = edited(equal, tmp_path, table_path(equal.root, WORTH, made.NAME), WORTH, change)
    assert "2 diverged" in Page(diverged.html).said("equal-time")
    (panel,) = diverged.study.panels
    marks, _ = marks_of(panel, timed_links(diverged.study, panel)[0])
    assert "qsr-adamw (2 diverged)" in set(marks["name"])


def test_a_page_without_these_tables_has_no_trace_of_them(built, timed, tmp_path):
    for other in (built, timed):
        assert equal_time_parts(other.study, Place(tmp_path, "page.html")) == []
        assert equal_time_figures(other.study) == {}
        assert "equal-time" not in other.html
        assert rho_figures(other.study) == {}
        assert not {"rho", "gates"} & set(Page(other.html).ids)


def test_the_first_page_leads_with_it_where_nothing_is_judged_over_rho(
    equal, tmp_path, monkeypatch, no_pictures
):
    shutil.copytree(equal.root / "tables", tmp_path / "tables")
    for table in ("rho", "windows"):
        (tmp_path / "tables" / f"{made.NAME}-{table}.csv").unlink()
    monkeypatch.setattr(overview, "documents", dict)
    page = whole(overview.build_site(tmp_path, tmp_path / "site").path)
    assert [name for name in page.sections if name][:2] == ["equal-time", "headline"]
    assert f"From the study {made.NAME}" in page.sections["equal-time"]
    assert f"{made.NAME}.html" in page.references


def test_a_session_belongs_to_a_workload_by_its_name_and_the_options_given() -> None:
    def timed(workload: str, **options: object) -> bool:
        session = object.__new__(SessionData)
        object.__setattr__(session, "facts", {"workload": {"name": "code-gpt", "options": options}})
        return session.timed(workload)

    assert timed("code-gpt(size=0.14m)", size="0.14m", context=64)
    assert timed("code-gpt", size="0.14m")
    assert not timed("code-gpt(size=0.9m)", size="0.14m")
    assert not timed("code-gpt-long", size="0.14m")
