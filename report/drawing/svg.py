"""matplotlib figures as SVG text: the same bytes each time, no outside reference, fit to stand inside a page.

As a file an SVG keeps its colours and its own white paper. Inside a page its ids get a prefix (two figures
must not share one), its colours become CSS variables, and its fonts those of the page.
"""

from __future__ import annotations

import io
import re
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


def inline(svg: str, prefix: str, label: str, titles: dict[str, str] | None = None) -> str:
    """The <svg> element for a page. `label` is read to those who cannot see it; `titles` are hover texts by
    group id.
    """
    body = svg[svg.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>\s*", "", body, flags=re.S)
    body = re.sub(r"<!--.*?-->\s*", "", body, flags=re.S)
    body = body.replace("xlink:href", "href")
    for group, title in (titles or {}).items():
        body = body.replace(f'<g id="{group}">', f'<g id="{group}"><title>{_escaped(title)}</title>')
    body = re.sub(r'\bid="([^"]+)"', rf'id="{prefix}-\1"', body)
    body = re.sub(r"url\(#([^)]+)\)", rf"url(#{prefix}-\1)", body)
    body = re.sub(r'href="#([^"]+)"', rf'href="#{prefix}-\1"', body)
    body = _SHADES.sub(lambda found: f"{found[1]}: var(--{_ROLES[found[2]]}, {found[2]})", body)
    body = body.replace(f"font-family: {FONTS}", "font-family: var(--sans, sans-serif)")
    body = re.sub(r"<style[^>]*>.*?</style>\s*", "", body, flags=re.S)
    box = re.search(r'viewBox="([^"]+)"', body)
    view = f'viewBox="{box.group(1)}" ' if box else ""
    return re.sub(
        r"<svg[^>]*>", f'<svg {view}{JOINS} role="img" aria-label="{_escaped(label)}">', body, count=1
    )


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")


def gid(index: int) -> str:
    """Group id of a mark in the SVG."""
    return f"mark{index}"
