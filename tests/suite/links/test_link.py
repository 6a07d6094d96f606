"""A link as data: what people write, what they may not write, and what it is called."""

from __future__ import annotations

import json
import math
import pickle
from collections.abc import Callable

import pytest

from reference_impls.core.units import UnitError, parse_duration, parse_rate
from suite.links.link import Link, LinkError, duration_words, rate_words

RATES = [
    ("100mbit", 1e8, "100mbit", "100 Mbit/s"),
    ("100 Mbit/s", 1e8, "100mbit", "100 Mbit/s"),
    ("1000mbit", 1e9, "1gbit", "1 Gbit/s"),
    ("2.5gbit", 2.5e9, "2.5gbit", "2.5 Gbit/s"),
    ("unshaped", math.inf, "unshaped", "unshaped"),
]
TIMES = [
    ("5ms", 5e-3, "5ms", "5 ms"),
    ("0.5 ms", 5e-4, "500us", "500 us"),
    ("200us", 2e-4, "200us", "200 us"),
    ("0s", 0.0, "0ms", "0 ms"),
]


@pytest.mark.parametrize(
    ("parse", "say", "known"), [(parse_rate, rate_words, RATES), (parse_duration, duration_words, TIMES)]
)
def test_rates_and_times_are_read_and_written(
    parse: Callable[[str], float], say: Callable[[float], str], known: list[tuple[str, float, str, str]]
) -> None:
    for text, value, written, words in known:
        assert parse(text) == parse(written) == value
        assert say(value) == words


# "mbps" is megabytes a second for tc and megabits for most people, so it is nothing here
@pytest.mark.parametrize("text", ["", "100", "100mbps", "-5mbit", "1e9bit", "nanmbit", "5ms"])
def test_what_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(UnitError, match="such as 100mbit"):
        parse_rate(text)
    with pytest.raises(UnitError, match="such as 5ms"):
        parse_duration(text.replace("mbit", "min").replace("5ms", "5"))


LABELS = [
    (Link(4, 1e8), "100 Mbit/s"),
    (Link(4, 1e8, delay_s=5e-3), "100 Mbit/s, 5 ms"),
    (Link(4, math.inf), "unshaped"),
]


@pytest.mark.parametrize(("link", "label"), LABELS)
def test_a_link_has_a_name_and_survives_being_written(link: Link, label: str) -> None:
    assert link.label == label
    again = Link.from_dict(json.loads(json.dumps(link.as_dict())))
    assert again == link
    assert hash(again) == hash(link)
    assert pickle.loads(pickle.dumps(link)) == link


BAD = [
    ({"workers": 0}, "0 workers"),
    ({"rate_bps": 9.9e6}, "choose 10mbit to 10gbit"),
    ({"rate_bps": math.nan}, "choose 10mbit to 10gbit"),
    ({"delay_s": -1e-3}, "delay"),
]


@pytest.mark.parametrize(("changed", "message"), BAD)
def test_a_link_that_cannot_be_is_refused(changed: dict[str, object], message: str) -> None:
    with pytest.raises(LinkError, match=message):
        Link(**{"workers": 4, "rate_bps": 1e8, **changed})
