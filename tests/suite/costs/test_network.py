"""A collective's seconds by hand, and the textbook's forms."""

from __future__ import annotations

import pytest

from reference_impls.requests import Request
from suite.costs.step import FORMS, Backend, Network, Price
from suite.links.link import Link

PRICES = {
    name: Price(1e-3, 1e-4, 2e-9) for name in ("all-reduce fp32", "all-gather", "all-to-all", "send-recv")
}


@pytest.mark.parametrize(
    ("form", "n", "rounds", "sent"),
    [
        ("ring all-reduce", 4, 6, 1.5),
        ("tree all-reduce", 8, 6, 6),
        ("tree all-reduce", 5, 6, 6),
        ("halving-doubling all-reduce", 8, 6, 1.75),
        ("ring all-gather", 4, 3, 3),
        ("pairwise all-to-all", 4, 1, 0.75),
        ("two-phase", 4, 4, 1.5),
        ("parameter server", 4, 2, 4),
        ("send-recv", 4, 1, 1),
    ],
)
def test_forms(form: str, n: int, rounds: float, sent: float) -> None:
    assert FORMS[form].rounds(n) == rounds
    assert FORMS[form].sent(n) == sent


def test_seconds_by_hand() -> None:
    network = Network(8e6, 0.01, PRICES, efficiency=1.0)
    # 10 kB in a ring of 4: 15 kB at 1 MB/s, six rounds of 10.1 ms of which half of the bytes' time hides some, 1 ms to start
    assert network.seconds("all-reduce fp32", 4, 1e4) == pytest.approx(0.015 / 2 + 6 * 0.0101 + 1e-3)
    assert network.seconds("all-reduce fp32", 4, 1e6) == pytest.approx(1.5)
    # one element: a piece goes round alone, and what it is asked for was posted long before
    patient = Network(float("inf"), 0.01, PRICES, crowd=2.0, delayed=2.0)
    alone = patient.seconds("all-reduce fp32", 4, 4)
    assert alone == pytest.approx((1 + 1 / 4) * (1e-3 + 6e-4) + 6 * 0.01 * (1 + 1 / 4), rel=1e-4)
    crowded = Network(8e6, 0.01, PRICES, efficiency=1.0, crowd=2.0, delayed=1.5)
    assert crowded.seconds("all-gather", 4, 1e6) == pytest.approx(3.0 + 3 * (2e-4 + 0.015) + 2e-3)


def test_an_unshaped_link_costs_work_alone() -> None:
    network = Network(float("inf"), 0.0, PRICES)
    assert network.seconds("all-to-all", 4, 1e9) == pytest.approx(0.75e9 * 2e-9 + 1e-3 + 1e-4)


def test_one_connection_carries_whole_messages_in_turns() -> None:
    network = Network(8e6, 0.0, {name: Price(0.0, 0.0, 0.0) for name in PRICES}, efficiency=1.0)
    assert network.seconds("send-recv", 4, 1e6) == pytest.approx(1.0)
    assert network.seconds("send-recv", 2, 1e6) == pytest.approx(2.0)
    assert network.seconds("all-to-all", 2, 1e6) == pytest.approx(1.0)  # half of it, twice
    assert network.seconds("all-reduce fp32", 2, 1e6) == pytest.approx(1.0)  # in pieces: both ways at once
    mutual = Request("send-recv", "x", 4, 1e6, "uint8", mutual=True)
    assert network.of(mutual).wire_s == pytest.approx(2.0)


def test_workers_with_machines_of_their_own_share_no_processor() -> None:
    backend = Backend("gloo", PRICES, 0.95, 1.0, cores=2)
    assert backend.on(Link(8, 1e9)).crowd == 4
    assert backend.on(Link(2, 1e9)).crowd == 1
    assert backend.on(Link(8, 1e9), own_machines=True).crowd == 1


def test_processors_work_for_bytes_and_for_messages_that_are_not_empty() -> None:
    network = Network(8e6, 0.01, PRICES, efficiency=1.0, crowd=2.0)
    large = network.parts("all-reduce fp32", 4, 1e6)
    assert large.worked_s == pytest.approx(2 * (2e-9 * 1.5e6 + 1e-3 + 6 * 1e-4))
    assert network.parts("all-reduce fp32", 4, 4).handled_s == pytest.approx(large.handled_s / 4)
