"""The pictures: what is drawn, where the names stand, and that an SVG is the same each time."""

from __future__ import annotations

import itertools
import random
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import matplotlib as mpl
import pytest

from report.drawing.labels import Box, Label, place
from report.drawing.scales import new_figure
from report.drawing.svg import inline, svg_file
from report.drawing.theme import COLOURS, FAMILIES, MARKS, SHAPES
from report.rendering import HERE_GO_STYLES, asset, styled_once
from report.study.marks import Point, draw_marks, families
from report.study.summary import seeds
from tests.report.conftest import overlap
from tests.suite.analysis.made_up_study import MADE


@pytest.fixture(params=["iid", "by-class"])
def panel(built, request):
    return next(p for p in built.study.panels if p.sharding == request.param)


def test_places_are_free_when_there_is_room():
    draw = random.Random(3)
    labels = [Label(draw.uniform(60, 340), draw.uniform(40, 260), 60, 9) for _ in range(18)]
    marks = [Box(label.x - 3, label.y - 3, label.x + 3, label.y + 3) for label in labels]
    frame = Box(0, 0, 400, 300)
    boxes = place(labels, marks, [], frame)
    assert place(labels, marks, [], frame) == boxes
    assert all(overlap(a, b) == 0 for a, b in itertools.combinations(boxes, 2))
    assert all(overlap(box, mark) == 0 for box in boxes for mark in marks)
    assert all(frame.x0 <= b.x0 and b.x1 <= frame.x1 and frame.y0 <= b.y0 and b.y1 <= frame.y1 for b in boxes)


def test_a_name_is_nearest_to_its_own_mark_when_it_can_be():
    labels = [Label(100, 100, 80, 9), Label(130, 100, 80, 9)]
    marks = [Box(label.x - 3, label.y - 3, label.x + 3, label.y + 3) for label in labels]
    left, right = place(labels, marks, [], Box(0, 0, 300, 200))
    assert left.x1 < 130
    assert right.x0 > 100


def test_the_band_is_filled_only_where_the_study_is_sensitive(panel):
    assert COLOURS["band"] in svg_file(seeds(panel))
    blind = replace(panel, verdict={**panel.verdict, "sensitive": False})
    assert COLOURS["band"] not in svg_file(seeds(blind))


def test_svg_is_the_same_whatever_the_readers_settings(panel):
    first = svg_file(seeds(panel))
    with mpl.rc_context({"font.size": 30, "axes.facecolor": "red", "lines.linewidth": 9, "savefig.dpi": 300}):
        assert svg_file(seeds(panel)) == first
    ElementTree.fromstring(first)
    assert "<image" not in first
    assert not re.search(r"\d{4}-\d\d-\d\dT", first)


def test_inside_a_page_ids_are_prefixed_and_colours_can_change(panel):
    svg = svg_file(seeds(panel))
    body = inline(svg, "p1", 'a "label" & more')
    assert body.startswith('<div class="plot" role="group" tabindex="0" aria-label="Picture')
    assert body.count("<g") < svg.count("<g") / 2, "groups that only bear a name"
    assert re.findall(r"(?<![\d.])\d+\.\d{3,}", body) == []
    own = re.search(r' id="(p[0-9a-f]+)-', body)[1]
    assert own not in inline(svg, "p2", "another"), "two pictures of a page share no name"
    named, used = re.findall(r'\bid="([^"]+)"', body), re.findall(r'(?:href="#|url\(#)([^")]+)', body)
    assert len(named) == len(set(named))
    assert set(used) <= set(named)
    assert all(name.startswith(f"{own}-") for name in named)
    assert "http" not in body
    rules = re.search("<style>(.*?)</style>", body)[1]
    assert all(re.fullmatch(r"\.look_[0-9a-f]{8}", rule) for rule in re.findall(r"([^{}]+)\{", rules)), (
        "alike everywhere"
    )
    assert re.findall(' style="([^"]*)"', body) == [f"--c0:url(#{own}-0)"], "where it is cut off is its own"
    assert "var(--band" in body
    assert 'aria-label="a &quot;label&quot; &amp; more"' in body
    figure, (axes,) = new_figure(3, 2)
    draw_marks(axes, [Point("a", "sign", 1.0, 1.0, 1.0, 0.0, None, None, "a")])
    assert "<title>&lt;hover&gt;</title>" in inline(svg_file(figure), "p3", "marks", {"mark0": "<hover>"})
    assert not any(re.search(rf"(fill|stroke): {value}\b", body) for value in COLOURS.values())


def test_pictures_of_a_page_say_once_how_they_look(panel):
    svg = svg_file(seeds(panel))
    pictures = inline(svg, "p1", "one") + inline(svg, "p2", "two")
    page = styled_once(f'<style>{HERE_GO_STYLES}</style>{pictures}<table class="n2 h3 n12"><tr>')
    (said,) = re.findall("<style>(.*?)</style>", page, re.S)
    rules = re.findall(r"\.(l\d+)\{", said)
    used = {
        name
        for names in re.findall(r' class="([^"]*)"', page.partition("<table")[0])
        for name in names.split()
    }
    assert len(rules) == len(set(rules))
    assert used - {"plot"} == set(rules)
    assert ".n2 tr>:nth-child(2),.n12 tr>:nth-child(12){text-align:right}" in said
    assert ".h3 tr>:nth-child(3){display:none}" in said
    assert styled_once(pictures) == pictures, "no page"
    differs = re.sub(r"(\.look_\w+\{)", r"\1color:red;", pictures.partition("</div>")[0])
    with pytest.raises(ValueError, match="two styles of pictures are called look_"):
        styled_once(HERE_GO_STYLES + pictures + differs)


def test_every_seed_is_a_dot(panel):
    figure = seeds(panel)
    dots = sum(len(c.get_offsets()) for c in figure.axes[0].collections)
    finished = {(r["arm"], r["seed"]) for r in panel.runs if r["status"] == "done"}
    pairs = sum(
        (r["arm"], s) in finished and (r["baseline"], s) in finished
        for r in [*panel.methods, *panel.controls]
        for s in range(6)
    )
    assert dots == pairs


def test_every_family_has_a_look(built):
    assert set(FAMILIES) == set(MARKS) == set(SHAPES)
    assert set(FAMILIES) <= set(COLOURS)
    assert len({*MARKS.values()}) == len(MARKS)
    seen = {made.arm.family for made in MADE}
    assert families(built.study.panels[0]) == [family for family in FAMILIES if family in seen]


def test_the_style_sheet_has_the_colours_of_the_figures():
    css = asset("style.css")
    light, dark = css.partition("prefers-color-scheme: dark")[::2]
    for role, value in COLOURS.items():
        assert f"--{role}: {value};" in light, role
        assert re.search(rf"--{role}: #[0-9a-f]{{6}};", dark.partition("@media print")[0]), role
