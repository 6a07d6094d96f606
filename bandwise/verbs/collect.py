"""Make the tables of a sweep or of a timing session again from what was run.

bandwise collect quick                   results/tables/quick-*.csv from the run folders

Folders of runs and sessions are named by what they hold, so those of another results folder are copied beside those here:
`rsync -a --ignore-existing OTHER/runs OTHER/sessions OTHER/patches results/`, while nobody works on either.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import Any

from bandwise.options import add_results_option, require_checkout, results_root
from bandwise.output import counted, print_json

NAME = "collect"


class NothingToCollectError(ValueError):
    """There is nothing to make tables of; the message says what to run."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the verb."""
    parser.add_argument("name", help="name of a sweep or a session, or path of its .yaml file")
    add_results_option(parser)


def run(args: argparse.Namespace) -> int:
    """Make tables."""
    require_checkout(NAME)
    root = results_root(args)
    tables = _tables(root, args.name)
    if args.json:
        print_json({"results": str(root), **tables})
    else:
        print("\n".join([*tables["tables"], f"{args.name}: {counted(tables['states'])}"]))
    return 0


def _tables(root: Path, name: str) -> dict[str, Any]:
    """The tables of the sweep and of the session of that name, where there are runs or records to make them from."""
    from slurm.states import note_ends
    from suite.analysis import collect
    from suite.analysis.collect import collect_sweep
    from suite.analysis.session_tables import collect_session
    from suite.runs.store import Store
    from suite.runs.sweep import UnknownSweepError, load_sweep, tables_of

    written: list[Path] = []
    states, why = {}, ""
    try:
        sweep = load_sweep(name)
    except UnknownSweepError as unknown:
        why = f"{unknown}; and no session of that name has a record under {root}: `{shlex.join(['bandwise', 'session', name])}`"
    else:
        if unanswered := note_ends(Store(root), sweep.called):
            print(f"Slurm was not asked: {unanswered}", file=sys.stderr)
        collected = collect_sweep(root, sweep)
        states = collected.facts["statuses"]
        if set(states) <= {"missing"}:
            why = (
                f"no run of sweep {sweep.name} has a folder under {root}, so its tables stay as they are: "
                f"`{sweep.command('sweep')}`"
            )
        else:
            written += collect.write(root, collected)
    # after the sweep's tables, of which a budget sweep's seconds are made
    written = [*(collect_session(root, tables_of(name)) or []), *written]
    if not written:
        raise NothingToCollectError(why)
    return {"name": name, "tables": [str(path) for path in written], "states": states}
