"""Tables as the page shows them: which columns, how a cell reads, and the raw value behind it.

A `Cell` holds the text for people and the value by which the page sorts and which its CSV holds; an interval
adds its two ends. Every column says in its title what it is and in its hover text how it was computed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from html import escape
from typing import Any

from report.drawing import numbers as write
from report.drawing.numbers import number
from report.drawing.theme import FAMILIES

Row = dict[str, Any]
"""A row of a table by column; its values are of the kinds that the table declares, since reading refuses others."""

ORDER = "95 % order-statistic interval of the median over rounds."
PAIRED = f"Times faster, paired by round. {ORDER}"


@dataclass(frozen=True)
class Column:
    """A column: its key in the address and the CSV, its title, and how it came about."""

    key: str
    title: str
    about: str = ""
    numeric: bool = False
    interval: bool = False
    hidden: bool = False


@dataclass(frozen=True)
class Cell:
    """Text for people, `raw` for sorting and CSV, `ends` of an interval, a small `note` beside the text, a `link` to an id of
    the page, the relative address of another `page`; `items` are several short cells in place of the text.
    """

    text: str
    raw: str | float | None = None
    note: str = ""
    ends: tuple[float | None, float | None] | None = None
    css: str = ""
    link: str = ""
    page: str = ""
    items: tuple[Cell, ...] = ()

    @property
    def address(self) -> str:
        """Where its text leads; empty: nowhere."""
        return f"#{self.link}" if self.link else self.page

    @property
    def value(self) -> str:
        """Its raw value as the page holds it: empty where nothing is known."""
        return _exact(self.raw)

    @property
    def ends_words(self) -> str:
        """What stands behind the value in a column of intervals: its two ends."""
        return " ".join(("", *map(_exact, self.ends))) if self.ends else ""

    @property
    def spoken(self) -> bool:
        """Whether its text says its value exactly, and stands alone: the page then holds it once."""
        alone = not (self.note or self.items or self.ends)
        return alone and (self.text == self.value or (self.text == write.MISSING and not self.value))

    def html(self, tag: str, interval: bool) -> str:
        """The cell of a page. tag: of what kind it is, with what else is to stand in it. interval: of a column of such."""
        css = f' class="{self.css}"' if self.css else ""
        said = self.spoken or (self.items and self.raw is None)
        value = "" if said else f' data-v="{escape(self.value)}{self.ends_words if interval else ""}"'
        text = escape(self.text, False)
        if self.address:
            text = f'<a href="{escape(self.address)}">{text}</a>'
        items = "".join(f"{one.item} " for one in self.items)
        note = f" <small>{escape(self.note, False)}</small>" if self.note else ""
        return f"<{tag}{css}{value}>{items}{text}{note}</{tag[:2]}>"

    @property
    def item(self) -> str:
        """As one of several in a cell; its note is read, and shown where a mouse rests on it."""
        tag, address = ("a", f' href="{escape(self.address)}"') if self.address else ("span", "")
        css = f' class="{self.css}"' if self.css else ""
        title = f' title="{escape(self.note)}"' if self.note else ""
        note = f'<span class="away">, {escape(self.note, False)}</span>' if self.note else ""
        return f"<{tag}{address}{css}{title}>{escape(self.text, False)}{note}</{tag}>"


def _exact(value: str | float | None) -> str:
    whole = isinstance(value, float) and value.is_integer()
    return "" if value is None else f"{value:.0f}" if whole else str(value)


@dataclass(frozen=True)
class Line:
    """One row; `family` colours it and lets the page filter."""

    cells: dict[str, Cell]
    family: str = ""


@dataclass(frozen=True)
class View:
    """A table of the page. `slug` is its name in anchors, in the address and as a file name of the download; `groups` says
    what its lines can be filtered by, where it is not families."""

    slug: str
    caption: str
    columns: tuple[Column, ...]
    lines: tuple[Line, ...]
    families: tuple[tuple[str, str], ...] = field(default=())
    groups: str = "Families shown"

    @property
    def classes(self) -> str:
        """Of its <table>: n3 where the third column holds numbers, h3 where it is hidden at first, as no cell has to say."""
        named = (
            ("n" * column.numeric + "h" * column.hidden, at) for at, column in enumerate(self.columns, 1)
        )
        return " ".join(f"{kind}{at}" for kinds, at in named for kind in kinds)

    @property
    def rows(self) -> str:
        """Its rows as HTML, a line a cell."""
        found = []
        first, *rest = self.columns
        for line in self.lines:
            family = f' data-family="{escape(line.family)}"' if line.family else ""
            head = line.cells[first.key].html('th scope="row"', first.interval)
            cells = "\n".join(line.cells[column.key].html("td", column.interval) for column in rest)
            found.append(f"<tr{family}>{head}\n{cells}</tr>")
        return "\n".join(found)


def chips(lines: Iterable[Line]) -> tuple[tuple[str, str], ...]:
    """The families of the lines with their words, in the order of the theme: what a table can be filtered by."""
    seen = {line.family for line in lines}
    return tuple((name, words) for name, words in FAMILIES.items() if name in seen)


def text_cell(value: object, css: str = "") -> Cell:
    """A value in words; a dash where it is missing."""
    return Cell(write.MISSING, css=css) if value is None else Cell(str(value), str(value), css=css)


def count_cell(value: object, css: str = "") -> Cell:
    """A number without further decimals; a dash where it is missing."""
    known = number(value)
    return Cell(write.MISSING if known is None else f"{known:g}", known, css=css)


def bytes_cell(value: object) -> Cell:
    """Bytes with a prefix."""
    return Cell(write.byte_count(number(value)), number(value))


def percent_cell(value: object) -> Cell:
    """A share in percent."""
    known = number(value)
    return Cell(write.MISSING if known is None else f"{100 * known:.3g} %", known)


def time_cell(value: object) -> Cell:
    """Seconds with a prefix."""
    return Cell(write.quantity(number(value), "seconds"), number(value))


def seconds_cell(row: Mapping[str, Any], value: str, low: str, high: str) -> Cell:
    """Seconds with a prefix, the interval in the same unit as a note."""
    known, ends = number(row[value]), (number(row[low]), number(row[high]))
    return Cell(write.quantity(known, "seconds"), known, write.seconds_ends(known, *ends), ends)


def ratio_cell(row: Mapping[str, Any], value: str, low: str, high: str) -> Cell:
    """A speedup with its interval."""
    known, ends = number(row[value]), (number(row[low]), number(row[high]))
    note = "" if None in ends else f"[{write.factor(ends[0])}, {write.factor(ends[1])}]"
    return Cell(write.times(known), known, note, ends)
