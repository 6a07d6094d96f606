"""Any training on a page again: a run by its id, held against what is on record of it.

    bandwise reproduce 3f2a9c0d11e4b7aa

The record is the run's folder, or in a fresh clone its row in a table. It says what of the environment is not what it
was, does the run in a results folder of its own (never over the record), and compares the loss curve and the result: the
same environment gives the same bits. Where the code is another, it names the commit to check out. Exit codes:
0 equal, 3 not. Seconds are measured again by `bandwise session NAME`, whose net speedups are of all sessions that time the same.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from bandwise.cli import FAILURE, ProgressLine, answer, results_root

if TYPE_CHECKING:
    from suite.runs.spec import RunSpec
    from suite.runs.store import Store


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_id", metavar="RUN_ID", help="16 hex digits, as in the column run_id")
    parser.add_argument(
        "--out",
        metavar="DIR",
        type=Path,
        help="results folder of the new run (default: <results>/reproduced)",
    )


def run(args: argparse.Namespace) -> int:
    from suite.analysis.reproduction import RecordError, compare, find, from_folder
    from suite.runs.store import Store

    root = results_root(args)
    store = Store(args.out or root / "reproduced")
    if store.root.resolve() == root.resolve():
        raise RecordError(f"--out {store.root} is where the record lies: name another folder")
    then = find(root, args.run_id)
    _clear(store, then.spec)
    _run_here(store, then.spec)
    now = from_folder(store, then.spec.run_id)
    if now is None:
        raise RecordError(f"run {args.run_id} left no result under {store.root}")
    found = compare(then, now)
    same = [] if found.environment else ["nothing on record that decides numbers differs"]
    lines = [*found.environment, *found.harmless, *same, *found.doubts]
    answer(
        args,
        {**found.as_dict(), "record": then.place, "again": now.place},
        f"record: {then.place}",
        f"again:  {now.place}",
        *(f"  {line}" for line in lines),
        f"run {args.run_id}: {found.sentence()}",
    )
    return 0 if found.word == "equal" else FAILURE


def _clear(store: Store, spec: RunSpec) -> None:
    """Remove an earlier reproduction, so that nothing of it is gone on with."""
    from suite.analysis.reproduction import RecordError
    from suite.runs.store import lease_holder, owner_here, take_lease

    folder = store.folder(spec.run_id)
    if not folder.exists():
        return
    if take_lease(folder, owner_here()) is None:
        raise RecordError(
            f"{folder} is in the hands of {lease_holder(folder)}: wait for it, or name another folder with --out"
        )
    shutil.rmtree(folder)


def _run_here(store: Store, spec: RunSpec) -> None:
    import torch

    from suite.training.execute import execute

    torch.set_num_threads(1)
    line = ProgressLine(f"run {spec.run_id}")
    try:
        for _ in execute([spec], store, lambda step: line.steps(step, spec.steps)):
            pass
    finally:
        line.close()
