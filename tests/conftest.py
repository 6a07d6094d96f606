"""Settings of every test: one thread, the programs that a marker stands for."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

from tests.support import require_system

# Before torch or numpy is imported, here and in the processes that tests start: small tensors gain nothing
# from threads, and several ranks on two cores lose a lot.
for _variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")

# A test writes where it says itself, never into the results of whoever runs it.
os.environ.pop("BANDWISE_RESULTS", None)


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What verbs keep on disk to be fast stays with the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BANDWISE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


PROGRAMS = {
    "slurm": ("slurmctld", "slurmd", "munged", "sbatch"),
    "chromium": ("chromium|chromium-browser|google-chrome",),
}


@pytest.fixture(autouse=True)
def _programs_of_markers(request: pytest.FixtureRequest) -> None:
    """A test marked ``slurm`` or ``chromium`` needs the programs of that name."""
    for marker, programs in PROGRAMS.items():
        if request.node.get_closest_marker(marker) is not None:
            require_system(*programs)


WAITS = ("tests/slurm", "tests/suite/links", "tests/suite/timing")
"""Tests that mostly wait for others: daemons, links, deadlines."""


def _together(nodeid: str) -> str:
    """A folder of `WAITS` is one worker's; of the rest a file is."""
    file = nodeid.partition("::")[0]
    return next((folder for folder in WAITS if file.startswith(f"{folder}/")), file)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Where workers share the tests (`pytest -n`), those that wait begin first."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: WAITS.index(t) if (t := _together(item.nodeid)) in WAITS else len(WAITS))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    """Who gets which tests: pytest-xdist 3.8 cannot mark groups under this version of pytest."""

    class Together(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return _together(nodeid)

    return Together(config, log)
