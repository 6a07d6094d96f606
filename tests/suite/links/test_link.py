"""A link as data: what people write, what they may not write, and what it is called."""

from __future__ import annotations

import json
import math
import pickle

import pytest

from reference_impls.core.units import UnitError, parse_duration, parse_rate
from suite.links.link import (
    Link,
    LinkError,
    duration_words,
    rate_words,
)

RATES = [
    ("100mbit", 1e8, "100mbit", "100 Mbit/s"),
    ("100 Mbit/s", 1e8, "100mbit", "100 Mbit/s"),
    ("1000mbit", 1e9, "1gbit", "1 Gbit/s"),
    ("2.5gbit", 2.5e9, "2.5gbit", "2.5 Gbit/s"),
    ("12345678bit", 12345678.0, "12.345678mbit", "12.345678 Mbit/s"),
    ("33.3mbit", 33.3e6, "33.3mbit", "33.3 Mbit/s"),
    ("unshaped", math.inf, "unshaped", "unshaped"),
]
TIMES = [
    ("5ms", 5e-3, "5ms", "5 ms"),
    ("0.5 ms", 5e-4, "500us", "500 us"),
    ("200us", 2e-4, "200us", "200 us"),
    ("1.5s", 1.5, "1.5s", "1.5 s"),
    ("0s", 0.0, "0ms", "0 ms"),
    ("0.3us", 3e-7, "0.3us", "0.3 us"),
]


@pytest.mark.parametrize(("text", "value", "written", "words"), RATES)
def test_rates_are_read_and_written(text: str, value: float, written: str, words: str) -> None:
    assert parse_rate(text) == value
    assert parse_rate(written) == value
    assert rate_words(value) == words


@pytest.mark.parametrize(("text", "value", "written", "words"), TIMES)
def test_times_are_read_and_written(text: str, value: float, written: str, words: str) -> None:
    assert parse_duration(text) == value
    assert parse_duration(written) == value
    assert duration_words(value) == words


# "mbps" is megabytes a second for tc and megabits for most people, so it is nothing here
@pytest.mark.parametrize(
    "text", ["", "100", "mbit", "100mbps", "100mb", "-5mbit", "1e9bit", "nanmbit", "5ms"]
)
def test_a_rate_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(UnitError, match="such as 100mbit"):
        parse_rate(text)


@pytest.mark.parametrize("text", ["", "5", "ms", "-5ms", "5min", "5mbit"])
def test_a_time_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(UnitError, match="such as 5ms"):
        parse_duration(text)


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
    ({"workers": 251}, "251 workers"),
    ({"rate_bps": 9.9e6}, "choose 10mbit to 10gbit"),
    ({"rate_bps": 1.1e10}, "choose 10mbit to 10gbit"),
    ({"rate_bps": math.nan}, "choose 10mbit to 10gbit"),
    ({"delay_s": -1e-3}, "delay"),
    ({"delay_s": 1.5}, "delay"),
    ({"delay_s": math.nan}, "delay"),
]


@pytest.mark.parametrize(("changed", "message"), BAD)
def test_a_link_that_cannot_be_is_refused(changed: dict[str, object], message: str) -> None:
    with pytest.raises(LinkError, match=message):
        Link(**{"workers": 4, "rate_bps": 1e8, **changed})
