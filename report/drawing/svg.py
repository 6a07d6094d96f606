"""matplotlib figures as SVG text: the same bytes each time, no outside reference, fit to stand inside a page.

As a file an SVG keeps its colours and its own white paper. Inside a page its ids get a prefix (two figures
must not share one), its colours become CSS variables, and its fonts those of the page.
"""

from __future__ import annotations

import io
import re
import zlib
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final

from matplotlib.backends.backend_svg import RendererSVG
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextToPath

from report.drawing.scales import look
from report.drawing.theme import COLOURS
from report.rendering import STYLE

FONTS = "'DejaVu Sans', Verdana, sans-serif"
"""Verdana is as wide as DejaVu Sans, in which the labels were placed."""

JOINS = 'stroke-linejoin="round" stroke-linecap="butt"'
"""What matplotlib says in a style sheet, which inside a page would reach all of it."""

_ROLES: Final = MappingProxyType({value: role for role, value in COLOURS.items()})
_SHADES: Final = re.compile(rf"(fill|stroke): ({'|'.join(_ROLES)})\b")
METADATA = {"Date": None, "Creator": None, "Format": None, "Type": None}


_text_to_path: Final = TextToPath()


@lru_cache(maxsize=1 << 14)
def _text_size(text: str, font: FontProperties, ismath: bool) -> tuple[float, float, float]:
    """Width, height and descent in points: the same in every figure, so each text is measured once a process."""
    found: tuple[float, float, float] = _text_to_path.get_text_width_height_descent(text, font, ismath)
    return found


class _Renderer(RendererSVG):
    """matplotlib's, which measures every text anew for every figure, with the sizes of `_text_size`."""

    def get_text_width_height_descent(
        self, s: str, prop: FontProperties, ismath: Any
    ) -> tuple[float, float, float]:
        return _text_size(s, prop.copy(), ismath)  # a copy: fonts can be changed, keys must not


def svg_file(figure: Figure) -> str:
    """The figure as a whole SVG file. Text stays text (svg.fonttype none); ids do not depend on the day."""
    text, dpi = io.StringIO(), figure.dpi
    with look():
        figure.dpi = 72
        for axis in (
            axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis) if not axis.get_label_text()
        ):
            axis.set_label_coords(0, 0)  # a label that says nothing needs no place beside the ticks
        width, height = figure.get_size_inches() * 72
        drawing = _Renderer(width, height, text, metadata=METADATA)  # type: ignore[no-untyped-call]
        figure.draw(drawing)
        drawing.finalize()  # type: ignore[no-untyped-call]
        figure.dpi = dpi
    lines = text.getvalue().replace("font-family: 'DejaVu Sans'", f"font-family: {FONTS}").split("\n")
    return "\n".join(line.rstrip(" \t") for line in lines)


_NAMED: Final = re.compile(r'<g id="[\w.]+_\d+"/?>')
"""A group that has nothing but one of matplotlib's own names, to which nothing refers."""
_FINE: Final = re.compile(r"-?\d+\.\d{3,}")
_LEVEL: Final = re.compile(r' transform="rotate\(-?0 [^)]*\)"')
_REFERENCE: Final = re.compile(r'(url\(#|href="#)([^")]+)')
_COMMAND: Final = re.compile(r" ?([A-Za-z]) ?")


def _lighter(body: str) -> str:
    """The same picture in fewer nodes and bytes: without such groups, neighbours that are cut off alike in one group, in
    hundredths of a point, without blanks that nothing needs.
    """
    kept: list[str] = []
    opened: list[str] = []  # the tag of each group that is open; empty where it is dropped
    ended = ""  # the tag of the group that ends with what was kept last
    for part in re.split(r"(<[^>]*>)", body):
        if not part.startswith("<"):
            if part.strip():
                kept.append(part)
                ended = ""
            continue
        if part == "</g>":
            ended = opened.pop()
            if ended:
                kept.append(part)
            continue
        if _NAMED.fullmatch(part):
            if not part.endswith("/>"):
                opened.append("")
            continue
        if part.startswith(("<g ", "<g>")) and not part.endswith("/>"):
            opened.append(part)
            if part == ended and part.startswith("<g clip-path="):
                kept.pop()  # one group, as if it had not ended
                ended = ""
                continue
        ended = ""
        kept.append(_tidy(part))
    return "".join(kept)


def _tidy(tag: str) -> str:
    tag = _LEVEL.sub("", re.sub(r"\s+", " ", tag)).replace(" />", "/>")
    if "scale(" in tag or "matrix(" in tag:
        return tag
    coarse = len(tag) > LONG or tag.startswith(("<text", "<use"))
    tag = _FINE.sub(_tenth if coarse else _hundredth, tag)
    before, start, rest = tag.partition(' d="')
    path, end, after = rest.partition('"')
    return f"{before}{start}{_short_path(path)}{end}{after}" if start else tag


LONG: Final = 120
"""Characters from which on a path is a curve, of which a tenth of a point shows as little as a hundredth of a short line's."""


def _tenth(found: re.Match[str]) -> str:
    return f"{float(found[0]):.1f}".rstrip("0").rstrip(".")


def _hundredth(found: re.Match[str]) -> str:
    return f"{float(found[0]):.2f}".rstrip("0").rstrip(".")


def _letter(found: re.Match[str]) -> str:
    return found[1]


_STEP: Final = re.compile(r"[A-Za-z][^A-Za-z]*")


