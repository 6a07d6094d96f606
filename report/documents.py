"""The documents of a checkout as pages of the site, and the page on which all pages are searched.

README is docs/index.html, docs/NAME.md is docs/NAME.html. Links between documents lead to their pages, and files that documents
link to are copied beside them. Where there are no documents there are no such pages.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Final

from markdown_it import MarkdownIt
from markdown_it.token import Token

from report.pages import Place, write_page
from report.tables import Cell, Column, View

ROOT: Final = Path(__file__).resolve().parent.parent
HEADINGS: Final = ("h1", "h2", "h3")


def documents(root: Path = ROOT) -> dict[Path, str]:
    """Document -> address of its page; empty outside of a checkout."""
    if not (root / "docs").is_dir():
        return {}
    others = [*sorted((root / "docs").glob("*.md")), root / "CHANGELOG.md"]
    return {root / "README.md": "docs/index.html", **{path: f"docs/{path.stem}.html" for path in others}}


def write_document(path: Path, place: Place, pages: Mapping[Path, str]) -> None:
    """Write the page of a document.

    Args:
        path: The document.
        place: Where its page stands.
        pages: All documents with the addresses of their pages.
    """
    markdown = MarkdownIt("commonmark").enable("table")
    tokens = markdown.parse(path.read_text(encoding="utf-8"))
    heading, sections, seen = path.stem, list[tuple[str, str]](), Counter[str]()
    for token, inside in pairwise(tokens):
        if token.type == "heading_open" and token.tag != "h1":
            words = _words(inside)
            anchor = re.sub(r"[^\w\- ]", "", words.lower()).replace(
                " ", "-"
            )  # as GitHub makes it of a heading
            token.attrSet("id", f"{anchor}-{seen[anchor]}" if seen[anchor] else anchor)
            seen[anchor] += 1
            if token.tag == "h2":
                sections.append((str(token.attrGet("id")), words))
        elif token.type == "heading_open":
            heading = _words(inside)
        for child in token.children or ():
            _link(child, path, place, pages)
    body = markdown.renderer.render(tokens, markdown.options, {})
    body = re.sub(r"<h1>.*?</h1>\n", "", body, count=1)  # the page has it
    body = (
        body.replace("<pre>", '<pre tabindex="0">')
        .replace("<table>", '<div class="table" tabindex="0"><table>')
        .replace("</table>", "</table></div>")
    )
    write_page(place, "document", heading=heading, sections=sections, body=body)


def _link(token: Token, path: Path, place: Place, pages: Mapping[Path, str]) -> None:
    """Let a link or a picture of a document lead to where that lies in the site."""
    name = {"link_open": "href", "image": "src"}.get(token.type, "")
    target, _, anchor = str(token.attrGet(name) or "").partition("#")
    if target and ":" not in target:
        file = (path.parent / target).resolve()
        address = pages.get(file) or place.save(file.name, file.read_text(encoding="utf-8"))
        token.attrSet(name, f"{place.up}{address}{'#' if anchor else ''}{anchor}")


def _words(inline: Token) -> str:
    """The text of a heading."""
    return "".join(child.content for child in inline.children or ())


# ---- search


class _Parts(HTMLParser):
    """Headings of a page with their anchors and the words below each; numbers of the report's own tables are no words."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.parts: list[tuple[str, list[str], list[str]]] = []
        self._section = ""
        self._main = self._heading = self._table = self._cell = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        own = dict(attrs).get("id") or ""
        self._cell |= tag == "td" and self._table
        if tag == "main":
            self._main = True
        elif tag == "section":
            self._section = own
        elif tag == "table":
            self._table = bool(own)
        elif tag in HEADINGS:
            self._heading = True
            self.parts.append((own or self._section, [], []))

    def handle_endtag(self, tag: str) -> None:
        self._main &= tag != "main"
        self._heading &= tag not in HEADINGS
        self._cell &= tag != "td"

    def handle_data(self, data: str) -> None:
        if self.parts and self._heading:
            self.parts[-1][1].append(data)
        elif self.parts and self._main and not self._cell:
            self.parts[-1][2].append(data)


def write_search(place: Place, addresses: Sequence[str]) -> None:
    """Write the page that has a line a heading of all pages, with the words below it, which its table filters."""
    columns = (
        Column("heading", lambda row: Cell(row["heading"], link=row["link"])),
        Column("page", lambda row: Cell(row["page"], css="reason")),
        Column("words", lambda row: Cell(row["words"]), hidden=True),
    )
    rows = [row for address in addresses for row in _found(replace(place, address=address))]
    write_page(place, "search", view=View("search-table", "All headings", columns, rows))


def _found(place: Place) -> Iterator[dict[str, str]]:
    parts = _Parts(place.path.read_text(encoding="utf-8")).parts
    title = _plain(parts[0][1])
    for anchor, heading, words in parts:
        link = f"{place.address}#{anchor}" if anchor else place.address
        yield {"heading": _plain(heading), "link": link, "page": title, "words": _plain(words)}


def _plain(words: Sequence[str]) -> str:
    return " ".join("".join(words).split())
