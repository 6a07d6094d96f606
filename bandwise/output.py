"""How answers look: one JSON document, or lines and plain tables; and the line that shows progress."""

from __future__ import annotations

import codecs
import json
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, TextIO


def print_json(value: Any) -> None:
    """One JSON document on standard output; in ASCII where that has another encoding than UTF-8."""
    unicode = codecs.lookup(sys.stdout.encoding or "utf-8").name == "utf-8"
    print(json.dumps(value, indent=1, ensure_ascii=not unicode, allow_nan=False))


def table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> str:
    """Rows under column names, padded with blanks; numbers to the right."""
    if not rows:
        return "(none)"
    cells = [[_text(row.get(column)) for column in columns] for row in rows]
    numeric = [all(isinstance(row.get(column), int | float) for row in rows) for column in columns]
    widths = [max(len(column), *(len(line[i]) for line in cells)) for i, column in enumerate(columns)]
    lines = [columns, *cells]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, numeric, strict=True)
        ).rstrip()
        for line in lines
    )


def duration(seconds: float) -> str:
    """``42 s``, ``3 min 05 s``, ``2 h 10 min``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def counted(states: Mapping[str, int]) -> str:
    """``12 done, 1 diverged``."""
    return ", ".join(f"{count} {state}" for state, count in states.items()) or "none"


class ProgressLine:
    """Counts and time left: one line that is rewritten on a terminal, a line every `every_s` seconds elsewhere.

    The time left follows from the pace since the first sign of progress: what comes before it, imports and compiling, does not
    come again.
    """

    def __init__(self, label: str, stream: TextIO | None = None, every_s: float = 10.0) -> None:
        self._label = label
        self._stream = sys.stderr if stream is None else stream
        self._live = self._stream.isatty()
        self._every_s = 0.2 if self._live else every_s
        self._started = time.monotonic()
        self._shown = self._started
        self._begun: tuple[float, float] | None = None
        self._width = 0
        self._note = ""

    def runs(self, ended: int, total: int, share: float, states: Mapping[str, int], note: str = "") -> None:
        """Tell how far a sweep is: runs ended, of how many, and the share of the work (0 to 1), for the time left."""
        self._show(f"{ended} of {total} runs ({counted(states)})", share, note)

    def steps(self, done: int, total: int) -> None:
        """Tell how far a single run is."""
        self._show(f"step {done} of {total}", done / total, "")

    def close(self) -> None:
        """Leave the terminal on a fresh line."""
        if self._live and self._width:
            print(file=self._stream, flush=True)
            self._width = 0

    def _show(self, text: str, share: float, note: str) -> None:
        now = time.monotonic()
        if self._begun is None and share > 0:
            self._begun = now, share
        if note == self._note and now - self._shown < self._every_s:
            return
        self._shown, self._note = now, note
        left = ""
        if self._begun is not None and self._begun[1] < share < 1:
            pace = (share - self._begun[1]) / (now - self._begun[0])
            left = f", about {duration((1 - share) / pace)} left"
        self._write(
            "; ".join(filter(None, [f"{self._label}: {text}, {duration(now - self._started)}{left}", note]))
        )

    def _write(self, text: str) -> None:
        if self._live:
            self._stream.write("\r" + text.ljust(self._width))
            self._stream.flush()
            self._width = len(text)
        else:
            print(text, file=self._stream, flush=True)


def _text(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
