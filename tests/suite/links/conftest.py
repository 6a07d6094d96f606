"""What tests of emulated clusters must leave as it was."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.suite.links.tour import children, interfaces
from tests.support import eventually


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """Afterwards every network interface is as before, and no child of this process is left."""
    before, ours = interfaces(), children(os.getpid())
    yield
    assert eventually(lambda: children(os.getpid()) <= ours)
    assert interfaces() == before
