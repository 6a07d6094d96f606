"""Leases: one owner a run, taken over only when stale or its owner is dead, by one of those who try; the cache of answers."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from suite.runs import files
from suite.runs.files import StoreError, cache_folder, disk_cached
from suite.runs.store import Lease, lease_holder, release_lease, take_lease
from tests.support import ROOT

A, B = "a", "b"


def age(lease: Lease, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(lease.path, (then, then))


def test_a_live_lease_is_respected_and_a_released_one_is_free(tmp_path: Path) -> None:
    lease = take_lease(tmp_path, A)
    assert lease_holder(tmp_path) == "a"
    assert take_lease(tmp_path, B) is None
    assert lease.heartbeat()
    lease.release()
    assert lease_holder(tmp_path) is None
    assert take_lease(tmp_path, B) is not None


def test_a_stale_lease_passes_on_and_its_owner_notices(tmp_path: Path) -> None:
    old = take_lease(tmp_path, A)
    assert old is not None
    age(old, 5.0)
    assert take_lease(tmp_path, B, stale_after_s=10.0) is None
    new = take_lease(tmp_path, B, stale_after_s=4.0)
    assert new is not None
    assert not old.heartbeat()
    assert not old.held()
    old.release()
    assert new.held()
    assert lease_holder(tmp_path) == "b"


TAKE = "import sys, suite.runs.store as l, pathlib; l.take_lease(pathlib.Path(sys.argv[1]), 'a')"


def test_a_dead_process_holds_nothing_but_on_another_machine_it_cannot_be_told_from_a_live_one(
    tmp_path: Path,
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    subprocess.run([sys.executable, "-c", TAKE, str(here)], cwd=ROOT, check=True)
    (path,) = shutil.copytree(here, there).glob("lease-*.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), "machine": "another"}))
    assert take_lease(there, B) is None
    assert not release_lease(there, B)
    assert release_lease(there, A)
    assert take_lease(there, B) is not None
    assert lease_holder(here) == "a"
    assert take_lease(here, B) is not None


@pytest.mark.parametrize("stale", [False, True])
def test_of_many_takers_one_wins(stale: bool, tmp_path: Path) -> None:
    for round_ in range(30):
        folder = tmp_path / str(round_)
        if stale:
            dead = take_lease(folder, A)
            assert dead is not None
            age(dead, 100.0)
        start = threading.Barrier(8)

        def attempt(number: int, folder: Path = folder, start: threading.Barrier = start) -> Lease | None:
            start.wait()
            return take_lease(folder, str(number), stale_after_s=50.0)

        with ThreadPoolExecutor(8) as takers:
            (won,) = filter(None, takers.map(attempt, range(8)))
        assert won.held()
        assert list(folder.iterdir()) == [won.path]


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot write"):
        take_lease(tmp_path / "file" / "run", A)


# ---- the cache of answers ---------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BANDWISE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_a_question_is_worked_out_once() -> None:
    said = iter(["first", "second", "third"])
    assert disk_cached(["q", 1], lambda: next(said)) == "first"
    assert disk_cached(["q", 1], lambda: next(said)) == "first"
    assert disk_cached(["q", 1.0], lambda: next(said)) == "second", "an option of 1.0 is another than 1"
    (path,) = [p for p in cache_folder().iterdir() if "first" in p.read_text()]
    path.write_text('"fir')
    assert disk_cached(["q", 1], lambda: next(said)) == "third"


def test_other_code_starts_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    assert disk_cached(["q"], lambda: 1) == 1
    monkeypatch.setattr(files, "_code_hash", lambda: "other")
    assert disk_cached(["q"], lambda: 2) == 2


def test_a_folder_that_cannot_be_written_is_no_error(own_folder: Path) -> None:
    own_folder.write_text("a file is in the way")
    assert disk_cached(["q"], lambda: 1) == 1
    assert disk_cached(["q"], lambda: 2) == 2
