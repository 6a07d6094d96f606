"""Pages as files: templates, what all pages share beside them, and how they refer to each other.

    <folder>/index.html, quick.html, claims/qsr.html, ...     pages
    <folder>/assets/            style, script, and DataTables, which makes tables sortable: once for all pages
    <folder>/files/<page>/      a page's pictures, and its tables as CSV

Addresses are relative, which work from disk wherever the folder lies; nothing is loaded from elsewhere.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib.metadata import files
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from matplotlib.figure import Figure

from report.figures import COLOURS, FAMILIES, SHADES, svg
from suite.runs.files import write_atomic

HERE: Final = Path(__file__).resolve().parent
HOME: Final = "index.html"


class ReportError(RuntimeError):
    """A page cannot be built; the message says what to do."""


def slug(text: str) -> str:
    """Letters, digits and hyphens."""
    return "-".join("".join(c if c.isalnum() else " " for c in text.lower()).split())


@dataclass(frozen=True)
class Picture:
    """A picture of a page: the address of its file in the folder, words for who cannot see it, pixels, a heading, a note."""

    address: str
    alt: str
    width: int
    height: int
    title: str = ""
    note: str = ""


@dataclass(frozen=True)
class Place:
    """Where a page stands: the `folder` of all pages, its `address` there, and the others of the navigation with their words;
    none: it stands alone."""

    folder: Path
    address: str
    pages: tuple[tuple[str, str], ...] = ()

    @property
    def path(self) -> Path:
        """The page's file."""
        return self.folder / self.address

    @property
    def up(self) -> str:
        """The way from the page to the folder."""
        return "../" * self.address.count("/")

    def save(self, name: str, text: str) -> str:
        """Write a file of the page; its address in the folder."""
        address = f"files/{self.address.removesuffix('.html')}/{name}"
        write_atomic(self.folder / address, text, flushed=False)
        return address

    def picture(self, name: str, figure: Figure, alt: str, title: str = "", note: str = "") -> Picture:
        """Write a picture of the page."""
        width, height = (round(96 * inches) for inches in figure.get_size_inches())
        return Picture(self.save(f"{name}.svg", svg(figure)), alt, width, height, title, note)


@cache
def _environment() -> Environment:
    """Where templates are compiled, each once; everything that they are given is escaped."""
    return Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def write_page(place: Place, template: str, **parts: Any) -> Path:
    """Write a page and what it shares with the others. The same arguments give the same bytes.

    Args:
        place: Where the page stands.
        template: Its name.
        parts: What the template shows.

    Returns:
        The page's file.

    Raises:
        StoreError: It cannot be written.
    """
    text = _environment().get_template(f"{template}.html.j2").render(
        up=place.up, home=HOME if place.pages else "", pages=place.pages, here=place.address, families=FAMILIES, **parts
    )  # fmt: skip
    write_atomic(place.path, text)
    for name, shared in _shared().items():
        if not (place.folder / name).is_file() or (place.folder / name).read_text(encoding="utf-8") != shared:
            write_atomic(place.folder / name, shared)
    return place.path


@cache
def _shared() -> dict[str, str]:
    """Address -> text of what all pages share. DataTables is the bundle of itables, as a script that a page on disk may load:
    browsers refuse modules there."""
    bundle = {file.name: file.read_text() for file in files("itables") or () if file.parts[1:2] == ("html",)}
    exported = re.search(r"export\{[^}]*?(\w+) as default[^}]*\};?", bundle["dt_bundle.js"])
    if exported is None:
        raise ReportError(
            "itables has another bundle of DataTables than expected: install the version of requirements.txt"
        )
    script = bundle["dt_bundle.js"].replace(exported[0], f"window.DataTable = {exported[1]};")
    colours = "".join(f"--{role}: {light}; " for role, light in COLOURS.items())
    dark = "".join(f"--{role}: {other}; " for role, (_, other) in SHADES.items())
    dots = "\n".join(f".dot.{name} {{ --dot: var(--{name}); }}" for name in FAMILIES)
    scheme = f":root {{ {colours}}}\n@media screen and (prefers-color-scheme: dark) {{ :root {{ {dark}}} }}\n{dots}\n"
    return {
        "assets/tables.js": f"(() => {{\n{script}\n}})();\n",
        "assets/tables.css": bundle["dt_bundle.css"],
        **{
            f"assets/{name}": (HERE / "static" / name).read_text(encoding="utf-8")
            for name in ("page.js", "calculator.js")
        },
        "assets/page.css": scheme + (HERE / "static" / "style.css").read_text(encoding="utf-8"),
    }
