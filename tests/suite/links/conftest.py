"""What tests of emulated clusters need: a machine that can make one, and a place that must be empty afterwards."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from suite.links import doctor
from suite.links.cluster import down
from tests.suite.links.tour import interfaces
from tests.support import require_system, skip_or_fail


@pytest.fixture(scope="module")
def possible() -> None:
    """Skip (with ``CI=true``: fail) where no cluster can be made, and say why."""
    require_system("ip", "tc", "nsenter")
    finding = doctor.obstacle()
    if finding is not None:
        skip_or_fail(f"{finding.name}: {finding.detail}. {finding.fix}")


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
