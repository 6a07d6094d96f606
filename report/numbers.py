"""How numbers are written for readers: signs, units, intervals. Pure functions of a number to a short text."""

from __future__ import annotations

import math
from collections.abc import Collection

MISSING = "–"


def signed(value: float | None, digits: int = 2) -> str:
    """A difference with its sign and a true minus: +0.28, −35.74, 0.00."""
    if value is None:
        return MISSING
    text = f"{value:+.{digits}f}"
    return f"{0:.{digits}f}" if float(text) == 0 else text.replace("-", "−")


def plain(value: float | None, digits: int = 2) -> str:
    """A level without a plus sign."""
    return MISSING if value is None else f"{value:.{digits}f}".replace("-", "−")


def interval(low: float | None, high: float | None, digits: int = 2, sign: bool = False) -> str:
    """[low, high], or nothing when there is none."""
    if low is None or high is None:
        return ""
    write = signed if sign else plain
    return f"[{write(low, digits)}, {write(high, digits)}]"


def ratio(value: float | None) -> str:
    """How many times fewer: 31.9×, 1×, and ∞ for a method that sends nothing."""
    if value is None:
        return MISSING
    if math.isinf(value):
        return "∞"
    return f"{value:.3g}×" if value < 1000 else f"{value:,.0f}×"


def weight(value: float) -> str:
    """rho in two digits, whole numbers from 100 on: 2.3, 23, 260."""
    return f"{value:.2g}" if value < 99.5 else f"{float(f'{value:.2g}'):.0f}"


def factor(value: float | None) -> str:
    """How many times, without its sign, for the ends of intervals: 3.40, 0.98, 13.3, ∞."""
    if value is None:
        return MISSING
    if math.isinf(value):
        return "∞"
    return f"{value:.2f}" if value < 9.995 else f"{value:.1f}" if value < 99.95 else f"{value:,.0f}"


def factors(low: float | None, high: float | None) -> str:
    """[3.40, 13.3]: the ends of an interval of how many times; nothing where there is none."""
    return "" if low is None or high is None else f"[{factor(low)}, {factor(high)}]"


def times(value: float | None) -> str:
    """How many times as fast or as few, in the digits of its interval: 1.80×, 0.69×, and ∞."""
    text = factor(value)
    return text if text in (MISSING, "∞") else f"{text}×"


def times_ends(value: float, low: float | None, high: float | None) -> str:
    """The same with its interval: 4.20× [4.00, 4.52]."""
    return f"{times(value)} {factors(low, high)}".strip()


def bit_rate(value: float | None) -> str:
    """Bits a second with a decimal prefix: 94.9 Mbit/s."""
    if value is None:
        return MISSING
    return _scaled(value, [(1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s"), (1.0, "bit/s")])


SECONDS = [(1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns")]


def _unit(value: float, units: list[tuple[float, str]]) -> tuple[float, str]:
    return next((found for found in units if abs(value) >= found[0]), units[-1])


def _scaled(value: float, units: list[tuple[float, str]]) -> str:
    per, unit = _unit(value, units)
    return f"{value / per:.3g} {unit}".replace("-", "−")


def seconds_ends(value: float | None, low: float | None, high: float | None) -> str:
    """[low, high] of a time in the unit in which `seconds` writes its value; nothing where there is none."""
    if value is None or low is None or high is None:
        return ""
    per, _ = _unit(value, SECONDS)
    return f"[{low / per:.3g}, {high / per:.3g}]".replace("-", "−")


def byte_count(value: float | None) -> str:
    """Bytes with a decimal prefix: 1.81 MB."""
    if value is None:
        return MISSING
    return _scaled(value, [(1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B")])


def seconds(value: float | None) -> str:
    """Seconds with a prefix: 12.5 ms."""
    return MISSING if value is None else _scaled(value, SECONDS)


def rate(value: float | None) -> str:
    """A learning rate in three digits: 0.01, 3.16e-05."""
    return MISSING if value is None else f"{value:.3g}"


def probability(value: float | None) -> str:
    """A p-value in two digits."""
    return MISSING if value is None else f"{value:.2g}"


def span(counts: Collection[int]) -> str:
    """6, or 6 to 8."""
    least, most = min(counts), max(counts)
    return f"{least}" if least == most else f"{least} to {most}"


def are(count: int) -> str:
    """1 is; 3 are."""
    return f"{count} {'is' if count == 1 else 'are'}"


def share(part: int, whole: int) -> str:
    """k of n."""
    return f"{part} of {whole}"
