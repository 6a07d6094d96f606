"""What a sweep would do: runs done, missing and failed, whether its seeds can carry ranks, disk and time needed."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from bandwise.options import add_results_option, require_checkout, results_root
from bandwise.output import counted, duration, print_json, table

NAME = "plan"


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the verb."""
    parser.add_argument("sweep", help="name of a sweep, or path of a .yaml file")
    parser.add_argument("--only", metavar="GLOB", help="only the arms whose label matches")
    parser.add_argument("--runs", action="store_true", help="list every run")
    add_results_option(parser)


def run(args: argparse.Namespace) -> int:
    """Plan."""
    require_checkout(NAME)
    from suite.runs.plan import make_plan, run_rows, statuses, summary
    from suite.runs.store import Store
    from suite.runs.sweep import load_sweep

    plan = make_plan(load_sweep(args.sweep), args.only, without_data=True)
    store = Store(results_root(args))
    states = statuses(plan, store)
    found = summary(plan, store, states)
    if plan.sweep.headline:
        from suite.runs.plan import power_of

        known = [power for power in power_of(plan.sweep) if power.df]
        found["power"] = [{**dataclasses.asdict(power), "enough": power.enough} for power in known]
    if args.runs or args.json:
        found["list"] = run_rows(plan, states)
    if args.json:
        print_json(found)
        return 0
    print("\n".join(described(found)))
    if args.runs:
        print(table(found["list"], ["run_id", "panel", "arm", "steps", "seed", "state", "reason"]))
    return 0


def described(found: Mapping[str, Any]) -> list[str]:
    """The summary of a plan in lines."""
    lines = [
        f"{found['sweep']}: {found['title']}",
        f"{found['runs']} runs of {_lengths(found['ladder'])} steps ({counted(found['states'])}), {found['to_do']} to do",
    ]
    for panel in found["panels"]:
        p = f"smallest p after Holm {panel['smallest_p']:.2g}" if found["ranks"] else _without_ranks(found)
        lines.append(
            f"  {panel['panel']}: {panel['arms']} arms, {found['seeds']} seeds, {panel['comparisons']} comparisons, {p}"
        )
    for power in found.get("power", ()):
        lines.append(
            f"  {power['panel']}: intervals of a difference will be +-{power['half_width']:.3g} (sd {power['sd']:.3g} in tuning, "
            f"{power['df']} degrees of freedom); the margin is {power['margin']:.3g}"
        )
    for left_out in found["skipped"]:
        lines.append(
            f"  left out: {left_out['arm']} in {left_out['panel']}, {left_out['runs']} runs: {left_out['reason']}"
        )
    lines.extend(f"  warning: {warning}" for warning in found["warnings"])
    basis = "by finished runs" if found["core_seconds_measured"] else "a rough guess until runs have finished"
    sent = found["wire_bytes_left"]
    traffic = "" if sent is None else f", and sends {sent / 1e6:.1f} MB in all"
    lines.append(
        f"needs about {found['disk_bytes'] / 1e6:.1f} MB of disk and {duration(found['core_seconds_left'])} on one core "
        f"({basis}){traffic}"
    )
    if found["stale_code"]:
        lines.append(
            f"{found['stale_code']} results are older than the code of their method (its version did not move)"
        )
    return lines


def _without_ranks(found: Mapping[str, Any]) -> str:
    """What so many seeds can show where nobody is ranked."""
    if found["seeds"] >= found["seeds_for_intervals"]:
        return "intervals, no ranks"
    return f"means alone: an interval needs {found['seeds_for_intervals']} seeds, and nobody is called equal without one"


def _lengths(steps_by_budget: Sequence[int]) -> str:
    """The lengths of the runs: `100`, or with several budgets `50, 71, 100 and 141`."""
    first = ", ".join(str(steps) for steps in steps_by_budget[:-1])
    return f"{first} and {steps_by_budget[-1]}" if first else str(steps_by_budget[-1])
