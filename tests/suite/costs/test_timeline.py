"""Steps played by hand: overlap, waiting, the link's queue."""

from __future__ import annotations

import pytest

from suite.costs.network import Network, Price
from suite.costs.recipe import Bucket, Recipe, Request, Step
from suite.costs.timeline import Local, Overlap, mixed, step_seconds, unit_seconds

FREE = {name: Price(0.0, 0.0, 0.0) for name in ("all-reduce fp32", "all-gather", "all-to-all", "send-recv")}
OVERLAP = Overlap(forward=0.25, sharpness=8.0)


def _network(**changes: float) -> Network:
    return Network(8.0, 0.0, FREE, efficiency=1.0, **changes)  # a byte a second


def _reduce(seconds: float) -> Request:
    """An all-reduce of two ranks that sends so many bytes, one a second."""
    return Request("all-reduce", "gradient", 2, seconds, "float32")


def _step(*buckets: tuple[Request, ...], after: tuple[Request, ...] = ()) -> Step:
    return Step("step", (), tuple(Bucket(1 / len(buckets), requests) for requests in buckets), after)


def test_nothing_sent_takes_what_is_computed() -> None:
    assert step_seconds(_step(()), Local(4.0, 1.0, 2.0, 3.0), _network(), OVERLAP) == pytest.approx(10.0)


def test_the_last_bucket_is_exposed_and_the_first_is_not() -> None:
    # forward 1, backward 3 in two halves: buckets are ready at 2.5 and 4
    step = _step((_reduce(1.0),), (_reduce(1.0),))
    assert step_seconds(step, Local(4.0), _network(), OVERLAP) == pytest.approx(5.0)


def test_a_slow_link_is_a_queue_from_the_first_bucket_on() -> None:
    step = _step((_reduce(10.0),), (_reduce(10.0),))
    assert step_seconds(step, Local(4.0), _network(), OVERLAP) == pytest.approx(2.5 + 20.0)


def test_a_second_collective_waits_for_the_next_bucket() -> None:
    """Bucket 1 ready at 2.5, first message there at 3.5; moved on when bucket 2 comes at 4, so its second one goes first:
    4 to 5, then bucket 2's 5 to 6 and 6 to 7; decoding 1 each: 7 - 8; the first is decoded while waiting."""
    two = (_reduce(1.0), _reduce(1.0))
    found = step_seconds(_step(two, two), Local(4.0, decode_s=2.0), _network(), OVERLAP)
    # bucket 1: decoded from 5 to 6; bucket 2: second message 6 to 7, decoded 7 to 8
    assert found == pytest.approx(8.0)


def test_what_follows_the_update_is_waited_for() -> None:
    step = _step((), after=(_reduce(2.0), _reduce(3.0)))
    assert step_seconds(step, Local(4.0, update_s=1.0), _network(), OVERLAP) == pytest.approx(10.0)


def test_shared_processors_do_all_the_work_there_is() -> None:
    prices = {name: Price(0.0, 0.0, 1.0) for name in FREE}
    step = _step((_reduce(3.0),), (_reduce(3.0),))
    crowded = Network(float("inf"), 0.0, prices, efficiency=1.0, crowd=2.0)
    # two messages of 3 bytes sent by each of 2 ranks, 1 s a byte and rank, two ranks a core: 12 s of work beside 4
    assert step_seconds(step, Local(4.0), crowded, Overlap(0.25, 50.0)) == pytest.approx(16.0, rel=0.02)


def test_a_round_is_the_sum_of_its_steps() -> None:
    local, recipe = Local(4.0), Recipe((_step(()), _step((), after=(_reduce(2.0),))))
    assert unit_seconds(recipe, local, _network(), OVERLAP) == pytest.approx(4.0 + 6.0)


def test_a_collective_waits_for_processors_that_others_use() -> None:
    stalled = Overlap(0.25, 50.0, {"all-reduce": 0.5})
    alone, crowded = _network(), _network(crowd=3.0)
    step = _step((_reduce(1.0),))
    assert step_seconds(step, Local(4.0), alone, stalled) == pytest.approx(5.0)
    assert step_seconds(step, Local(4.0), crowded, stalled) == pytest.approx(5.0 + 2 * 0.5, rel=1e-6)


def test_a_norm_lies_between_the_larger_and_the_sum() -> None:
    assert mixed(3.0, 4.0, 1.0) == pytest.approx(7.0)
    assert mixed(3.0, 4.0, 2.0) == pytest.approx(5.0)
    assert mixed(3.0, 4.0, 50.0) == pytest.approx(4.0, rel=1e-6)
    assert mixed(0.0, 0.0, 2.0) == 0.0
