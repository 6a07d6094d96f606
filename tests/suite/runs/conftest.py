"""Settings of the tests of runs."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compilation takes longer than these tests; compiled and eager code have the same bits."""
    monkeypatch.setenv("BANDWISE_COMPILE", "0")
