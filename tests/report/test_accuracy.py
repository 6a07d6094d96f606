"""How methods end, in sentences, a table and a picture: with n and interval, and silent where the study is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from report import numbers
from report.accuracy import methods_view, option_sentence, seeds
from report.figures import COLOURS, svg
from report.study import headline


def of(built, sharding):
    return next(p for p in built.study.panels if p.sharding == sharding)


def test_sentences(built):
    first, second, third, last = headline(built.study)
    assert first == (
        "Shards i.i.d.: 8 of 11 methods are within ±0.4 points of the uncompressed run of their own optimizer; 3 are "
        "undecided. lion-cub-1bit never sends least of them: 31.9× fewer bytes at 0.00 [−0.30, +0.30] points (95 % "
        "paired t, n = 6)."
    )
    assert second.startswith("Shards by class: 2 of 11 methods are within ±0.4 points")
    assert third.startswith("Shards by class: options decide: lion-cub-1bit never ends at −35.74 [")
    assert "lion-cub-1bit K=10 at +0.09 [−0.07, +0.26] points (95 % paired t, n = 6)" in third
    assert last == "8 of 216 runs did not finish: 7 diverged, 1 error. They are listed below and in no mean."
    assert built.headline == headline(built.study)


def test_worse_is_the_higher_value_where_lower_is_better(built):
    panel = of(built, "by-class")
    flipped = replace(panel, facts={**panel.facts, "direction": "lower"})
    sentence = option_sentence(flipped, "Here")
    assert sentence.startswith("Here: options decide: lion-cub-1bit K=10 ends at +0.09")


@pytest.mark.parametrize(
    ("function", "value", "text"),
    [
        (numbers.signed, -0.004, "0.00"),
        (numbers.signed, -35.741, "−35.74"),
        (numbers.signed, 0.28, "+0.28"),
        (numbers.signed, None, "–"),
        (numbers.plain, 97.006, "97.01"),
        (numbers.ratio, 31.87, "31.9×"),
        (numbers.ratio, 1.0, "1×"),
        (numbers.ratio, 12345.6, "12,346×"),
        (numbers.ratio, float("inf"), "∞"),
        (numbers.byte_count, 1806396, "1.81 MB"),
        (numbers.byte_count, 0, "0 B"),
        (numbers.rate, 3.1622776e-05, "3.16e-05"),
        (numbers.probability, 0.00390625, "0.0039"),
    ],
)
def test_numbers(function, value, text):
    assert function(value) == text


def test_better_is_called_better(built):
    method = "global-qsgd standard"
    cells = {"equal": "no", "diff_mean": 0.9, "diff_low": 0.7, "diff_high": 1.1}
    for panel in built.study.panels:
        changed = replace(panel, summary=[{**r, **cells} if r["arm"] == method else r for r in panel.summary])
        (line,) = [cells for cells in methods_view(changed, False).lines if cells[0].text == method]
        assert line[1].text == "better by 0.90 points"


@pytest.mark.parametrize("sharding", ["iid", "by-class"])
def test_every_seed_is_a_dot_and_the_band_stands_only_where_the_study_can_tell(built, sharding):
    panel = of(built, sharding)
    axes = seeds(panel).axes[0]
    dots = sum(len(drawn.get_offsets()) for drawn in axes.collections if hasattr(drawn, "get_sizes"))
    finished = {(row["arm"], row["seed"]) for row in panel.runs if row["status"] == "done"}
    assert dots == sum(
        (row["arm"], seed) in finished and (row["baseline"], seed) in finished
        for row in [*panel.methods, *panel.controls]
        for seed in range(6)
    )
    assert COLOURS["band"] in svg(seeds(panel))
    blind = replace(panel, verdict={**panel.verdict, "sensitive": False})
    assert COLOURS["band"] not in svg(seeds(blind))
