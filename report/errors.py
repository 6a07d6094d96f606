"""What goes wrong while a page is built."""

from __future__ import annotations


class ReportError(RuntimeError):
    """A page cannot be built; the message says what to do."""
