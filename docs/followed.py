"""How many files a reader opens to follow one thing, counted while it happens: `python -m docs.followed`.

A file counts where one of its functions runs, unless a module is just being imported. Two things are followed: a method from its
constructor to the wire (three steps on a group of one); and one run, with that of its baseline, from their YAML file to a dot:
`bandwise sweep FILE` with the process that trains, its tables, `bandwise.load(NAME)`, and the accuracy figure of a page
(`report.accuracy.seeds`) on these frames. Not followed is what a whole page has besides: sessions, claims, words on equality.
Files of the methods are those of the first, and not counted again. `docs/architecture.md` has what this prints.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import FrameType
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
PACKAGES: Final = ("bandwise", "reference_impls", "report", "slurm", "suite")
METHODS: Final[tuple[tuple[str, dict[str, Any]], ...]] = (
    ("lion-cub-1bit", {}),
    ("qsr-sgd", {"alpha": 0.2, "total_steps": 3}),
    ("powersgd", {}),
)
SWEEP: Final = """\
title: One run
workloads: [digits-mlp]
shardings: [iid]
world_size: 2
steps: 3
batch_size: 8
seeds: 1
lr: {schedule: constant}
arms:
  plain: {algorithm: allreduce-sgd, lr: 0.1}
  half: {algorithm: local-sgd, options: {period: 2}, lr: 0.1, baseline: plain}
"""
_IN_CHILDREN: Final = "import docs.followed\ndocs.followed.keep()\n"
"""What each process does first: `sitecustomize`, which Python imports by itself."""
_FOLDER: Final = "BANDWISE_FOLLOWED"


def follow() -> set[str]:
    """Trace this process from here on; answers the set, which grows, of the files of ours in which a function ran."""
    seen: set[str] = set()
    ours = tuple(f"{ROOT / package}{os.sep}" for package in PACKAGES)

    def imports(frame: FrameType | None) -> bool:
        """Whether a module of ours is being imported: it, or the body of a class, is under way."""
        while frame is not None:
            if not frame.f_code.co_flags & CO_OPTIMIZED and frame.f_code.co_filename.startswith(ours):
                return True
            frame = frame.f_back
        return False

    def trace(frame: FrameType, event: str, argument: object) -> None:
        name = frame.f_code.co_filename
        if (
            name.startswith(ours)
            and (file := name.removeprefix(f"{ROOT}{os.sep}")) not in seen
            and not imports(frame)
        ):
            seen.add(file)

    sys.settrace(trace)
    threading.settrace(trace)
    return seen


def keep() -> None:
    """Trace this process, and write what it saw when it ends, also where it is ended by `os._exit`."""
    seen, path = follow(), Path(os.environ[_FOLDER]) / f"{os.getpid()}.json"
    leave: Callable[[int], Any] = os._exit

    def write() -> None:
        path.write_text(json.dumps(sorted(seen)), encoding="utf-8")

    def written(code: int) -> None:
        write()
        leave(code)

    os._exit = written  # type: ignore[assignment]
    atexit.register(write)


def to_the_wire(name: str, options: dict[str, Any]) -> list[str]:
    """Files from a method's constructor to the wire."""
    import torch
    import torch.distributed as dist

    from bandwise import DataParallelOptimizer
    from reference_impls.core.registry import registry

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    model = torch.nn.Linear(64, 8)
    registry.load(name)  # what modules do where they are imported does not count
    seen = follow()
    optimizer = DataParallelOptimizer(model, name, lr=0.1, **options)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(4, 64)).sum().backward()
        optimizer.step()
    sys.settrace(None)
    threading.settrace(None)  # type: ignore[arg-type]
    dist.destroy_process_group()
    return sorted(seen)


def one_run(folder: Path) -> None:
    """Carry the sweep of that folder out, and draw its dot."""
    from bandwise import load
    from bandwise.cli import main as command
    from report.accuracy import Panel, seeds
    from suite.analysis.collect import collect_sweep, write
    from suite.analysis.tables import RUNS, SENSITIVITY, SUMMARY, rows_of

    file = str(folder / "one.yaml")
    command(["sweep", file, "--jobs", "1", "--results", str(folder)])
    made = collect_sweep(folder, file)
    write(folder, made)
    runs = load("one", folder).runs[list(RUNS.names)]
    summary, (verdict,), (facts,) = made.rows(SUMMARY), made.rows(SENSITIVITY), made.facts["workloads"]
    seeds(Panel("digits-mlp", "iid", 2, summary, rows_of(runs), verdict, facts))


def to_a_dot() -> list[str]:
    """Files from a sweep to a dot."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as made:
        folder = Path(made)
        (folder / "sitecustomize.py").write_text(_IN_CHILDREN, encoding="utf-8")
        (folder / "one.yaml").write_text(SWEEP, encoding="utf-8")
        paths = os.pathsep.join([made, str(ROOT)])
        environment = {**os.environ, "PYTHONPATH": paths, _FOLDER: made, "OMP_NUM_THREADS": "1"}
        code = "import pathlib, sys, docs.followed; docs.followed.one_run(pathlib.Path(sys.argv[1]))"
        command = [sys.executable, "-c", code, made]
        subprocess.run(command, env=environment, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        seen = {name for path in folder.glob("*.json") for name in json.loads(path.read_text("utf-8"))}
    return sorted(name for name in seen if not name.startswith("reference_impls"))


def main() -> None:
    """Print both, a line a thing."""
    for name, options in METHODS:
        found = to_the_wire(name, options)
        sys.stdout.write(f"{name}: {len(found)} files: {', '.join(found)}\n")
    found = to_a_dot()
    sys.stdout.write(f"from YAML to a dot: {len(found)} files: {', '.join(found)}\n")


if __name__ == "__main__":
    main()
