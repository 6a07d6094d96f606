"""Any point of any plot again: a run by its id, held against what is on record of it.

    bandwise reproduce 3f2a9c0d11e4b7aa
    bandwise reproduce 3f2a9c0d11e4b7aa --at recorded     # by the code of the commit that made it

The record is the run's folder, or in a fresh clone its row in a table. It says what of the environment is not what it
was, does the run in a results folder of its own (never over the record), and compares the loss curve and the result: the
same environment gives the same bits. Exit codes: 0 equal, 3 not.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from bandwise.checkout import add_results_option, require_checkout, results_root
from bandwise.output import ProgressLine, print_json

if TYPE_CHECKING:
    from suite.runs.spec import RunSpec
    from suite.runs.store import Store

NAME = "reproduce"
HELP = "a run again, and whether the same came of it"
RECORDED = "recorded"
DIFFERS = 3


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the verb."""
    parser.add_argument("run_id", metavar="RUN_ID", help="16 hex digits, as in the column run_id")
    parser.add_argument(
        "--at",
        metavar="COMMIT",
        help=f"do it by the code of that commit, in a git worktree; {RECORDED}: of the one on record",
    )
    parser.add_argument(
        "--out",
        metavar="DIR",
        type=Path,
        help="results folder of the new run (default: <results>/reproduced)",
    )
    add_results_option(parser)


def run(args: argparse.Namespace) -> int:
    """Reproduce."""
    require_checkout(NAME)
    from suite.analysis.recorded import RecordError, find, from_folder
    from suite.analysis.reproduction import compare
    from suite.runs.store import Store
    from suite.runs.worktree import run_at

    root = results_root(args)
    then = find(root, args.run_id)
    store = Store(args.out or root / "reproduced")
    if store.root.resolve() == root.resolve():
        raise RecordError(f"--out {store.root} is where the record lies: name another folder")
    commit = then.attributes.get("commit") if args.at == RECORDED else args.at
    if args.at and not commit:
        raise RecordError(f"{then.place} does not tell the commit: name one with --at COMMIT")
    _clear(store, then.spec)
    if commit:
        run_at(commit, then.spec, store.root)
    else:
        _run_here(store, then.spec)
    now = from_folder(store, then.spec.run_id)
    if now is None:
        raise RecordError(f"run {args.run_id} left no result under {store.root}")
    found = compare(then, now)
    if args.json:
        print_json({**found.as_dict(), "record": then.place, "again": now.place})
        return 0 if found.word == "equal" else DIFFERS
    print(f"record: {then.place}")
    print(f"again:  {now.place}")
    for difference in (*found.environment, *found.harmless):
        print(f"  {difference}")
    if not found.environment:
        print("  nothing on record that decides numbers differs")
    for doubt in found.doubts:
        print(f"  {doubt}")
    print(f"run {args.run_id}: {found.sentence()}")
    return 0 if found.word == "equal" else DIFFERS


def _clear(store: Store, spec: RunSpec) -> None:
    """Remove an earlier reproduction, so that nothing of it is gone on with."""
    from suite.analysis.recorded import RecordError
    from suite.runs.lease import Owner, holder, take

    folder = store.folder(spec.run_id)
    if not folder.exists():
        return
    if take(folder, Owner.here()) is None:
        raise RecordError(
            f"{folder} is in the hands of {holder(folder)}: wait for it, or name another folder with --out"
        )
    shutil.rmtree(folder)


def _run_here(store: Store, spec: RunSpec) -> None:
    import torch

    from suite.runs.execute import execute

    torch.set_num_threads(1)
    line = ProgressLine(f"run {spec.run_id}")
    try:
        for _ in execute([spec], store, lambda step: line.steps(step, spec.steps)):
            pass
    finally:
        line.close()
