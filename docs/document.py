"""Tables inside documents: what stands between two markers is made from CSV files and nothing else.

A block begins with ``<!-- table: NAME ... -->`` and ends with ``<!-- end of table -->``. NAME is a key of the document's blocks;
further words are its arguments, for instance the name of a session.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

Blocks = Mapping[str, Callable[..., str]]
"""Name -> what makes the block, from the results folder and the block's arguments."""

_BLOCK: Final = re.compile(r"(<!-- table: (.+?) -->\n)(.*?)(<!-- end of table -->)", re.DOTALL)


def fill(text: str, results_root: Path, blocks: Blocks) -> str:
    """The document with its blocks made anew."""

    def block(match: re.Match[str]) -> str:
        name, *arguments = match[2].split()
        return f"{match[1]}{blocks[name](results_root, *arguments)}\n{match[4]}"

    return _BLOCK.sub(block, text)


def markdown(heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A table."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(
        "| " + " | ".join("" if cell is None else str(cell) for cell in line) + " |" for line in lines
    )
