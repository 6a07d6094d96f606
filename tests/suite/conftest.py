"""Settings of all tests of the suite."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def _eager() -> Iterator[None]:
    """Compilation takes longer than these tests; compiled and eager code have the same bits."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BANDWISE_COMPILE", "0")
        yield
