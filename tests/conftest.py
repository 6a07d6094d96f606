"""Settings of every test: one thread, the programs that a marker stands for."""

from __future__ import annotations

import functools
import gc
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

from tests.support import require_compiler, require_system, skip_or_fail, undrawn

# Before torch or numpy is imported, here and in the processes that tests start: small tensors gain nothing
# from threads, and several ranks on two cores lose a lot.
for _variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")

# Until all tests are collected: nothing of what is imported until then is garbage.
gc.disable()

# A test writes where it says itself, never into the results of whoever runs it.
os.environ.pop("BANDWISE_RESULTS", None)


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What verbs keep on disk to be fast stays with the tests; workers that share these share it too."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BANDWISE_CACHE", str(shared / "cache"))
        yield


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--methods",
        metavar="NAME,...",
        help="of tests that go over the table of methods, these methods alone",
    )
    parser.addoption(
        "--minutes",
        type=float,
        metavar="N",
        help="begin no test later than N minutes after the first; frozen files come first, and what was left out is skipped",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Compressors run as plain torch in the fast tier: compiling takes longer than all it tests, but for tests marked
    ``compiled``."""
    if "not full" in config.getoption("markexpr"):
        os.environ.setdefault("BANDWISE_COMPILE", "0")


@pytest.fixture(autouse=True)
def _compiled(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A test marked ``compiled`` is about compiled code, and needs a compiler."""
    if request.node.get_closest_marker("compiled") is not None:
        require_compiler()
        monkeypatch.delenv("BANDWISE_COMPILE", raising=False)


@pytest.fixture(autouse=True)
def _own_environment() -> Iterator[None]:
    """Variables that a test has set (plugin files that it loaded, a rank's place in a launch) are not those of later tests."""
    before = dict(os.environ)
    yield
    for name in os.environ.keys() - before.keys():
        del os.environ[name]
    os.environ.update(before)


@pytest.fixture
def no_pictures() -> Iterator[None]:
    """What the test builds has none."""
    with undrawn():
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


@pytest.fixture(scope="session")
def possible() -> None:
    """Skip (with ``CI=true``: fail) where no emulated cluster can be made, and say why."""
    from suite.links import doctor

    require_system("ip", "tc", "nsenter")
    finding = doctor.obstacle()
    if finding is not None:
        skip_or_fail(f"{finding.name}: {finding.detail}. {finding.fix}")


NAMED = re.compile(r"mark\.(slurm|chromium)|possible")
"""What `make test-system` looks for in files of tests."""


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark what needs more of the system than Python."""
    needs = set(PROGRAMS) & {mark.name for mark in item.iter_markers()}
    if needs or "possible" in getattr(item, "fixturenames", ()):  # that fixture looks for namespaces
        item.add_marker("system")
        if not NAMED.search(item.path.read_text()):
            raise pytest.UsageError(
                f"`make test-system` does not find {item.nodeid}: its file names no marker of it"
            )


ROOT = Path(__file__).parents[1]
FALLS = "Slurm where something falls"
WAITS = {
    "tests/slurm/test_survival": FALLS,
    "tests/slurm/": "Slurm",
    "tests/suite/links/": "links",
    "tests/suite/timing/": "timing",
}
"""Tests that mostly wait for others: daemons, links, deadlines. Every cluster of Slurm has ports and sockets of its own."""


COMPILES = "tests of what is compiled"
TRAINED = "golden and conformance"
SHARES = {
    "tests/report/": "tests/report",
    "tests/golden/": TRAINED,
    "tests/reference_impls/test_conformance.py": TRAINED,
    "tests/suite/workloads/": "tests/suite/workloads",
    "tests/reference_impls/compressors/test_compiled.py": COMPILES,
    "tests/reference_impls/test_gpu_code.py": COMPILES,
    "tests/reference_impls/test_compile_cache.py": COMPILES,
    "tests/reference_impls/test_steady_memory.py": COMPILES,
}
"""Files of which the first one makes what the others find again: pages, trajectories, samples, corpora, the compiler."""


REAL = "tests on processes of their own"
"""Two workers that start several processes each keep these waiting for a core, and so for each other: twice the time of one."""


@functools.cache
def _together(file: str) -> str:
    """Files of one name of `WAITS` or `SHARES`, and `REAL` ones, are one worker's; of the rest a file is."""
    for start, group in (WAITS | SHARES).items():
        if file.startswith(start):
            return group
    return REAL if "pytest.mark.gloo" in (ROOT / file).read_text() else file


def _file(nodeid: str) -> str:
    return nodeid.partition("::")[0]


def _method(item: pytest.Item) -> str:
    """The method whose row of the table a test is given; empty where it is given none."""
    row = getattr(item, "callspec", None) and item.callspec.params.get("row")
    return str(getattr(row, "algorithm", ""))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out rows of other methods than asked for; where workers share the tests, those that wait begin, then long ones."""
    if chosen := config.getoption("--methods"):
        others = [item for item in items if _method(item) not in ("", *chosen.split(","))]
        items[:] = [item for item in items if item not in others]
        config.hook.pytest_deselected(items=others)
    if hasattr(config, "workerinput"):
        first = [*dict.fromkeys(WAITS.values())]
        long = {REAL, *SHARES.values()}

        def turn(item: pytest.Item) -> int:
            of = _together(_file(item.nodeid))
            if config.getoption("--minutes") is not None and ("golden" in of or "conformance" in of):
                return -1
            return first.index(of) if of in first else len(first) + (of not in long)

        items.sort(key=turn)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Modules and tests live as long as the process: the garbage collector need not go over them again and again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 100)
    gc.enable()
    session.config.stash[_BEGUN] = time.monotonic()


_BEGUN = pytest.StashKey[float]()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Leave out what would begin after `--minutes`."""
    minutes = item.config.getoption("--minutes")
    if minutes is not None and time.monotonic() - item.config.stash[_BEGUN] > 60 * minutes:
        pytest.skip(f"not begun within {minutes:g} minutes")


@pytest.fixture(autouse=True, scope="module")
def _what_stays_is_no_garbage() -> Iterator[None]:
    """So do caches that a file of tests has filled, of fonts, plans and tables; every training here ends with a collection."""
    yield
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    """Who gets which tests: pytest-xdist 3.8 cannot mark groups under this version of pytest."""

    class Together(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return _together(_file(nodeid))

    return Together(config, log)
