"""Rates and times as people write them: ``100mbit``, ``5ms``."""

from __future__ import annotations

import math
import re
from typing import Final

UNSHAPED: Final = "unshaped"
"""In place of a rate: none is held. As a number it is infinite, and null in JSON."""
RATE_UNITS: Final = {"bit": 1.0, "kbit": 1e3, "mbit": 1e6, "gbit": 1e9, "tbit": 1e12}
TIME_UNITS: Final = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
_NUMBER_AND_UNIT: Final = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-z]+)\s*", re.IGNORECASE)


class UnitError(ValueError):
    """A rate or a time that cannot be read; the message says what to write."""


def parse_rate(text: str) -> float:
    """Bits per second of ``10mbit``, ``2.5gbit``, ``100 Mbit/s``, ``unshaped``. Raises UnitError."""
    if text.strip().lower() == UNSHAPED:
        return math.inf
    value, unit = _number_and_unit(text.strip().removesuffix("/s"))
    if unit not in RATE_UNITS:
        raise UnitError(f"rate {text!r}: write a number and a unit of bits, such as 100mbit or 1gbit")
    return float(f"{value * RATE_UNITS[unit]:.12g}")


def parse_duration(text: str) -> float:
    """Seconds of ``5ms``, ``0.5 ms``, ``200us``, ``0s``. Raises UnitError."""
    value, unit = _number_and_unit(text)
    if unit not in TIME_UNITS:
        raise UnitError(f"time {text!r}: write a number and us, ms or s, such as 5ms")
    return float(f"{value * TIME_UNITS[unit]:.12g}")


def _number_and_unit(text: str) -> tuple[float, str]:
    match = _NUMBER_AND_UNIT.fullmatch(text)
    return (float(match[1]), match[2].lower()) if match else (math.nan, "")
