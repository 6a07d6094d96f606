"""What tests of emulated clusters need: a place that must be empty afterwards."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from suite.links.cluster import down
from tests.suite.links.tour import interfaces


@pytest.fixture
def state_dir() -> Iterator[Path]:
    """Where a cluster may live; it must be gone afterwards, and every network interface as before."""
    before = interfaces()
    path = Path(tempfile.mkdtemp(prefix="bandwise-test-")) / "cluster"
    yield path
    left = path.exists()
    try:
        down(path)
    finally:
        shutil.rmtree(path.parent)
    assert not left
    assert interfaces() == before
