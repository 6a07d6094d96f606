"""The pictures: the same each time, right on light and on dark paper, families told apart by mark and by all eyes."""

from __future__ import annotations

import itertools
import re
from typing import get_args
from xml.etree import ElementTree

import matplotlib as mpl
import numpy as np
import pytest

from reference_impls.core.catalogue import Family
from report.accuracy import seeds
from report.figures import FAMILIES, MARKS, SHADES, svg
from report.sessions import phases
from tests.report import made_up_speed as fast

# How eyes see linear RGB: normal, and without red, green or blue cones (Machado, Oliveira and Fernandes 2009).
EYES = {
    "normal": np.eye(3),
    "protan": np.array([[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]),
    "deutan": np.array([[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]),
    "tritan": np.array([[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]),
}  # fmt: skip
LMS = np.array(
    [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
)
LAB = np.array(
    [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
)
FAR = 0.03  # in Oklab, where black and white are 1 apart


def linear(colour: str) -> np.ndarray:
    srgb = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)


def distance(a: str, b: str, eye: str) -> float:
    one, other = (LAB @ np.cbrt(LMS @ np.clip(EYES[eye] @ linear(c), 0, 1)) for c in (a, b))
    return float(np.linalg.norm(one - other))


def contrast(a: str, b: str) -> float:
    low, high = sorted(float(linear(c) @ [0.2126, 0.7152, 0.0722]) for c in (a, b))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("mode", [0, 1], ids=["light", "dark"])
def test_families_are_told_apart_by_all_eyes(mode: int) -> None:
    assert set(FAMILIES) == set(MARKS) == set(get_args(Family)) - {"plugin"}
    assert len(set(MARKS.values())) == len(FAMILIES)
    for a, b in itertools.combinations(FAMILIES, 2):
        for eye in EYES:
            assert distance(SHADES[a][mode], SHADES[b][mode], eye) >= FAR, (a, b, eye)
    for family in FAMILIES:
        assert contrast(SHADES[family][mode], SHADES["paper"][mode]) >= 4.5, family


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
    case = next(row for row in link.cases if row["case"] == "qsr-sgd: step")
    columns = ("forward_backward_s", "encode_s", "exposed_s", "decode_s")
    assert lengths["qsr-sgd: step"][:4] == pytest.approx(
        [1e3 * max(0.0, case[name] or 0.0) for name in columns]
    )
    own = next(row for row in link.cases if row["case"] == fast.REFERENCE)
    assert sum(lengths[fast.REFERENCE]) == pytest.approx(1e3 * own["step_s"]), (
        "not told apart: computing and exposed"
    )
    assert all(length >= 0 for bars in lengths.values() for length in bars)
    assert axes.get_xlabel() == "milliseconds a step"
    slow = phases(link, longest=9.0)
    assert slow is not None
    assert slow.axes[0].get_xlabel() == "seconds a step"
    assert svg(figure) == svg(phases(link))  # type: ignore[arg-type]
