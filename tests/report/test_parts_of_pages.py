"""Small parts that pages of many runs are made of: curves, packed tables, few styles, sums of overlaps, dots as paths."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from report.drawing.curve import MOST_POINTS, curve, thinned
from report.drawing.labels import Box, _array, _covered
from report.drawing.svg import svg_file
from report.rendering import asset, lean, packed
from report.site.run_page import CLASSES
from report.study.build import _reproduce
from report.study.summary import SEPARATE, seeds
from tests.report.conftest import overlap, unpacked
from tests.report.test_theme import dark

HOSTILE = '"><script>alert(1)</script>'


def path_of(svg: str) -> str:
    root = ElementTree.fromstring(svg)
    return next(p.attrib["d"] for p in root.iter("path") if p.attrib["class"] == "line")


def test_a_curve_goes_through_its_points_and_breaks_where_there_is_none() -> None:
    drawn = path_of(curve([(10, 1.0), (20, 3.0), (30, None), (40, 2.0)], "l", "u"))
    points = re.findall(r"([ML])([\d.]+) ([\d.]+)", drawn)
    assert [command for command, _, _ in points] == ["M", "L", "M"]
    xs, ys = ([float(p[i]) for p in points] for i in (1, 2))
    assert xs[1] - xs[0] == pytest.approx((xs[2] - xs[1]) / 2, abs=0.1)
    assert ys[1] < ys[2] < ys[0], "up is more"
    assert ys[2] == pytest.approx((ys[0] + ys[1]) / 2, abs=0.1)


def test_a_curve_without_values_is_not_drawn_and_a_flat_one_is() -> None:
    assert curve([], "l", "u") == ""
    assert curve([(1, None)], "l", "u") == ""
    for value in (0.0, -3.0, 1e-9):
        assert "nan" not in curve([(1, value), (2, value)], "l", "u")


def test_names_in_a_curve_are_escaped() -> None:
    drawn = curve([(1, 2.0)], HOSTILE, HOSTILE)
    assert "<script" not in drawn
    assert ElementTree.fromstring(drawn).attrib["aria-label"] == HOSTILE


def test_a_long_curve_is_thinned_and_keeps_its_ends() -> None:
    points = [(float(i), float(i)) for i in range(5000)]
    kept = thinned(points)
    assert (len(kept), kept[0], kept[-1]) == (MOST_POINTS, points[0], points[-1])
    assert len(path_of(curve(points, "l", "u"))) < 5000
    assert thinned(points[:MOST_POINTS]) == points[:MOST_POINTS]


def test_a_packed_table_is_its_file_and_ends_no_script() -> None:
    text = "id,word\n" + "".join(f'{i},"</script> é"\n' for i in range(50))
    assert unpacked(packed(text)) == text
    assert len(packed(text)) < len(text) / 4
    assert "<" not in packed(text)


def test_few_styles_keep_what_is_used_and_the_dark_ones() -> None:
    css = lean(asset("style.css"), CLASSES)
    assert len(css) < len(asset("style.css")) * 0.7
    for name in ("curve", "scroll", "warning", "brand"):
        assert f".{name}" in css
    for name in ("chip", "claim", "swatch", "menu"):
        assert f".{name}" not in css
    assert css.count("{") == css.count("}")
    assert all(f"--{role}: {colour}" in css for role, colour in dark().items())


def test_overlaps_are_summed_to_the_same_bits_as_one_by_one() -> None:
    draw = np.random.default_rng(1)

    def boxes(count: int) -> list[Box]:
        corners = draw.uniform(0, 50, (count, 2))
        return [
            Box(x, y, x + w, y + h)
            for (x, y), (w, h) in zip(corners, draw.uniform(0, 20, (count, 2)), strict=True)
        ]

    own, others = boxes(40), boxes(90)
    one_by_one = [sum(overlap(a, b) for b in others) for a in own]
    assert _covered(_array(own), _array(others)).tolist() == one_by_one
    assert _covered(_array(own), _array([])).tolist() == [0.0] * 40


def test_more_dots_than_can_be_told_apart_become_a_path_a_method(built: Any) -> None:
    panel = built.study.panels[0]
    more = [{**row, "seed": int(row["seed"]) + 6 * k} for row in panel.runs for k in range(20)]
    drawn = svg_file(seeds(replace(panel, runs=more)))
    few = svg_file(seeds(panel))
    dots = few.count("<use") - drawn.count("<use")
    assert dots > SEPARATE / 20
    strokes = re.findall(
        r'<path d="((?:M [\d.-]+ [\d.-]+\s+L [\d.-]+ [\d.-]+\s+)+)"[^>]*stroke-width: 3.4', drawn
    )
    assert sum(stroke.count("M") for stroke in strokes) == 20 * dots
    assert len(drawn) < 20 * len(few) / 4


def test_how_to_reproduce_names_the_changes_where_all_runs_have_the_same(built: Any) -> None:
    def told(*changes: str | None) -> str:
        origins = [{**built.study.facts["origins"][0], "changes": one} for one in changes]
        return _reproduce(replace(built.study, facts={**built.study.facts, "origins": origins}))

    assert f"\ngit apply results/patches/{'a' * 64}.diff" in told("a" * 64, "a" * 64)
    assert "git apply" not in told("a" * 64, None)
    assert "git apply" not in told(None)
