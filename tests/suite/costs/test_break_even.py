"""Break-even bandwidths: by hand for a model of two parameters, several crossings told, signs counted."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from suite.analysis.tables import frame_of, read_frame, table_path
from suite.costs.advice import Candidate, Question
from suite.costs.break_even import EXAMPLE, break_even, break_even_tables, curve_of, stretches, verdict
from suite.costs.columns import BREAK_EVEN, CALIBRATION
from suite.costs.methods import candidates
from suite.costs.model import model_of
from suite.costs.samples import Known, UnknownCostsError, overhead_of
from suite.costs.samples import known as shipped
from suite.costs.scaling import Held, Spread
from suite.costs.step import OF_PROBE, Backend, Local, Model, Overlap, Price
from suite.links.link import Link
from suite.timing.spec import load_session
from tests.suite.costs import made_up

RESULTS = Path(__file__).resolve().parents[3] / "results" / "published"
COMPUTE_S, CODEC_S, PLAIN_BITS, SENT_BITS = 0.1, 0.02, 8e6, 1e6


def speedup(rate: float) -> float:
    """Two parameters of a method: seconds of its codec and the bits that it sends."""
    return (COMPUTE_S + PLAIN_BITS / rate) / (COMPUTE_S + CODEC_S + SENT_BITS / rate)


def test_the_break_even_of_a_model_of_two_parameters_is_the_one_by_hand() -> None:
    """PLAIN / r = CODEC + SENT / r, so r = (PLAIN - SENT) / CODEC = 350 Mbit/s."""
    ((low, high),) = stretches(speedup)
    assert low == 0.0
    assert high == pytest.approx(350e6, rel=1e-6)
    assert break_even(stretches(speedup)) == high


def test_the_band_is_where_the_speedup_differs_from_1_by_the_error() -> None:
    """compute + PLAIN / r = level (compute + CODEC + SENT / r)."""
    for level in (1.05, 1 / 1.05):
        by_hand = (PLAIN_BITS - level * SENT_BITS) / (level * (COMPUTE_S + CODEC_S) - COMPUTE_S)
        assert break_even(stretches(speedup, level)) == pytest.approx(by_hand, rel=1e-6)


def test_a_method_that_always_or_never_wins_is_told_as_such() -> None:
    assert stretches(lambda rate: 2.0) == [(0.0, math.inf)]
    assert break_even(stretches(lambda rate: 2.0)) == math.inf
    assert stretches(lambda rate: 0.5) == []
    assert break_even(stretches(lambda rate: 0.5)) == 0.0


def test_several_crossings_are_all_told_and_the_first_from_below_is_the_break_even() -> None:
    def wavy(rate: float) -> float:
        return 1.0 + math.sin(
            math.pi * (math.log10(rate) - 6.5) / 2
        )  # falls at 10 ** 8.5, rises at 10 ** 10.5

    found = stretches(wavy)
    assert [round(math.log10(end), 6) if 0 < end < math.inf else end for pair in found for end in pair] == [
        6.5, 8.5, 10.5, 12.5,
    ]  # fmt: skip
    assert break_even(found) == 0.0  # on the slowest links it loses
    assert break_even([(0.0, 5.0), (9.0, math.inf)]) == 5.0


@pytest.mark.parametrize(
    ("low", "high", "predicted", "word"),
    [
        (1.1, 1.3, 1.01, "agrees"),
        (0.7, 0.9, 0.99, "agrees"),
        (1.1, 1.3, 0.99, "disagrees"),
        (0.7, 0.9, 1.01, "disagrees"),
        (0.9, 1.1, 0.5, "undecided"),
    ],
)
def test_signs_are_compared_only_where_the_interval_has_one(
    low: float, high: float, predicted: float, word: str
) -> None:
    assert verdict(predicted, Spread((low + high) / 2, low, high, 6)) == word


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> list[Candidate]:
    path = tmp_path_factory.mktemp("sessions") / "made-up.yaml"
    path.write_text(made_up.SESSION, encoding="utf-8")
    return candidates(
        list(made_up.samples([Link(4, 100e6), Link(4, 1e9)])),
        made_up.CORES,
        lambda name: load_session(str(path)),
    )


FREE = Model(Backend("gloo", {name: Price(0.0, 0.0, 0.0) for name in OF_PROBE}, 1.0, 0.0, 2), Overlap())
"""Nothing but bytes over the wire takes time."""


def test_the_model_s_break_even_is_the_one_by_hand(known: list[Candidate]) -> None:
    """Nothing overlaps: DDP in bf16 sends 16 bits a parameter, the vote one, each 2 (n - 1) / n times."""
    vote = next(one for one in known if one.algorithm == "lion-cub-1bit")
    size, n, codec_s = 1e6, 4, 0.03
    overhead = {
        kind: overhead_of({int(size): Local(0.0, codec_s / 2, codec_s / 2, 0.0)}) for kind in vote.cases
    }
    question = Question(size, n, 1e9, 0.0, bucket_sizes=(25 << 20,))  # no computing to hide behind
    found = break_even(stretches(curve_of(replace(vote, overhead=overhead), question, FREE)))
    assert found == pytest.approx(2 * (n - 1) / n * size * (16 - 1) / codec_s, rel=0.01)


def test_without_a_score_there_is_no_band_and_the_command_is_named(tmp_path) -> None:
    nothing = Known(tmp_path, frame_of(CALIBRATION, []), {"provenance": {"cores": 2}}, [], [])
    with pytest.raises(UnknownCostsError, match="bandwise costs score"):
        break_even_tables(nothing, made_up.MODEL)


@pytest.mark.full
def test_the_shipped_rates_are_what_the_model_says() -> None:
    """One row worked out anew; `bandwise costs scaling` makes all of them."""
    found = shipped(RESULTS)
    table = read_frame(table_path(RESULTS, BREAK_EVEN), BREAK_EVEN)
    (row,) = table[table["workload"].isna() & (table["method"] == "lion-cub-1bit")].to_dict("records")
    vote = next(one for one in candidates(found.samples, found.cores) if one.label == "lion-cub-1bit")
    below = break_even(stretches(curve_of(vote, EXAMPLE, model_of(found))))
    assert row["below_mbit"] == pytest.approx(below / 1e6, rel=1e-6)
    assert row["below_low_mbit"] < row["below_mbit"] < row["below_high_mbit"]


def test_a_link_is_named_with_its_session() -> None:
    held = Held("quick", "a machine", "digits-mlp", 32, 1 << 20, 1, Link(4, 1e8))
    assert (held.words, held.world_size) == ("quick at 100 Mbit/s", 4)
