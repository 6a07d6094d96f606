"""kill -9 at any write, rename, flush or removal leaves a store that can be read and gone on with.

A process that has imported everything forks for every point at which it could die; the child dies there, by the k-th call of
an os function, as by SIGKILL (no handler, no cleanup). At a flush the file is torn in half first. The parent then reads all.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
DRIVER = """
import json, os, shutil, sys
from pathlib import Path
from tests.suite.runs.test_kill import SCENES, die_at, through_a_kill

os.fsync = lambda descriptor: None  # processes end here, no machine does: what was written is there

def points_of(prepare, act, check, folder):
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
        assert code in (0, -9), code
        check(root, code == 0)
        act(root)
        check(root, True)
        left = [str(p) for p in root.rglob("*.tmp")]
        shutil.rmtree(root)
        points += code != 0
        if code == 0:
            assert left == [], left
            return points

through_a_kill(Path(sys.argv[1], "training"))
for scene, parts in SCENES.items():
    print("scene:", scene, file=sys.stderr, flush=True)
    print(json.dumps({scene: points_of(*parts(), Path(sys.argv[1], scene))}), flush=True)
"""


def die_at(k: int) -> None:
    """From now on this process dies by SIGKILL at the k-th call that changes what is on disk."""
    import signal
    from typing import Any

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


def _begin():  # a run that had failed is begun again
    from suite.runs.store import Store
    from tests.suite.runs.project import ended, one_spec

    spec = one_spec()

    def prepare(root):
        Store(root).begin(spec)
        ended(spec, "error", "step 2: out of luck").save(Store(root))

    def act(root):
        Store(root).begin(spec)

    def check(root, whole):
        state = Store(root).status(spec.run_id).state
        assert state == "running" if whole else state in {"error", "running", "missing"}, state
        assert Store(root).refused() == []
        assert Store(root).spec(spec.run_id) == spec

    return prepare, act, check


def _finish():
    from suite.runs.store import Store
    from tests.suite.runs.project import ended, one_spec

    spec = one_spec()
    outcome = ended(spec)

    def act(root):
        outcome.save(Store(root))

    def check(root, whole):
        store = Store(root)
        status, result = store.state(spec.run_id)
        assert status.state == "done" if whole else status.state in {"missing", "running", "done"}, status
        assert result in ((outcome.result,) if status.state == "done" else (None,))
        if status.state == "done":
            assert store.metrics(spec.run_id) == list(outcome.metrics), "the result is written last"

    return (lambda root: Store(root).begin(spec)), act, check


def _checkpoint():
    import torch

    from suite.runs.store import Store
    from suite.training import checkpoint as files
    from suite.training.checkpoint import Checkpoint
    from tests.suite.runs.project import one_spec

    spec = one_spec()

    def save(root, step):
        state = {"weights": torch.full((3,), float(step))}
        files.write(
            files.whole_path(Store(root).folder(spec.run_id)),
            Checkpoint(spec.run_id, "source", step, 1.0, {}, [], state),
        )
        Store(root).saved(spec.run_id, step)

    def prepare(root):
        Store(root).begin(spec)
        save(root, 2)

    def check(root, whole):
        found = files.read(files.whole_path(Store(root).folder(spec.run_id)), spec, "source")
        assert found.step == 4 if whole else found.step in (2, 4), found.step
        assert found.state["weights"].tolist() == [float(found.step)] * 3
        assert Store(root).status(spec.run_id).state == "running"

    return prepare, (lambda root: save(root, 4)), check


def _ranks():
    import torch

    from suite.runs.store import Store
    from suite.training import checkpoint as files
    from suite.training.checkpoint import Checkpoint
    from tests.suite.runs.project import one_spec

    spec = one_spec()

    def save(root, step):
        folder = Store(root).folder(spec.run_id)
        for rank in range(spec.world_size):
            state = {"weights": torch.full((3,), float(step + rank))}
            part = Checkpoint(spec.run_id, "source", step, 1.0, {}, [], state)
            files.write(files.rank_path(folder, step, rank), part)
        files.publish(folder, spec, "source", step)

    def prepare(root):
        Store(root).begin(spec)
        save(root, 2)

    def check(root, whole):
        folder = Store(root).folder(spec.run_id)
        step = files.published(folder, spec, "source")
        assert step == 4 if whole else step in (2, 4), step
        for rank in range(spec.world_size):
            found = files.read(files.rank_path(folder, step, rank), spec, "source")
            assert found.state["weights"].tolist() == [float(step + rank)] * 3

    return prepare, (lambda root: save(root, 4)), check


def through_a_kill(root):
    """A group of runs that is killed in the middle of a step goes on to the bits of one that was not."""
    import signal

    import torch

    from suite.runs.store import Store
    from suite.training import train
    from suite.training.execute import execute
    from tests.suite.runs.project import kept, one_spec

    torch.set_num_threads(1)
    specs = [one_spec("local-sgd", {"period": 3}, steps=8, seed=seed) for seed in range(2)]
    store, whole = Store(root / "killed"), Store(root / "whole")
    list(execute(specs, whole))
    child = os.fork()
    if child == 0:
        steps, observe = iter(range(10)), train.SimulatedCluster.observe

        def die(*given, **named):
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
        [sys.executable, "-c", textwrap.dedent(DRIVER), str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    points = {scene: k for line in done.stdout.splitlines() for scene, k in json.loads(line).items()}
    assert points.keys() == SCENES.keys()
    assert min(points.values()) >= 2, points
