"""Tables as the page shows them: which columns, how a cell reads, and the raw value behind it.

A `Cell` holds the text for people and the value by which the page sorts and which its CSV holds; an interval
adds its two ends. Every column says in its title what it is and in its hover text how it was computed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

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
    the page, the relative address of another `page`; `items` are several short cells in place of the text, a `picture` an
    <svg> of our own making that stands before the text and says in words what it shows.
    """

    text: str
    raw: str | float | None = None
    note: str = ""
    ends: tuple[float | None, float | None] | None = None
    css: str = ""
    link: str = ""
    page: str = ""
    items: tuple[Cell, ...] = ()
    picture: str = ""

    @property
    def address(self) -> str:
        """Where its text leads; empty: nowhere."""
        return f"#{self.link}" if self.link else self.page


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
