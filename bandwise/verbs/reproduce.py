"""Any point of any plot again: a run by its id, or a timing session, held against what is on record of it.

    bandwise reproduce 3f2a9c0d11e4b7aa
    bandwise reproduce --session quick                    # seconds again; speedups by their intervals, not to the bit

The record is the run's folder, or in a fresh clone its row in a table. It says what of the environment is not what it
was, does the run in a results folder of its own (never over the record), and compares the loss curve and the result: the
same environment gives the same bits. Where the code is another, it names the commit to check out. Exit codes:
0 equal (of a session: no speedup differs), 3 not.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from bandwise.cli import OptionError, ProgressLine, print_json, results_root, table

if TYPE_CHECKING:
    from suite.runs.spec import RunSpec
    from suite.runs.store import Store

NAME = "reproduce"
DIFFERS = 3


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the verb."""
    parser.add_argument("run_id", metavar="RUN_ID", nargs="?", help="16 hex digits, as in the column run_id")
    parser.add_argument("--session", metavar="NAME", help="instead of a run: run this timing session again")
    parser.add_argument(
        "--out",
        metavar="DIR",
        type=Path,
        help="results folder of the new run (default: <results>/reproduced)",
    )


def run(args: argparse.Namespace) -> int:
    """Reproduce."""
    from suite.analysis.reproduction import RecordError, compare, find, from_folder
    from suite.runs.store import Store

    if (args.run_id is None) == (args.session is None):
        raise OptionError("give either a run id or --session NAME")
    root = results_root(args)
    store = Store(args.out or root / "reproduced")
    if store.root.resolve() == root.resolve():
        raise RecordError(f"--out {store.root} is where the record lies: name another folder")
    if args.session:
        return _session(args, root, store.root)
    then = find(root, args.run_id)
    _clear(store, then.spec)
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
    for line in (*found.environment, *found.harmless):
        print(f"  {line}")
    if not found.environment:
        print("  nothing on record that decides numbers differs")
    for doubt in found.doubts:
        print(f"  {doubt}")
    print(f"run {args.run_id}: {found.sentence()}")
    return 0 if found.word == "equal" else DIFFERS


def _session(args: argparse.Namespace, root: Path, again: Path) -> int:
    """Run a session in the results folder `again`, and set its speedups against those on record."""
    from suite.analysis.reproduction import RecordError, held_again
    from suite.analysis.session_tables import collect_session
    from suite.timing.session import Session
    from suite.timing.spec import load_session

    collect_session(root, args.session)
    spec = load_session(args.session)
    record = Session(
        spec, again, lambda text: print(f"{spec.name}: {text}", file=sys.stderr, flush=True)
    ).run()
    collect_session(again, args.session)
    if record["status"] not in {"done", "disturbed"}:
        raise RecordError(
            f"the session ended as {record['status']}: {record['reason']} {record['fix']}".rstrip()
        )
    speeds, moved = held_again(root, again, args.session)
    differing = [change for change in speeds if change["word"] != "no change"]
    if args.json:
        print_json({"session": args.session, "status": record["status"], "speeds": speeds, "moved": moved})
        return DIFFERS if differing or not speeds else 0
    for line in moved:
        print(f"  {line}")
    names = ("link", "sharding", "arm", "a", "a_low", "a_high", "b", "b_low", "b_high", "ratio", "word")
    print(table(speeds, names))
    if record["reason"]:
        print(f"this time: {record['reason']}")
    print(f"{len(speeds)} speedups measured again (a then, b now), {len(differing)} differ")
    return DIFFERS if differing or not speeds else 0


def _clear(store: Store, spec: RunSpec) -> None:
    """Remove an earlier reproduction, so that nothing of it is gone on with."""
    from suite.analysis.reproduction import RecordError
    from suite.runs.store import Owner, lease_holder, take_lease

    folder = store.folder(spec.run_id)
    if not folder.exists():
        return
    if take_lease(folder, Owner.here()) is None:
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
