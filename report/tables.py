"""Tables as a page shows them: columns that make cells of rows. In a browser DataTables sorts, filters and exports them.

A `Cell` holds the text for people and the value by which the page sorts. A column says in its title what it is and in its hover
text how it was computed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from report import numbers as write

ORDER = "95 % order-statistic interval of the median over rounds."
PAIRED = f"Times faster, paired by round. {ORDER}"


@dataclass(frozen=True)
class Cell:
    """Text for people; `raw` for sorting; a small `note` beside the text; `link`: where the text leads; `family`: its colour."""

    text: str
    raw: str | float | None = None
    note: str = ""
    css: str = ""
    link: str = ""
    family: str = ""

    @property
    def order(self) -> str | float | None:
        """What the page sorts by where the text does not say it: no number is a sign for infinity."""
        return 1e308 if self.raw == math.inf else self.raw


Make = Callable[[Any], Cell]
"""What makes the cell of a row."""


@dataclass(frozen=True)
class Column:
    """A column: its title, what makes its cells of rows, and how it came about. hidden: until a reader asks for it."""

    title: str
    make: Make
    about: str = ""
    numeric: bool = False
    hidden: bool = False


@dataclass(frozen=True)
class View:
    """A table of the page. `slug` is its name in anchors and as a file name of the download."""

    slug: str
    caption: str
    columns: tuple[Column, ...]
    rows: Sequence[Any]

    @property
    def lines(self) -> list[list[Cell]]:
        """Its cells."""
        return [[column.make(row) for column in self.columns] for row in self.rows]


def text(name: str, css: str = "", classes: Mapping[str, str] | None = None) -> Make:
    """A value in words; a dash where it is missing. classes: by value, what else it looks like."""

    def make(row: Any) -> Cell:
        value = row[name]
        return Cell(write.MISSING if value in (None, "") else str(value), css=(classes or {}).get(value, css))

    return make


def count(name: str, css: str = "") -> Make:
    """A number without further decimals; a dash where it is missing. css: of those that are not zero."""
    return lambda row: _number(row[name], lambda value: f"{value:g}", css if row[name] else "")


def size(name: str) -> Make:
    """Bytes with a prefix."""
    return lambda row: _number(row[name], write.byte_count)


def percent(name: str) -> Make:
    """A share in percent."""
    return lambda row: _number(row[name], lambda value: f"{100 * value:.3g} %")


def value(name: str, words: Callable[[float | None], str]) -> Make:
    """A number in these words."""
    return lambda row: Cell(words(row[name]), row[name])


def seconds(name: str, low: str = "", high: str = "") -> Make:
    """Seconds with a prefix, the interval in the same unit as a note."""

    def make(row: Any) -> Cell:
        ends = (row[low], row[high]) if low else (None, None)
        return Cell(write.seconds(row[name]), row[name], write.seconds_ends(row[name], *ends))

    return make


def ratio(name: str, low: str, high: str) -> Make:
    """A speedup with its interval."""
    return lambda row: Cell(write.times(row[name]), row[name], write.factors(row[low], row[high]))


def _number(value: float | None, words: Callable[[float], str], css: str = "") -> Cell:
    return Cell(write.MISSING, css=css) if value is None else Cell(words(value), float(value), css=css)