def _short_path(path: str) -> str:
    """The same line with no blank about its commands, and one number for what goes straight across or up."""
    x = y = ""
    kept: list[str] = []
    for step in _STEP.findall(_COMMAND.sub(_letter, path).strip()):
        command, rest = step[0], step[1:]
        if command == "L":
            across, _, up = rest.partition(" ")
            step = f"V{up}" if across == x else f"H{across}" if up == y else step
            x, y = across, up
        elif command in "zZ":
            x = y = ""
        else:
            x, y = rest.split(" ")[-2:]
        kept.append(step)
    return "".join(kept).replace(" -", "-")


def _named(body: str, prefix: str) -> str:
    """The same with ids of this picture alone, short ones where something refers to them, and none for what has a title."""
    names: dict[str, str] = {}
    for _, name in _REFERENCE.findall(body):
        names.setdefault(name, f"{prefix}-{len(names)}")
    body = _REFERENCE.sub(lambda found: f"{found[1]}{names[found[2]]}", body)
    body = re.sub(r' id="[^"]+">(?=<title>)', ">", body)
    return re.sub(
        r' id="([^"]+)"', lambda found: f' id="{names.get(found[1], f"{prefix}-{found[1]}")}"', body
    )


def _classed(body: str) -> tuple[str, str]:
    """The same with every style once, as a rule with a name that follows from it, so that pictures of a page share their rules;
    and what the <svg> then says of itself: where its parts are cut off, which is its own.
    """
    names: dict[str, str] = {}
    cuts: dict[str, str] = {}

    def named(found: re.Match[str]) -> str:
        return f' class="{names.setdefault(found[1], f"{STYLE}{zlib.crc32(found[1].encode()):08x}")}"'

    def alike(found: re.Match[str]) -> str:
        """A group of marks of one class, which then stands once, at the group; but what shines through does so mark by mark."""
        marks = set(re.findall(r' class="([^"]*)"', found[2]))
        style = next((style for style, name in names.items() if marks == {name}), "; opacity:")
        if re.search(r"(^|; )opacity:", style):
            return found[0]
        own = marks.pop()
        return f'<g class="{found[1]} {own}">' + found[2].replace(f' class="{own}"', "") + "</g>"

    def joined(found: re.Match[str]) -> str:
        """Neighbours that look alike as one path; but what shines through would shine less where they lie on each other."""
        style = next(style for style, name in names.items() if name == found[1])
        if re.search("opacity|dash", style):
            return found[0]
        paths = "".join(re.findall(r' d="([^"]*)"', found[0]))
        return f'<path d="{paths}" class="{found[1]}"/>'

    def cut(found: re.Match[str]) -> str:
        return f' clip-path="var({cuts.setdefault(found[1], f"--c{len(cuts)}")})"'

    body = re.sub(r' clip-path="([^"]*)"', cut, body)
    body = re.sub(r' clip-path="([^"]*)"((?:(?! style=)[^>])*) style="', r'\2 style="clip-path: \1; ', body)
    body = re.sub(r' clip-path="([^"]*)"', r' style="clip-path: \1"', body)
    body = re.sub(r' style="([^"]*)"', named, body)
    body = re.sub(rf'<g class="({STYLE}\w+)">((?:<use [^>]*/>){{2,}})</g>', alike, body)
    body = re.sub(rf'<path d="[^"]*" class="({STYLE}\w+)"/>(?:<path d="[^"]*" class="\1"/>)+', joined, body)
    rules = "".join(
        f".{name}{{{style.replace('; ', ';').replace(': ', ':')}}}" for style, name in names.items()
    )
    body = re.sub(r"(<svg[^>]*>)", lambda found: f"{found[1]}<style>{rules}</style>", body, count=1)
    return body, ";".join(f"{name}:{place}" for place, name in cuts.items())


def inline(svg: str, prefix: str, label: str, titles: Mapping[str, str] = MappingProxyType({})) -> str:
    """The picture for a page: an <svg> inside what scrolls it sideways and lets a keyboard walk its marks.

    Args:
        svg: A file of `svg_file`.
        prefix: A name that no other picture of the page has.
        label: Read to those who cannot see it.
        titles: Hover texts by group id.

    Returns:
        HTML, with rules that `report.rendering.styled_once` brings together for all pictures of a page.
    """
    own = f"p{zlib.crc32(prefix.encode()):x}"
    body = svg[svg.index("<svg") :]
    box = re.search(r'viewBox="([^"]+)"', body)
    body = re.sub(
        r"<metadata>.*?</metadata>\s*|<!--.*?-->\s*|<style[^>]*>.*?</style>\s*", "", body, flags=re.S
    )
    body = _lighter(body.replace("xlink:href", "href"))
    body = re.sub(r'<g id="([^"]+)">', lambda found: found[0] + _title(titles.get(found[1])), body)
    body = _SHADES.sub(lambda found: f"{found[1]}: var(--{_ROLES[found[2]]})", body)
    body = body.replace(f"font-family: {FONTS}", "font-family: var(--sans)")
    body, cuts = _classed(_named(body, own))
    view = f'viewBox="{box.group(1)}" ' if box else ""
    name = _escaped(label)
    walked = "Picture, its marks by arrow keys" if titles else "Picture"
    style = f' style="{cuts}"' if cuts else ""
    head = f'<svg {view}{JOINS} role="img" aria-label="{name}"{style}>'
    drawn = re.sub(r"<svg[^>]*>", lambda _: head, body, count=1)
    return f'<div class="plot" role="group" tabindex="0" aria-label="{walked}">{drawn.strip()}</div>'


def _title(text: str | None) -> str:
    return f"<title>{_escaped(text)}</title>" if text else ""


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")


def gid(index: int) -> str:
    """Group id of a mark in the SVG."""
    return f"mark{index}"
