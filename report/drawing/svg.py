"""matplotlib figures as SVG text: the same bytes each time, no outside reference, fit to stand inside a page.

As a file an SVG keeps its colours and its own white paper. Inside a page its ids get a prefix (two figures
must not share one), its colours become CSS variables, and its fonts those of the page.
"""

from __future__ import annotations

import io
import re
import zlib
from collections.abc import Callable
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final

import matplotlib as mpl
from matplotlib.backends.backend_svg import RendererSVG
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextToPath

from report.drawing.scales import look
from report.drawing.theme import COLOURS

SALT = "bandwise"
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
    with look(), mpl.rc_context({"svg.hashsalt": SALT, "svg.fonttype": "none"}):
        figure.dpi = 72
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


def _lighter(body: str) -> str:
    """The same picture in fewer nodes and bytes: without such groups, in hundredths of a point, without blanks between tags."""
    kept: list[str] = []
    dropped: list[bool] = []
    for part in re.split(r"(<[^>]*>)", body):
        if part.startswith(("<g ", "<g>")) and not part.endswith("/>"):
            dropped.append(bool(_NAMED.fullmatch(part)))
            if dropped[-1]:
                continue
        elif part == "</g>" and dropped.pop():
            continue
        elif not part.startswith("<"):
            kept.append(part if part.strip() else "")
            continue
        elif _NAMED.fullmatch(part):
            continue
        tag = _LEVEL.sub("", re.sub(r"\s+", " ", part))
        digits = 1 if len(tag) > LONG else 2
        kept.append(tag if "scale(" in tag or "matrix(" in tag else _FINE.sub(_rounded(digits), tag))
    return "".join(kept)


LONG: Final = 300
"""Characters from which on a path is a curve, of which a tenth of a point shows as little as a hundredth of a short line's."""


def _rounded(digits: int) -> Callable[[re.Match[str]], str]:
    return lambda found: f"{float(found[0]):.{digits}f}".rstrip("0").rstrip(".")


def _classed(body: str, prefix: str) -> str:
    """The same with every style, and what cuts it off at the frame, once, as a rule of the picture's own, not at every node."""
    names: dict[str, str] = {}

    def named(found: re.Match[str]) -> str:
        return f' class="{names.setdefault(found[1], f"{prefix}{len(names)}")}"'

    body = re.sub(r' clip-path="([^"]*)"((?:(?! style=)[^>])*) style="', r'\2 style="clip-path: \1; ', body)
    body = re.sub(r' style="([^"]*)"', named, body)
    rules = "".join(f".{name}{{{style}}}" for style, name in names.items())
    return re.sub(r"(<svg[^>]*>)", rf"\1<style>{rules}</style>", body, count=1)


def inline(svg: str, prefix: str, label: str, titles: dict[str, str] | None = None) -> str:
    """The picture for a page: an <svg> inside what scrolls it sideways and lets a keyboard walk its marks.

    Args:
        svg: A file of `svg_file`.
        prefix: Of its ids; a page has each once.
        label: Read to those who cannot see it.
        titles: Hover texts by group id.

    Returns:
        HTML.
    """
    body = svg[svg.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>\s*", "", body, flags=re.S)
    body = re.sub(r"<!--.*?-->\s*", "", body, flags=re.S)
    body = re.sub(r"<style[^>]*>.*?</style>\s*", "", body, flags=re.S)
    body = _lighter(body.replace("xlink:href", "href"))
    for group, title in (titles or {}).items():
        body = body.replace(f'<g id="{group}">', f'<g id="{group}"><title>{_escaped(title)}</title>')
    body = re.sub(r'\bid="([^"]+)"', rf'id="{prefix}-\1"', body)
    body = re.sub(r"url\(#([^)]+)\)", rf"url(#{prefix}-\1)", body)
    body = re.sub(r'href="#([^"]+)"', rf'href="#{prefix}-\1"', body)
    body = _SHADES.sub(lambda found: f"{found[1]}: var(--{_ROLES[found[2]]}, {found[2]})", body)
    body = body.replace(f"font-family: {FONTS}", "font-family: var(--sans, sans-serif)")
    body = _classed(body, f"p{zlib.crc32(prefix.encode()):x}-")
    box = re.search(r'viewBox="([^"]+)"', body)
    view = f'viewBox="{box.group(1)}" ' if box else ""
    name = _escaped(label)
    walked = "Picture, its marks by arrow keys" if titles else "Picture"
    drawn = re.sub(r"<svg[^>]*>", f'<svg {view}{JOINS} role="img" aria-label="{name}">', body, count=1)
    return f'<div class="plot" role="group" tabindex="0" aria-label="{walked}">{drawn.strip()}</div>'


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")


def gid(index: int) -> str:
    """Group id of a mark in the SVG."""
    return f"mark{index}"
