"""Steps played by hand: overlap, waiting, the link's queue."""

from __future__ import annotations

import pytest

from reference_impls.requests import Bucket, Request, Step
from suite.costs.step import Local, Network, Overlap, Price, Recipe, step_seconds, unit_seconds

FREE = {name: Price(0.0, 0.0, 0.0) for name in ("all-reduce fp32", "all-gather", "all-to-all", "send-recv")}
OVERLAP = Overlap()


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
    # forward 2, backward 4 in two halves: buckets are ready at 4 and 6
    step = _step((_reduce(1.0),), (_reduce(1.0),))
    assert step_seconds(step, Local(6.0), _network(), OVERLAP) == pytest.approx(7.0)


def test_a_slow_link_is_a_queue_from_the_first_bucket_on() -> None:
    step = _step((_reduce(10.0),), (_reduce(10.0),))
    assert step_seconds(step, Local(6.0), _network(), OVERLAP) == pytest.approx(4.0 + 20.0)


def test_a_second_collective_waits_for_the_next_bucket() -> None:
    """Bucket 1 is ready at 4, its first message there at 5. When bucket 2 comes at 6, bucket 1 is moved on first: 6 to 7, then
    bucket 2's messages, 7 to 8 and 8 to 9. Bucket 1 is decoded from 7 to 8; bucket 2's second message is launched at 8."""
    two = (_reduce(1.0), _reduce(1.0))
    found = step_seconds(_step(two, two), Local(6.0, decode_s=2.0), _network(), OVERLAP)
    assert found == pytest.approx(10.0)  # and decoded from 9 to 10


def test_ranks_that_share_processors_come_late() -> None:
    """Half of them: all of backward times 1 - 1/2 is over when the last rank has its first bucket."""
    step = _step((_reduce(10.0),), (_reduce(10.0),))
    late = Overlap(late=1.0)
    # backward's 4 s: 2 s before the last rank begins with it, then a half of the rest
    assert step_seconds(step, Local(6.0), _network(crowd=2.0), late) == pytest.approx(2 + 2 + 1 + 20.0)
    assert step_seconds(step, Local(6.0), _network(), late) == pytest.approx(4.0 + 20.0)


def test_what_follows_the_update_is_waited_for() -> None:
    step = _step((), after=(_reduce(2.0), _reduce(3.0)))
    assert step_seconds(step, Local(4.0, update_s=1.0), _network(), OVERLAP) == pytest.approx(10.0)


def test_shared_processors_do_all_the_work_there_is() -> None:
    prices = {name: Price(0.0, 0.0, 1.0) for name in FREE}
    step = _step((_reduce(3.0),), (_reduce(3.0),))
    crowded = Network(float("inf"), 0.0, prices, efficiency=1.0, crowd=2.0)
    # two messages of 3 bytes sent by each of 2 ranks, 1 s a byte and rank, two ranks a core: 12 s of work beside 4
    assert step_seconds(step, Local(4.0), crowded, OVERLAP) == pytest.approx(16.0)


def test_a_round_is_the_sum_of_its_steps() -> None:
    local, recipe = Local(4.0), Recipe((_step(()), _step((), after=(_reduce(2.0),))))
    assert unit_seconds(recipe, local, _network(), OVERLAP) == pytest.approx(4.0 + 6.0)


def test_an_all_gather_waits_for_processors_that_others_use() -> None:
    stalled = Overlap(gather_s=0.5)
    alone, crowded = _network(), _network(crowd=3.0)
    gather = _step((Request("all-gather", "gradient", 2, 1.0, "uint8"),))
    assert step_seconds(gather, Local(4.0), alone, stalled) == pytest.approx(5.0)
    assert step_seconds(gather, Local(4.0), crowded, stalled) == pytest.approx(5.0 + 2 * 0.5)
    assert step_seconds(_step((_reduce(1.0),)), Local(4.0), crowded, stalled) == pytest.approx(5.0)
