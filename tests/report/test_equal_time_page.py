"""Loss against time: what the pictures, the table and the sentences say of made-up answers, and pages that have none."""

from __future__ import annotations

import itertools
import re
import shutil
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from report.drawing.labels import Box
from report.drawing.scales import MEASURE
from report.drawing.svg import svg_file
from report.drawing.theme import COLOURS, MARKS
from report.site import overview
from report.site.build import build_site
from report.study.build import build_page
from report.study.data import SessionData, load
from report.study.equal_time import (
    FILLS,
    NOT,
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
from report.study.publication import _figures
from suite.analysis.columns import NET, WORTH
from suite.analysis.tables import read_frame, rows_of, session_table_path, table_path, write_table
from tests.report import made_up_equal_time as made
from tests.report.conftest import Built, build, overlap
from tests.report.test_browser import open_in_browser
from tests.report.test_page import Page

SLOW, MIDDLE, FAST = made.LINKS
SETTING = "digits-mlp, 4 workers, 200 steps, shards i.i.d., 8 seeds"
SLACK = 2.0
"""Pixels of a name's box that are no ink: room above small letters, and beside the first and the last."""
LEADER = 0.5
"""Width of the line that joins a name to its mark."""
PUBLISHED = Path(__file__).resolve().parents[2] / "results" / "published"


@pytest.fixture(scope="module")
def equal(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """A study with a reference at seven budgets and sessions over three links."""
    root = tmp_path_factory.mktemp("equal")
    made.save(root)
    return build(root, made.NAME)


@pytest.fixture
def panel(equal):
    return equal.study.panels[0]


@pytest.fixture
def links(equal, panel):
    return timed_links(equal.study, panel)


def edited(equal: Built, root: Path, change) -> Built:
    """The same tables with rows of `net` changed."""
    shutil.copytree(equal.root / "tables", root / "tables")
    path = session_table_path(root, NET, "timed")
    rows = rows_of(read_frame(path, NET))
    for row in rows:
        change(row)
    write_table(path, NET, rows)
    return build(root, made.NAME)


def said(built: Built) -> str:
    return " ".join(Page(built.html).sections["equal-time"].split())


def test_links_stand_slowest_first_whatever_their_order_in_the_session(equal, links):
    assert [link.label for link in equal.study.sessions[0].links] == [FAST, MIDDLE, SLOW]
    assert [one.label for one in links] == [SLOW, MIDDLE, FAST]


def test_the_section_leads_the_page(equal):
    page = Page(equal.html)
    assert page.open == []
    assert len(set(page.ids)) == len(page.ids)
    assert next(given["id"] for tag, given in page.tags if tag == "section") == "equal-time"
    assert {"href": "#equal-time"} in [given for tag, given in page.tags if tag == "a"]


def test_net_speedups_in_the_table_are_those_that_were_made(equal, panel, links):
    view = equal_time_view(panel, links, curve_of(panel))
    lines = {line.cells["method"].raw: line for line in view.lines}
    assert lines.keys() == made.WORTHS.keys()
    for arm, line in lines.items():
        worth = line.cells["worth"]
        if made.WORTHS[arm] < made.BUDGETS[0]:
            assert (worth.raw, worth.text) == (0.0, "< 6.25 %")
            continue
        assert worth.raw == pytest.approx(made.WORTHS[arm], rel=0.05)
        assert worth.ends[0] < worth.raw < worth.ends[1]
        for one in links:
            cell = line.cells[f"net-{one.slug}"]
            if (arm, one.label) == (made.UNTIMED, FAST):
                assert (cell.raw, line.cells["reason"].text) == (None, "direct runs disagree")
                continue
            assert cell.raw == pytest.approx(made.WORTHS[arm] / made.time(arm, one.label), rel=0.07)
            assert cell.ends[0] < cell.raw < cell.ends[1]
        assert (line.cells["n"].raw, line.cells["worth"].css) == (8, "")


def test_the_best_on_the_slowest_link_stands_first(panel, links):
    view = equal_time_view(panel, links, curve_of(panel))
    nets = [line.cells[f"net-{links[0].slug}"].raw for line in view.lines]
    assert nets == sorted(nets, reverse=True)
    assert view.lines[0].cells["method"].raw == "lion-cub-1bit K=100"


def test_a_verdict_has_a_sign_and_a_word_and_a_doubt_its_dagger(panel, links):
    view = equal_time_view(panel, links, curve_of(panel))
    signs = {WORTH_IT: "●", NOT: "○", UNDECIDED: "◐"}
    seen = set()
    for line in view.lines:
        for one in links:
            row, cell = one.net[line.cells["method"].raw], line.cells[f"net-{one.slug}"]
            if row["verdict"] is None:
                assert cell.items == ()
                continue
            (sign,) = cell.items
            assert (sign.text, sign.note) == (signs[row["verdict"]], row["verdict"])
            assert cell.note.endswith("†") == (row["check"] != "confirmed")
            seen.add(row["verdict"])
    assert seen == {WORTH_IT, NOT, UNDECIDED}


def test_every_method_with_a_number_is_a_mark_at_its_time_and_metric(panel, links):
    for one in links:
        marks, absent = marks_of(panel, one)
        untimed = one.label == FAST
        assert len(marks) == len(made.WORTHS) - untimed
        assert absent == ([f"{made.UNTIMED} (direct runs disagree)"] if untimed else [])
        for mark in marks:
            arm = next(name for name in made.WORTHS if name.removeprefix("control-") == mark.arm)
            assert mark.x == pytest.approx(made.time(arm, one.label), rel=0.05)
            assert mark.x_low < mark.x < mark.x_high
            assert mark.y == pytest.approx(made.loss(made.WORTHS[arm]), abs=0.01)
            assert mark.low < mark.y < mark.high
            family = next(m.arm.family for m in made.made.MADE if m.arm.name == arm)
            assert mark.family == ("baseline" if arm == "control-one-worker" else family), (
                "no negative control"
            )
            assert mark.fill == FILLS[one.net[arm]["verdict"]]


def test_what_lies_above_the_curve_has_a_net_speedup_over_1(panel, links):
    """The picture and the table say the same."""
    curve = curve_of(panel)
    assert curve is not None
    for one in links:
        for mark in marks_of(panel, one)[0]:
            row = next(row for arm, row in one.net.items() if arm.removeprefix("control-") == mark.arm)
            if curve.budgets[0] <= mark.x and abs(row["net"] - 1) > 0.01:
                assert (mark.y < curve.at(mark.x)) == (row["net"] > 1), (one.label, mark.arm)


def test_the_curve_is_the_ladder_of_the_reference(panel):
    curve = curve_of(panel)
    assert curve is not None
    assert (curve.arm, curve.budgets) == (made.REFERENCE, made.BUDGETS)
    assert list(curve.mean) == pytest.approx([made.loss(b) for b in made.BUDGETS], abs=0.01)
    assert curve.at(0.5) == pytest.approx(curve.mean[3])
    assert all(low < mean < high for low, mean, high in zip(curve.low, curve.mean, curve.high, strict=True))


def drawn(panel, one) -> dict[str, str]:
    """Group id of every mark in the picture of a link -> its SVG."""
    curve = curve_of(panel)
    assert curve is not None
    text = svg_file(loss_against_time(panel, curve, [(one.label, marks_of(panel, one)[0])]))
    root = ElementTree.fromstring(text)
    groups = {g.get("id", ""): g for g in root.iter("{http://www.w3.org/2000/svg}g")}
    return {
        name: ElementTree.tostring(g, encoding="unicode")
        for name, g in groups.items()
        if name.startswith("mark")
    }


def test_a_verdict_can_be_seen_without_colour(panel, links):
    """Filled, hollow or half: how many fills of the mark are the family's and how many the paper's."""
    paper = COLOURS["paper"]
    for one in links:
        marks, groups = marks_of(panel, one)[0], drawn(panel, one)
        assert {f"mark{i}" for i in range(len(marks) + 1)} == groups.keys(), "the last is the reference"
        for index, mark in enumerate(marks):
            text, own = groups[f"mark{index}"], COLOURS[mark.family]
            fills = (f"fill: {own}" in text, f"fill: {paper}" in text)
            wanted = {"full": (True, False), "none": (False, True), "left": (True, True)}
            assert fills == wanted[mark.fill], mark
    assert len(set(MARKS.values())) == len(MARKS)


def test_a_picture_a_link_with_up_for_better(equal, panel, links):
    section = equal.html.partition('id="equal-time"')[2].partition("</section>")[0]
    assert section.count("<figure>") == len(links) == 3
    assert re.findall(r"<figcaption><b>([^<]*)", section) == [f"{one.label}, shards i.i.d." for one in links]
    assert "var(--baseline)" in equal.html
    assert "var(--sign)" in equal.html
    figure = equal_time_figures(equal.study)["equal-time-digits-mlp-iid-n4"]
    assert len(figure.axes) == 3
    for axes in figure.axes:
        assert axes.yaxis_inverted()
        assert axes.get_xscale() == "log"
        assert axes.get_ylim() == figure.axes[0].get_ylim()
    assert "equal-time-digits-mlp-iid-n4.svg" in _figures(equal.study)


def test_hover_says_verdict_and_numbers(equal):
    assert re.search(
        r"<title>apmsqueeze: worth it, net speedup 4\.\d+× \[4\.\d+, 4\.\d+\]; 0\.22\d? \[0\.2\d+, 0\.2\d+\] of the "
        r"reference's seconds, 2\.29\d\d \[2\.29\d\d, 2\.30\d\d\] bits/byte</title>",
        equal.html,
    )


def test_the_first_line_says_what_is_worth_it_on_which_link(equal, panel, links):
    lines = sentences(panel, links)
    text = said(equal)
    assert text.startswith(f"Loss against time: what is worth it {SETTING} {' '.join(lines)}")
    methods = [row["arm"] for row in panel.methods]
    for one, line in zip(links, lines, strict=False):
        ahead = [arm for arm in methods if one.net[arm]["verdict"] == WORTH_IT]
        open_ = sum(one.net[arm]["verdict"] == UNDECIDED for arm in methods)
        known = f"; {open_} {'is' if open_ == 1 else 'are'} undecided" if open_ else ""
        assert line.startswith(f"{one.label}: {len(ahead)} of {len(methods)} methods are worth it{known}. ")
        confirmed = sorted((a for a in ahead if a in made.CHECKED), key=lambda a: -one.net[a]["net"])[:3]
        ends = [line.index(f"{arm} ") for arm in confirmed]
        assert ends == sorted(ends)
        assert confirmed, "the made-up study has some on every link"
        assert "lion-cub-1bit K=100" not in line, "what direct runs do not confirm is not quoted"
    assert lines[0].endswith("So are 2 negative controls: control-no-communication and control-random-k.")
    decided = sum(one.net[arm]["verdict"] in {WORTH_IT, NOT} for one in links for arm in methods)
    assert lines[-1] == (
        f"{decided} of {3 * len(methods)} pairs of method and link are decided. "
        f"Nothing was timed over a link faster than {FAST}: `bandwise advise` computes there."
    )


def test_sentences_are_short(panel, links):
    for line in sentences(panel, links):
        for sentence in re.split(r"(?<=[.])\s", line):
            assert len(sentence.split()) <= 25, sentence


def test_nothing_worth_it_and_nothing_confirmed_are_said(equal, tmp_path):
    def change(row):
        row["check"] = None
        if row["link"] == FAST:
            row["verdict"] = UNDECIDED

    found = edited(equal, tmp_path, change)
    text = said(found)
    assert f"{FAST}: none of 11 methods is shown to be worth it; 11 are undecided." in text
    assert text.count("Direct runs have confirmed the seconds of none of them, so none is quoted.") == 2
    assert "21 of 33 pairs of method and link are decided." in text


def test_what_beats_plain_training_but_not_one_worker_alone_is_told_apart(equal, tmp_path):
    def change(row):
        if row["link"] == SLOW:
            row.update(alone=NOT, verdict=NOT)
        if row["link"] == FAST:
            row.update(alone=None, verdict=UNDECIDED)

    found = edited(equal, tmp_path, change)
    text = said(found)
    methods = [row["arm"] for row in found.study.panels[0].methods]
    slow, _, fast = timed_links(found.study, found.study.panels[0])
    plain = [sum(one.net[arm]["plain"] == WORTH_IT for arm in methods) for one in (slow, fast)]
    assert plain[0] > 3
    assert (
        f"{SLOW}: none of 11 methods is shown to be worth it. {plain[0]} beat plain training, 0 one worker alone."
        in text
    )
    assert f"{plain[1]} beat plain training, and one worker alone was not timed." in text


def test_without_a_session_the_section_has_what_trainings_are_worth(tmp_path):
    made.save(tmp_path, timed=False)
    built = build(tmp_path, made.NAME)
    text = said(built)
    assert text.startswith(
        f"What a training is worth {SETTING} After as many steps as plain training (allreduce-adamw), 1 of 11 methods ends "
        "better (apmsqueeze) and 9 worse; 1 is undecided. All 3 negative controls end worse, as they must. No link was timed "
        "yet: "
    )
    for sentence in sentences(built.study.panels[0], []):
        assert len(sentence.split()) <= 25, sentence
    section = built.html.partition('id="equal-time"')[2].partition("</section>")[0]
    assert "<figure" not in section
    (part,) = equal_time_parts(built.study)
    assert [column.key for column in part["view"].columns] == ["method", "worth", "mean", "n", "family"]
    worths = [line.cells["worth"].raw for line in part["view"].lines]
    assert worths == sorted(worths, reverse=True)


def test_plain_training_is_not_counted_among_the_methods(tmp_path):
    """Where it is itself a method with a baseline, as bf16 is beside fp32."""
    made.save(tmp_path, timed=False)
    (panel,) = build(tmp_path, made.NAME).study.panels
    worth = [{**row, "reference": "apmsqueeze"} for row in panel.worth if row["arm"] != "apmsqueeze"]
    assert (
        "0 of 10 methods end better and 9 worse; 1 is undecided."
        in sentences(replace(panel, worth=worth), [])[0]
    )


def test_a_control_that_is_not_seen_to_be_worse_is_named(tmp_path):
    made.save(tmp_path, timed=False)
    (panel,) = build(tmp_path, made.NAME).study.panels
    worth = [{**row, "high": 1.0} if row["arm"] == "control-random-k" else row for row in panel.worth]
    assert sentences(replace(panel, worth=worth), [])[1] == (
        "Not seen to be worse, so that the study cannot tell: control-random-k."
    )


@pytest.mark.full
def test_shardings_have_a_part_each_and_their_own_rows(tmp_path):
    made.save(tmp_path, shardings=("iid", "by-class"))
    built = build(tmp_path, made.NAME)
    page = Page(built.html)
    assert len(set(page.ids)) == len(page.ids)
    first, second = equal_time_parts(built.study)
    assert [part["heading"] for part in (first, second)] == ["Shards i.i.d.", "Shards by class"]
    assert [len(part["pictures"]) for part in (first, second)] == [3, 3]
    assert first["view"].slug != second["view"].slug


def test_higher_is_better_the_other_way_up(equal, panel, links):
    """The same numbers as an accuracy: the axis is not inverted."""
    curve = curve_of(panel)
    assert curve is not None
    turned = replace(panel, facts={**panel.facts, "direction": "higher"})
    flipped = replace(curve, mean=tuple(-v for v in curve.mean), low=(), high=())
    marks = [replace(m, y=-m.y, low=None, high=None) for m in marks_of(panel, links[1])[0]]
    (axes,) = loss_against_time(turned, flipped, [("", marks)]).axes
    assert not axes.yaxis_inverted()


def test_a_diverged_arm_is_told_in_words(equal, tmp_path):
    shutil.copytree(equal.root / "tables", tmp_path / "tables")
    path = table_path(tmp_path, WORTH, made.NAME)
    rows = rows_of(read_frame(path, WORTH))
    for row in rows:
        if row["arm"] == "qsr-sgd":
            row |= {"n_diverged": 2, "worth": 0.0, "low": 0.0, "high": 0.0}
    write_table(path, WORTH, rows)
    text = said(build(tmp_path, made.NAME))
    assert "2 diverged" in text
    assert "qsr-sgd (2 diverged)" in text


def test_a_page_without_these_tables_has_no_trace_of_them(built, timed):
    for other in (built, timed):
        assert equal_time_parts(other.study) == []
        assert equal_time_figures(other.study) == {}
        assert "equal-time" not in other.html
        assert "Equal time" not in other.html


def test_the_first_page_leads_with_it(equal, tmp_path):
    site = build_site(equal.root, tmp_path)
    page = Page(site.path.read_text())
    assert len(set(page.ids)) == len(page.ids)
    assert [name for name in page.sections if name][:2] == ["equal-time", "headline"]
    assert f"From the study {made.NAME}" in page.sections["equal-time"]
    assert f"{made.NAME}.html" in page.references
    parts = equal_time_parts(equal.study)
    small = [{**part, "view": replace(part["view"], lines=part["view"].lines[:1])} for part in parts]
    untimed = [{**part, "timed": False} for part in parts]
    study = equal.study
    for others, lead in (
        ({"b": parts, "a": small}, "b"),
        ({"a": small, "b": untimed}, "a"),
        ({"a": []}, None),
    ):
        found = overview.equal_time(dict.fromkeys(others, study), others)
        assert (found and found["address"]) == lead


def test_the_same_tables_give_the_same_bytes(equal, tmp_path):
    assert build_page(equal.root, made.NAME, tmp_path / "again.html").path.read_text() == equal.html


def test_a_session_of_another_workload_is_not_joined(equal):
    study = load(equal.root, made.NAME)
    (session,) = study.sessions
    for facts in (
        {**session.facts, "world_size": 8},
        {**session.facts, "workload": {"name": "code-gpt", "options": {}}},
    ):
        other = replace(study, sessions=(replace(session, facts=facts),))
        assert timed_links(other, study.panels[0]) == []


@pytest.mark.chromium
def test_in_a_browser(equal, tmp_path):
    document, console = open_in_browser(equal.path, tmp_path, "#view&digits-mlp-iid-n4-equal-time.sort=worth")
    assert console == []
    table = re.search(r'id="table-digits-mlp-iid-n4-equal-time".*?</table>', document, re.S).group(0)
    assert re.search(r'<th[^>]*data-key="worth"[^>]*aria-sort="ascending"', table)


def test_a_session_belongs_to_a_workload_by_its_name_and_the_options_given() -> None:
    def timed(workload: str, **options: object) -> bool:
        session = object.__new__(SessionData)
        object.__setattr__(session, "facts", {"workload": {"name": "code-gpt", "options": options}})
        return session.timed(workload)

    assert timed("code-gpt(size=0.14m)", size="0.14m", context=64)
    assert timed("code-gpt", size="0.14m")
    assert not timed("code-gpt(size=0.9m)", size="0.14m")
    assert not timed("code-gpt-long", size="0.14m")


def test_no_name_of_a_shipped_picture_lies_on_a_mark_an_interval_the_curve_or_another_name(
    tmp_path: Path,
) -> None:
    """Measured in what was drawn, not in what the placement was told; the study is the most crowded that ships."""
    (tmp_path / "published").symlink_to(PUBLISHED)
    study = load(tmp_path, "language")
    (panel,) = study.panels
    curve = curve_of(panel)
    assert curve is not None
    links = timed_links(study, panel)
    assert len(links) >= 3
    for one in links:
        marks = marks_of(panel, one)[0]
        (axes,) = loss_against_time(panel, curve, [(one.label, marks)]).axes
        drawn = {text.get_text(): text.get_window_extent(MEASURE) for text in axes.texts if text.get_text()}
        assert {mark.text for mark in marks} < drawn.keys(), "every method has its name"
        boxes = {words: Box(b.x0, b.y0, b.x1, b.y1).grown(-SLACK) for words, b in drawn.items()}
        for (words, a), (others, b) in itertools.combinations(boxes.items(), 2):
            assert overlap(a, b) == 0, (one.label, words, others)
        for line in axes.lines:
            if line.get_linewidth() <= LEADER and line.get_marker() == "None":
                continue
            at = np.asarray(axes.transData.transform(line.get_xydata()))
            steps = np.linspace(0, 1, 400)[:, None]
            points = np.concatenate([at, *(a + steps * (b - a) for a, b in itertools.pairwise(at))])
            for words, box in boxes.items():
                on = (
                    (box.x0 < points[:, 0])
                    & (points[:, 0] < box.x1)
                    & (box.y0 < points[:, 1])
                    & (points[:, 1] < box.y1)
                )
                assert not on.any(), (one.label, words)
