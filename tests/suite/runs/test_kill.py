"""kill -9 at any write, rename, flush or removal leaves a store that can be read and gone on with.

A process that has imported everything forks for every point at which it could die; the child dies there, by the k-th call of
an os function, as by SIGKILL (no handler, no cleanup). At a flush the file is torn in half first. The parent then reads all.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from suite.runs.store import Store
from suite.training import checkpoint as files
from suite.training import train
from suite.training.checkpoint import Checkpoint
from suite.training.execute import execute
from tests.suite.runs.project import ended, kept, one_spec
from tests.support import ROOT

SPEC = one_spec()
Act = Callable[[Path], None]
Check = Callable[[Path, bool], None]
Scene = tuple[Act, Act, Check]
"""What is there before, what a kill meets, and what holds after it, where that was done whole or not."""


def main(folder: Path) -> None:
    """Play all scenes, and say how many points at which to die each has."""
    os.fsync = lambda descriptor: None  # processes end here, no machine does: what was written is there
    through_a_kill(folder / "training")
    for name, made in SCENES.items():
        sys.stderr.write(f"scene: {name}\n")
        sys.stdout.write(json.dumps({name: points_of(*made(), folder / name)}) + "\n")
        sys.stdout.flush()  # or every child would write it too


def points_of(prepare: Act, act: Act, check: Check, folder: Path) -> int:
    prepare(folder / "before")
    points = 0
    for k in range(1, 1000):
        root = folder / str(k)
        shutil.copytree(folder / "before", root)
        child = os.fork()
        if child == 0:
            die_at(k)
            try:
                act(root)
            finally:
                os._exit(0 if sys.exc_info()[0] is None else 1)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert code in (0, -signal.SIGKILL), code
        check(root, code == 0)
        act(root)
        check(root, True)
        left = [str(p) for p in root.rglob("*.tmp")]
        shutil.rmtree(root)
        points += code != 0
        if code == 0:
            assert left == [], left
            return points
    raise AssertionError("it never ends")


def die_at(k: int) -> None:
    """From now on this process dies by SIGKILL at the k-th call that changes what is on disk."""
    calls = 0

    def fatal(name: str) -> None:
        true = getattr(os, name)

        def call(*given: Any, **named: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == k:
                if name == "fsync":
                    os.ftruncate(given[0], os.fstat(given[0]).st_size // 2)
                os.kill(os.getpid(), signal.SIGKILL)
            return true(*given, **named)

        setattr(os, name, call)

    for name in ("fsync", "replace", "rename", "unlink", "mkdir", "utime"):
        fatal(name)


def _begin() -> Scene:
    """A run that had failed is begun again."""

    def prepare(root: Path) -> None:
        Store(root).begin(SPEC)
        ended(SPEC, "error", "step 2: out of luck").save(Store(root))

    def check(root: Path, whole: bool) -> None:
        state = Store(root).status(SPEC.run_id).state
        assert state == "running" if whole else state in {"error", "running", "missing"}, state
        assert Store(root).refused() == []
        assert Store(root).spec(SPEC.run_id) == SPEC

    return prepare, begin, check


def _finish() -> Scene:
    outcome = ended(SPEC)

    def check(root: Path, whole: bool) -> None:
        store = Store(root)
        status, result = store.state(SPEC.run_id)
        assert status.state == "done" if whole else status.state in {"missing", "running", "done"}, status
        assert result in ((outcome.result,) if status.state == "done" else (None,))
        if status.state == "done":
            assert store.metrics(SPEC.run_id) == list(outcome.metrics), "the result is written last"

    return begin, (lambda root: outcome.save(Store(root))), check


def begin(root: Path) -> None:
    Store(root).begin(SPEC)


def write(path: Path, step: int, weight: float) -> None:
    state = {"weights": torch.full((3,), weight)}
    files.write(path, Checkpoint(SPEC.run_id, "source", step, 1.0, {}, [], state))


def of_checkpoints(save: Callable[[Path, int], None], check: Check) -> Scene:
    """The checkpoint at step 4 is written where that at step 2 is."""

    def prepare(root: Path) -> None:
        begin(root)
        save(root, 2)

    return prepare, (lambda root: save(root, 4)), check


def _checkpoint() -> Scene:
    def save(root: Path, step: int) -> None:
        write(files.whole_path(Store(root).folder(SPEC.run_id)), step, float(step))
        Store(root).saved(SPEC.run_id, step)

    def check(root: Path, whole: bool) -> None:
        found = files.read(files.whole_path(Store(root).folder(SPEC.run_id)), SPEC, "source")
        assert found.step == 4 if whole else found.step in (2, 4), found.step
        assert found.state["weights"].tolist() == [float(found.step)] * 3
        assert Store(root).status(SPEC.run_id).state == "running"

    return of_checkpoints(save, check)


def _ranks() -> Scene:
    def save(root: Path, step: int) -> None:
        folder = Store(root).folder(SPEC.run_id)
        for rank in range(SPEC.world_size):
            write(files.rank_path(folder, step, rank), step, float(step + rank))
        files.publish(folder, SPEC, "source", step)

    def check(root: Path, whole: bool) -> None:
        folder = Store(root).folder(SPEC.run_id)
        step = files.published(folder, SPEC, "source")
        assert step == 4 if whole else step in (2, 4), step
        for rank in range(SPEC.world_size):
            found = files.read(files.rank_path(folder, step, rank), SPEC, "source")
            assert found.state["weights"].tolist() == [float(step + rank)] * 3

    return of_checkpoints(save, check)


def through_a_kill(root: Path) -> None:
    """A group of runs that is killed in the middle of a step goes on to the bits of one that was not."""
    torch.set_num_threads(1)
    specs = [one_spec("local-sgd", {"period": 3}, steps=8, seed=seed) for seed in range(2)]
    store, whole = Store(root / "killed"), Store(root / "whole")
    list(execute(specs, whole))
    child = os.fork()
    if child == 0:
        steps, observe = iter(range(10)), train.SimulatedCluster.observe

        def die(*given: Any, **named: Any) -> Any:
            if next(steps, None) is None:
                os.kill(os.getpid(), signal.SIGKILL)
            return observe(*given, **named)

        train.SimulatedCluster.observe = die
        list(execute(specs, store, checkpoint_s=0.0))
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert {store.status(spec.run_id).state for spec in specs} == {"running"}
    assert [store.note(spec.run_id).step > 0 for spec in specs] == [True, True]
    assert len(list(execute(specs, store))) == len(specs)
    for spec in specs:
        assert kept(store, spec.run_id) == kept(whole, spec.run_id)
        assert not [path.name for path in store.folder(spec.run_id).iterdir() if "checkpoint" in path.name]


SCENES = {"begin again": _begin, "finish": _finish, "checkpoint": _checkpoint, "checkpoint of ranks": _ranks}


def test_a_kill_at_any_point_leaves_a_store_that_can_be_read(tmp_path: Path) -> None:
    """All scenes in one process, whose imports take longer than most of them."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.suite.runs.test_kill", str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    points = {scene: k for line in done.stdout.splitlines() for scene, k in json.loads(line).items()}
    assert points.keys() == SCENES.keys()
    assert min(points.values()) >= 2, points


if __name__ == "__main__":
    main(Path(sys.argv[1]))
