"""Small parts that pages are made of: packed tables, sums of overlaps, dots as paths."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np

from report.drawing.labels import Box, _array, _covered
from report.drawing.svg import svg_file
from report.rendering import packed
from report.study.build import _reproduce
from report.study.summary import SEPARATE, seeds
from tests.report.conftest import overlap, unpacked


def test_a_packed_table_is_its_file_and_ends_no_script() -> None:
    text = "id,word\n" + "".join(f'{i},"</script> é"\n' for i in range(50))
    assert unpacked(packed(text)) == text
    assert len(packed(text)) < len(text) / 4
    assert "<" not in packed(text)


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
