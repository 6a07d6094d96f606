"""Families can be told apart: by mark, and by colour with and without colour blindness, on white and on dark."""

from __future__ import annotations

import itertools
import re
from typing import get_args

import numpy as np
import pytest

from reference_impls.catalogue import Family
from report.drawing.theme import COLOURS, FAMILIES, MARKS
from report.rendering import asset

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


def dark() -> dict[str, str]:
    """Role -> colour in dark mode, from the style sheet."""
    css = asset("style.css")
    block = css.partition("prefers-color-scheme: dark")[2].partition("}")[0]
    return dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6});", block))


@pytest.mark.parametrize("ground", ["paper", "desk", "soft"])
def test_words_are_read_on_every_ground_by_day_and_by_night(ground: str) -> None:
    by_day = dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6});", asset("style.css").partition("}")[0]))
    for colours in (by_day, dark()):
        for role in ("ink", "muted", "link", "yes", "no", "maybe"):
            assert contrast(colours[role], colours[ground]) >= 4.5, role


def test_every_family_of_the_catalogue_has_a_look() -> None:
    assert set(FAMILIES) == set(get_args(Family)) - {"plugin"}
    assert len({MARKS[family] for family in FAMILIES}) == len(FAMILIES)


@pytest.mark.parametrize("mode", ["light", "dark"])
def test_colours_of_families_are_told_apart_by_all_eyes_and_read(mode: str) -> None:
    colours = COLOURS if mode == "light" else dark()
    for a, b in itertools.combinations(FAMILIES, 2):
        for eye in EYES:
            assert distance(colours[a], colours[b], eye) >= FAR, (a, b, eye)
    for family in FAMILIES:
        assert contrast(colours[family], colours["paper"]) >= 4.5, family


def test_the_measure_sees_what_some_eyes_confuse() -> None:
    assert distance("#856600", COLOURS["adam"], "normal") > 2 * FAR
    assert distance("#856600", COLOURS["adam"], "protan") < FAR
