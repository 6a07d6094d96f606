"""What keeps people from using a page who cannot see it, or who have no mouse: faults that can be read off its HTML.

A part of what axe-core looks for, by the rules of WCAG 2.2; colours and what scripts do are looked at in a browser.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = {"meta", "link", "input", "br", "hr", "img"}
FOCUSABLE = {"a", "button", "input", "select", "summary", "textarea"}
HEADINGS = ("h1", "h2", "h3", "h4", "h5", "h6")


@dataclass
class Node:
    """An element, or a text (`tag` is empty)."""

    tag: str
    given: dict[str, str]
    up: Node | None = None
    text: str = ""
    children: list[Node] = field(default_factory=list)

    def all(self) -> Iterator[Node]:
        """It and all below it, in order."""
        yield self
        for child in self.children:
            yield from child.all()

    def above(self) -> Iterator[Node]:
        """It and all that it stands in."""
        node: Node | None = self
        while node is not None:
            yield node
            node = node.up

    @property
    def words(self) -> str:
        """What is read of it: its texts and the names of its pictures, but for what is hidden."""
        if self.given.get("aria-hidden") == "true":
            return ""
        if name := self.given.get("aria-label", "").strip():
            return name
        return " ".join(f"{self.text} {' '.join(child.words for child in self.children)}".split())

    @property
    def focusable(self) -> bool:
        """Whether a keyboard stops at it."""
        if "tabindex" in self.given:
            return int(self.given["tabindex"]) >= 0
        return self.tag in FOCUSABLE - {"a"} or (self.tag == "a" and "href" in self.given)

    def __str__(self) -> str:
        told = " ".join(f'{name}="{value}"' for name, value in self.given.items())
        return f"<{self.tag} {told}"[:90]


class _Tree(HTMLParser):
    """A page as nodes. Tags must close, which other tests hold."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.top = self._at = Node("", {})
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        node = Node(tag, {name: value or "" for name, value in attrs}, self._at)
        self._at.children.append(node)
        if tag not in VOID:
            self._at = node

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._at.children.append(Node(tag, {name: value or "" for name, value in attrs}, self._at))

    def handle_endtag(self, tag: str) -> None:
        assert self._at.up is not None, f"</{tag}> closes nothing"
        self._at = self._at.up

    def handle_data(self, data: str) -> None:
        if self._at.tag not in {"script", "style"}:
            self._at.children.append(Node("", {}, self._at, data))


def tree(html: str) -> Node:
    """The page as nodes."""
    return _Tree(html).top


def faults(html: str) -> list[str]:
    """Every fault in words, with the node that has it."""
    top = tree(html)
    nodes = [node for node in top.all() if node.tag]
    return [
        *_whole(nodes), *_headings(nodes), *_names(nodes), *_pictures(nodes), *_tables(nodes), *_keyboard(nodes),
    ]  # fmt: skip


def _of(nodes: list[Node], *tags: str) -> list[Node]:
    return [node for node in nodes if node.tag in tags]


def _whole(nodes: list[Node]) -> Iterator[str]:
    if not _of(nodes, "html")[0].given.get("lang"):
        yield "the page does not say its language"
    if not _of(nodes, "title")[0].words:
        yield "the page has no title"
    if len(_of(nodes, "main")) != 1:
        yield "the page has not one main"
    ids = Counter(node.given["id"] for node in nodes if "id" in node.given)
    yield from (f"the id {name} is there {count} times" for name, count in ids.items() if count > 1)
    navs = Counter(node.given.get("aria-label", "") for node in _of(nodes, "nav"))
    yield from (
        f"navigations cannot be told apart: {name!r}" for name, count in navs.items() if count > 1 or not name
    )
    regions = Counter(
        node.given.get("aria-label", "") for node in nodes if node.given.get("role") == "region"
    )
    yield from (
        f"regions cannot be told apart: {name!r}" for name, count in regions.items() if count > 1 or not name
    )


def _headings(nodes: list[Node]) -> Iterator[str]:
    found = _of(nodes, *HEADINGS)
    if [node.tag for node in found].count("h1") != 1:
        yield "the page has not one h1"
    before = 0
    for node in found:
        level = int(node.tag[1])
        if level > before + 1:
            yield f"a heading leaves a level out: {node} {node.words}"
        if not node.words:
            yield f"a heading is empty: {node}"
        before = level


def _names(nodes: list[Node]) -> Iterator[str]:
    labelled = {node.given["for"] for node in _of(nodes, "label") if "for" in node.given and node.words}
    for node in nodes:
        if node.tag in {"input", "select", "textarea"}:
            inside = any(up.tag == "label" and up.words for up in node.above())
            if not (inside or node.given.get("id") in labelled or node.given.get("aria-label")):
                yield f"a control has no name: {node}"
        elif (node.focusable or node.given.get("role") in {"group", "region", "img"}) and not node.words:
            yield f"it has no name: {node}"


def _pictures(nodes: list[Node]) -> Iterator[str]:
    for node in _of(nodes, "svg", "img"):
        hidden = any(up.given.get("aria-hidden") == "true" for up in node.above())
        if node.tag == "img" and not node.given.get("alt"):
            yield f"a picture has no words: {node}"
        if node.tag == "svg" and not hidden and not (node.given.get("role") == "img" and node.words):
            yield f"a picture has no role or words: {node}"


def _tables(nodes: list[Node]) -> Iterator[str]:
    for node in _of(nodes, "th"):
        if node.given.get("scope") not in {"col", "row"}:
            yield f"a head says not of what: {node}"
        if not node.words and node.given.get("scope") == "col":
            yield f"a head is empty: {node}"
    for node in _of(nodes, "table"):
        heads = any(head.given.get("scope") == "col" for head in node.all())
        named = any(inner.tag == "caption" for inner in node.all()) or any(
            up.given.get("aria-label") for up in node.above()
        )
        if not (heads and named):
            yield f"a table has no heads or no name: {node}"


def _keyboard(nodes: list[Node]) -> Iterator[str]:
    stops = [node for node in nodes if node.focusable]
    goal = stops[0].given.get("href", "") if stops else ""
    if not any(node.tag == "main" and goal == f"#{node.given.get('id')}" for node in nodes):
        yield "the first stop of the keyboard does not lead past the navigation"
    for node in nodes:
        if int(node.given.get("tabindex", 0)) > 0:
            yield f"the order of the keyboard is forced: {node}"
        if node.focusable and any(up.given.get("aria-hidden") == "true" for up in node.above()):
            yield f"it is hidden, and the keyboard stops there: {node}"
        if node.given.get("title") and node.tag not in FOCUSABLE and node.given["title"] not in node.words:
            yield f"its hover text is nowhere else: {node}"
        if node.tag == "title" and not any(up.tag in {"head"} or up.focusable for up in node.above()):
            yield f"no keyboard comes to a hover text: {node.words}"
