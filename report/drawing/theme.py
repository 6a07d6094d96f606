"""One look for figures and page: a colour and a mark for each family, told apart without colour vision too.

Most colours are those of seaborn's "colorblind" palette, darkened where text in them has to be read on white; that of
sparsifiers and of variance reduction lie farthest from all others, as the three kinds of colour blindness see them.
Figures are drawn in these; on the page each becomes a CSS variable of the same name, so that dark mode can
replace it.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

FAMILIES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "baseline": "uncompressed",
        "sign": "sign",
        "quantiser": "quantiser",
        "sparsifier": "sparsifier",
        "adam": "compressed Adam",
        "synchronisation": "fewer synchronisations",
        "variance-reduction": "variance reduction",
        "control": "negative control",
    }
)
"""Family name -> the words for it, in the order in which they are listed."""
COLOURS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "baseline": "#23262b",
        "sign": "#0173b2",
        "quantiser": "#0a7d5c",
        "sparsifier": "#8a2a1f",
        "adam": "#c04f00",
        "synchronisation": "#a24a92",
        "variance-reduction": "#5b1391",
        "control": "#6d7075",
        "ink": "#24272c",
        "muted": "#63676e",
        "rule": "#dcdee1",
        "band": "#dfeedd",
        "compute": "#b4b8be",
        "encode": "#8fbce0",
        "exposed": "#cf4257",
        "decode": "#3f7cb0",
        "update": "#7d828b",
        "paper": "#fefefd",
    }
)
"""Role -> colour on white."""
MARKS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "baseline": "s",
        "sign": "o",
        "quantiser": "^",
        "sparsifier": "v",
        "adam": "D",
        "synchronisation": "P",
        "variance-reduction": "*",
        "control": "X",
    }
)
"""Family -> matplotlib marker."""
SHAPES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "baseline": "M-4 -4H4V4H-4Z",
        "sign": "M-4.5 0A4.5 4.5 0 1 1 4.5 0A4.5 4.5 0 1 1-4.5 0Z",
        "quantiser": "M0 -4.8L4.8 4.2H-4.8Z",
        "sparsifier": "M0 4.8L-4.8 -4.2H4.8Z",
        "adam": "M0 -5.2L5.2 0L0 5.2L-5.2 0Z",
        "synchronisation": "M-1.7 -5H1.7V-1.7H5V1.7H1.7V5H-1.7V1.7H-5V-1.7H-1.7Z",
        "variance-reduction": "M0 -5.6L1.4 -1.9L5.3 -1.7L2.2 0.7L3.3 4.5L0 2.3L-3.3 4.5L-2.2 0.7L-5.3 -1.7L-1.4 -1.9Z",
        "control": "M-3.6 -5L0 -1.4L3.6 -5L5 -3.6L1.4 0L5 3.6L3.6 5L0 1.4L-3.6 5L-5 3.6L-1.4 0L-5 -3.6Z",
    }
)
"""Family -> the same mark as an SVG path within -6 to 6."""


def colour(family: str) -> str:
    """Colour of a family; a family nobody has drawn before gets the ink."""
    return COLOURS.get(family, COLOURS["ink"])


def mark(family: str) -> str:
    """Marker of a family."""
    return MARKS.get(family, "h")
