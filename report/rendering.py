"""Pages as text: templates, what stands inside every page (styles, script, tables as JSON), and how pages refer to each other.

Addresses are relative, which work from disk wherever the folder lies.
"""

from __future__ import annotations

import json
import re
import zlib
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from suite.analysis.columns import Table
from suite.analysis.tables import Row, to_csv
from suite.runs.files import write_atomic


class ReportError(RuntimeError):
    """A page cannot be built; the message says what to do."""


@dataclass(frozen=True)
class Links:
    """Where a page leads as part of a site, by relative addresses. All empty: the page stands alone.

    Args:
        home: of the first page.
        pages: of all others in the navigation, each with its words.
        here: of this page, where it is one of these.
        methods: of the pages of methods, by name in the catalogue.
    """

    home: str = ""
    pages: tuple[tuple[str, str], ...] = ()
    here: str = ""
    methods: Mapping[str, str] = field(default_factory=dict)


ALONE: Final = Links()
HERE = Path(__file__).resolve().parent


@cache
def _environment() -> Environment:
    """Where templates are compiled, each once."""
    found = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        keep_trailing_newline=True,
    )
    found.template_class = _Page
    return found


class _Page(Template):
    """A template whose pages say once, in their head, how all that is alike looks: in pictures, and in columns of tables."""

    def render(self, *args: Any, **kwargs: Any) -> str:
        """The page."""
        return styled_once(super().render(*args, **kwargs))


STYLE: Final = "look_"
"""What names of the styles of pictures begin with, until a page has them all."""
HERE_GO_STYLES: Final = "/* of pictures and columns */"
"""In the head of a page, where the rules of what it holds go."""
_PICTURE_STYLE: Final = re.compile(r"(<svg [^>]*>)<style>([^<]*)</style>")
_RULE: Final = re.compile(rf"\.({STYLE}\w+)\{{([^}}]*)\}}")
_CLASS: Final = re.compile(rf"\b{STYLE}\w+\b")
_COLUMNS: Final = re.compile(r'<table class="([nh\d ]+)">')
_COLUMN_RULES: Final = MappingProxyType({"n": "text-align:right", "h": "display:none"})


def styled_once(page: str) -> str:
    """A page with the styles of all its pictures in its head, each once and by a short name, and with a rule for every kind of
    column. Pages without the mark for it stay as they are.

    Raises:
        ValueError: Two styles have the same name.
    """
    head, mark, body = page.partition(HERE_GO_STYLES)
    if not mark:
        return page
    rules: dict[str, str] = {}

    def gathered(found: re.Match[str]) -> str:
        for name, style in _RULE.findall(found[2]):
            if rules.setdefault(name, style) != style:
                raise ValueError(f"two styles of pictures are called {name}: {rules[name]} and {style}")
        return found[1]

    body = _PICTURE_STYLE.sub(gathered, body)
    short = {name: f"l{place}" for place, name in enumerate(rules)}
    if rules:
        body = _CLASS.sub(lambda found: short.get(found[0], found[0]), body)
    columns = {name for found in _COLUMNS.findall(body) for name in found.split()}
    said = [f".{short[name]}{{{style}}}" for name, style in rules.items()]
    for kind, style in _COLUMN_RULES.items():
        places = sorted(int(name[1:]) for name in columns if name[0] == kind)
        if places:
            said.append(f"{','.join(f'.{kind}{at} tr>:nth-child({at})' for at in places)}{{{style}}}")
    return head + "\n".join(said) + body


def template(name: str) -> Template:
    """A template; everything that it is given is escaped."""
    return _environment().get_template(name)


def embedded(value: Any) -> str:
    """A value as JSON for a script element: nothing in it can end the element. Raises ValueError for NaN and infinity."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def packed(text: str) -> str:
    """The text of a CSV file for `embedded`: deflated, which any browser can undo, in base64."""
    return b64encode(zlib.compress(text.encode("utf-8"), 9)).decode("ascii")


def navigation(links: Links) -> str:
    """The navigation of a page, as its template has it."""
    return str(template("site.html.j2").module.navigation(links))  # type: ignore[attr-defined]


def asset(name: str) -> str:
    """A file of the folder `static`."""
    return (HERE / "static" / name).read_text(encoding="utf-8").strip()


def script() -> str:
    """What stands in a page's script: that of its tables and pictures."""
    return "\n".join(asset(name) for name in ("table.js", "pictures.js"))


def slug(text: str) -> str:
    """Letters, digits and hyphens."""
    return "-".join("".join(c if c.isalnum() else " " for c in text.lower()).split())


Tables = Sequence[tuple[Table, Sequence[Row]]]


def write_page(
    path: Path,
    name: str,
    headline: Sequence[str],
    tables: Tables,
    parts: Mapping[str, Any],
    links: Links = ALONE,
) -> tuple[Path, list[str]]:
    """Write the page of a template that extends `single_page.html.j2`; returns its path and the findings.

    The same arguments give the same bytes. Raises StoreError where it cannot be written.
    """
    write_atomic(path, render_page(name, headline, tables, parts, links))
    return path, list(headline)


def render_page(
    name: str, headline: Sequence[str], tables: Tables, parts: Mapping[str, Any], links: Links = ALONE
) -> str:
    """The page's HTML."""
    return template(name).render(
        links=links,
        headline=headline,
        tables=[f"{table.suffix}.csv" for table, _ in tables],
        data=embedded(
            {"tables": {f"{table.suffix}.csv": packed(to_csv(table, rows)) for table, rows in tables}}
        ),
        css=asset("style.css"),
        js=script(),
        **{"origin": "", **parts},
    )
