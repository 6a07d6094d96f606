"""What there is: methods, and in a checkout workloads and, with the packages of the suite, sweeps."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from bandwise.cli import answer, extra_needed, has_checkout, require_checkout, table

KINDS = ("methods", "workloads", "sweeps")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("kind", nargs="?", choices=KINDS, help="only these (default: all)")


def run(args: argparse.Namespace) -> int:
    if args.kind in {"workloads", "sweeps"}:
        require_checkout("list " + args.kind)
    kinds = [args.kind] if args.kind else [kind for kind in KINDS if kind == "methods" or has_checkout()]
    found = {}
    for kind in kinds:
        try:
            found[kind] = _ROWS[kind]()
        except ModuleNotFoundError as error:
            if args.kind or not (needed := extra_needed(f"list {kind}", error)):
                raise
            print(needed, file=sys.stderr)
    listed = [f"{kind}:\n{table(rows, list(rows[0]) if rows else [])}\n" for kind, rows in found.items()]
    answer(args, found, *listed)
    return 0


def _methods() -> list[dict[str, Any]]:
    from reference_impls.core.registry import registry

    entries = ((name, registry.entry(name)) for name in registry.names())
    return [{"name": name, "family": e.family, "paper": e.paper, "summary": e.summary} for name, e in entries]


def _workloads() -> list[dict[str, Any]]:
    from suite.workloads import get, names

    found = ((name, get(name)) for name in names())
    return [
        {"name": name, "metric": w.metric, "shardings": "/".join(w.shardings), "summary": w.summary}
        for name, w in found
    ]


def _sweeps() -> list[dict[str, Any]]:
    from suite.runs.sweep import load_sweep, sweep_names

    found = (load_sweep(name) for name in sweep_names())
    return [{"name": s.name, "arms": len(s.arms), "seeds": s.seeds, "title": s.title} for s in found]


_ROWS = {"methods": _methods, "workloads": _workloads, "sweeps": _sweeps}
