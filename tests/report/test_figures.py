"""The pictures: the same each time, right on light and on dark paper, families told apart by mark."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import get_args
from xml.etree import ElementTree

import matplotlib as mpl
import pytest

from reference_impls.core.catalogue import Family
from report.accuracy import seeds
from report.figures import FAMILIES, MARKS, SHADES, svg
from report.sessions import phases
from tests.suite.analysis import made_up_session as made


def test_every_family_has_a_mark_of_its_own() -> None:
    assert set(FAMILIES) == set(MARKS) == set(get_args(Family)) - {"plugin"}
    assert len(set(MARKS.values())) == len(FAMILIES)


def test_a_picture_is_the_same_whatever_the_readers_settings_and_has_its_colours_in_the_dark(built) -> None:
    panel = built.study.panels[0]
    first = svg(seeds(panel))
    with mpl.rc_context({"font.size": 30, "axes.facecolor": "red", "lines.linewidth": 9, "savefig.dpi": 300}):
        assert svg(seeds(panel)) == first
    ElementTree.fromstring(first)
    assert "<image" not in first
    assert not re.search(r"\d{4}-\d\d-\d\dT", first)
    used = set(re.findall(r"(?:fill|stroke): (#[0-9a-f]{6})", first.partition("</style>")[2]))
    assert used <= {light for light, _ in SHADES.values()}, "a colour that stays as it is in the dark"
    light, dark = SHADES["muted"]
    assert f'[style*="fill: {light}"]{{fill:{dark}!important}}' in first


def test_a_bar_is_its_phases_and_the_stroke_the_step(timed) -> None:
    session = next(one for one in timed.study.sessions if one.name == "timed")
    link = session.links[0]
    figure = phases(link)
    assert figure is not None
    axes = figure.axes[0]
    names = [tick.get_text() for tick in axes.get_yticklabels()]
    assert names == [row["case"] for row in sorted(link.timed, key=lambda row: (row["step_s"], row["case"]))]
    lengths = {
        name: [bars.patches[line].get_width() for bars in axes.containers[:5]]
        for line, name in enumerate(names)
    }
    case = next(row for row in link.cases if row["case"] == "lion-cub-1bit: step")
    columns = ("forward_backward_s", "encode_s", "exposed_s", "decode_s")
    assert lengths["lion-cub-1bit: step"][:4] == pytest.approx(
        [1e3 * max(0.0, case[name] or 0.0) for name in columns]
    )
    own = next(row for row in link.cases if row["case"] == made.REFERENCE)
    assert sum(lengths[made.REFERENCE]) == pytest.approx(1e3 * own["step_s"]), (
        "not told apart: computing and exposed"
    )
    assert all(length >= 0 for bars in lengths.values() for length in bars)
    assert axes.get_xlabel() == "milliseconds a step"
    steps = ("step_s", "step_low", "step_high")
    slow = phases(
        replace(link, cases=[row | dict.fromkeys(steps, row["step_s"] and 9.0) for row in link.cases])
    )
    assert slow is not None
    assert slow.axes[0].get_xlabel() == "seconds a step"
    assert svg(figure) == svg(phases(link))  # type: ignore[arg-type]
