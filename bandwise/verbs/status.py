"""How a sweep stands, or everything in the results folder: runs by state, and each that did not end well with its
reason."""

from __future__ import annotations

import argparse
from typing import Any

from bandwise.checkout import add_results_option, require_checkout, results_root
from bandwise.output import counted, print_json, table

NAME = "status"
HELP = "how a sweep stands"
QUIET = frozenset({"done", "missing", "running"})


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the verb."""
    parser.add_argument(
        "sweep", nargs="?", help="name of a sweep, or path of a .yaml file (default: all runs found)"
    )
    add_results_option(parser)


def run(args: argparse.Namespace) -> int:
    """Show."""
    require_checkout(NAME)
    from suite.runs.plan import make_plan, run_rows
    from suite.runs.status import Status, counts
    from suite.runs.store import Store
    from suite.runs.sweep import load_sweep

    store = Store(results_root(args))
    if args.sweep:
        rows = run_rows(make_plan(load_sweep(args.sweep)), store)
    else:
        rows = [_row(store, run_id) for run_id in store.run_ids()]
    states = counts(Status(row["state"], row["reason"]) for row in rows)
    bad = [row for row in rows if row["state"] not in QUIET]
    if args.json:
        print_json({"sweep": args.sweep, "runs": len(rows), "states": states, "not_done": bad})
        return 0
    print(f"{args.sweep or store.root}: {len(rows)} runs ({counted(states)})")
    if bad:
        print(table(bad, ["run_id", "panel", "arm", "seed", "state", "reason"]))
    return 0


def _row(store: Any, run_id: str) -> dict[str, Any]:
    spec, status = store.spec(run_id), store.status(run_id)
    return {
        "run_id": run_id,
        "panel": f"{spec.workload.name} / {spec.sharding} / n={spec.world_size}",
        "arm": spec.algorithm.name,
        "seed": spec.seed,
        "state": status.state,
        "reason": status.reason,
    }
