"""matplotlib figures as SVG text: the same bytes each time, no outside reference, fit to stand inside a page.

As a file an SVG keeps its colours and its own white paper. Inside a page its ids get a prefix (two figures
must not share one), its colours become CSS variables, and its fonts those of the page.
"""

from __future__ import annotations

import io
import re

import matplotlib as mpl
from matplotlib.figure import Figure

from report.drawing.scales import look
from report.drawing.theme import COLOURS

SALT = "bandwise"
FONTS = "'DejaVu Sans', Verdana, sans-serif"
"""Verdana is as wide as DejaVu Sans, in which the labels were placed."""

JOINS = 'stroke-linejoin="round" stroke-linecap="butt"'
"""What matplotlib says in a style sheet, which inside a page would reach all of it."""

METADATA = {"Date": None, "Creator": None, "Format": None, "Type": None}


def svg_file(figure: Figure) -> str:
    """The figure as a whole SVG file. Text stays text (svg.fonttype none); ids do not depend on the day."""
    text = io.StringIO()
    with look(), mpl.rc_context({"svg.hashsalt": SALT, "svg.fonttype": "none"}):
        figure.savefig(text, format="svg", metadata=METADATA)
    fonts = text.getvalue().replace("font-family: 'DejaVu Sans'", f"font-family: {FONTS}")
    return re.sub(r"[ \t]+\n", "\n", fonts)


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
    for role, value in COLOURS.items():
        body = re.sub(rf"(fill|stroke): {value}\b", rf"\1: var(--{role}, {value})", body)
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
