"""Everything that can be said of an algorithm or a workload: options with defaults, paper, differences from it."""

from __future__ import annotations

import argparse
import difflib
from typing import Any

from bandwise.checkout import has_checkout
from bandwise.output import print_json, table

NAME = "info"
HELP = "options and differences of an algorithm or a workload"


class UnknownNameError(ValueError):
    """Neither an algorithm nor a workload has this name."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the verb."""
    parser.add_argument("name", help="of an algorithm or a workload")


def run(args: argparse.Namespace) -> int:
    """Describe."""
    from reference_impls import list_algorithms

    workloads = _workload_names()
    if args.name in list_algorithms():
        found = _algorithm(args.name)
    elif args.name in workloads:
        found = _workload(args.name)
    else:
        close = difflib.get_close_matches(args.name, [*list_algorithms(), *workloads], n=1, cutoff=0.5)
        hint = f"did you mean '{close[0]}'?" if close else "`bandwise list` shows all names"
        raise UnknownNameError(f"no algorithm and no workload is called '{args.name}'; {hint}")
    if args.json:
        print_json(found)
        return 0
    for key, value in found.items():
        if key != "options":
            print(f"{key:12s} {value if value != '' else '-'}")
    print(f"\noptions:\n{table(found['options'], ['name', 'default', 'type', 'help'])}")
    return 0


def _algorithm(name: str) -> dict[str, Any]:
    from reference_impls import info

    about = info(name)
    options = {**about.options, **about.hyperparameters}
    return {
        "kind": "algorithm",
        "name": name,
        "family": about.family,
        "paper": f"arXiv {about.paper}" if about.paper else "",
        "summary": about.summary,
        "differences": about.differences,
        "version": about.version,
        "source_hash": about.source_hash,
        "options": [
            {"name": key, "default": _shown(o.default), "type": o.type, "help": o.help}
            for key, o in options.items()
        ],
    }


def _workload_names() -> list[str]:
    if not has_checkout():
        return []
    from suite.workloads import names

    return names()


def _workload(name: str) -> dict[str, Any]:
    from suite.workloads import get, options

    workload = get(name)
    return {
        "kind": "workload",
        "name": name,
        "summary": workload.summary,
        "metric": f"{workload.metric} ({workload.unit}, {workload.direction} is better)",
        "margin": workload.margin,
        "shardings": ", ".join(workload.shardings),
        "batch_size": workload.batch_size,
        "version": workload.version,
        "options": [
            {"name": key, "default": _shown(o.default), "type": o.type.__name__, "help": o.help}
            for key, o in options(name).items()
        ],
    }


def _shown(value: Any) -> Any:
    if isinstance(value, tuple):
        return list(value)
    return value if value is None or isinstance(value, str | int | float | bool | list) else str(value)
