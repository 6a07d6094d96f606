"""How pages of a site refer to each other: relative addresses, which work from disk wherever the folder lies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Links:
    """Where a page leads as part of a site, by relative addresses: `home`, further pages with their names, and the folder
    of the pages of its runs. All empty: the page stands alone.
    """

    home: str = ""
    pages: tuple[tuple[str, str], ...] = ()
    runs: str = ""


ALONE: Final = Links()
