"""What tests of the join share: a made-up sweep, and a store without runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from suite.runs.store import Store
from tests.suite.analysis import made_up_session as made


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made.write_sweep(tmp_path_factory.mktemp("sweep"))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)
